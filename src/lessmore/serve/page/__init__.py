"""The live page at `/`: streams as cards, one of them in detail, and a rendered camera to try it with.

Read `routes.py` first: the files of the page and the two calls that only it makes. `glance.py` is what it shows of a
stream beside its answers. `live.js` begins in the browser; it writes texts as texts only, so names need no escaping.
"""
