"""Files: written atomically, with a checksum over all they hold, and verified before anything is used.

Everything lessmore writes for itself passes through here: states, caches and sealed JSON. What the tensors mean is
decided elsewhere; this room imports nothing of ours but errors. A file is read completely or not at all.
Read `files.py` first, then `sealed.py`.
"""
