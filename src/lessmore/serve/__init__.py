"""The server: streams over HTTP, each with a state of its own that survives restarts, kills and eviction.

`app` takes requests, `scheduler` puts them in order, `turn` answers a batch, `streams` holds what is in memory, and
`journal`, `store` and `registry` hold it on the disk. It needs the extra `serve`, and nobody but `cli` imports it.
Runs, tables and figures stay out.
Read `turn.py` first.
"""
