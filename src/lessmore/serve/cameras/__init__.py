"""Cameras that the server itself watches: `cameras:` in its YAML file.

`entries` reads what the operator wrote, `feed` takes one camera's frames through the server's own queue, `outputs` says
where its answers go beside that, and `feeds` holds all of them for as long as the server runs. It needs the extra
`camera`; a server without cameras imports none of this.
Read `feed.py` first.
"""
