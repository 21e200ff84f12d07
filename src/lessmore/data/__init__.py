"""Images and data sets: readers, streams, corruptions, and decoding that no file can break.

A `Dataset` is ids, labels and names; images are decoded on demand. Models, methods and settings stay out, so that a
data set can be checked without torch. `typed.py` reads whatever a person typed, `images.py` whatever shows a picture.
Read `dataset.py` first, then `registry.py`.
"""
