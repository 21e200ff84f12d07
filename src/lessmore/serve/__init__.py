"""The server: streams over HTTP, each with a state of its own that survives restarts, kills and eviction.

`app` takes requests, `scheduler` puts them in order, `streams` holds what is in memory and answers a batch, and
`journal`, `store` and `registry` hold it on the disk. It needs the extra `serve`, and nobody but `cli` imports it.
Runs, tables and figures stay out.
Read `streams.py` first.
"""
