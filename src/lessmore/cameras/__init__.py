"""Cameras, videos and folders as streams: one source, one stream of its own, and one model for all of them.

`source` says what a word of the command line means, `video` and `folder` give its frames, `selection` chooses among
them, `reader` hands them over in a thread, and `watch` answers them and keeps what was learned. It needs PyAV (extra
`camera`) but no server and no web framework. Nothing is opened that the user did not name.
Read `watch.py` first.
"""
