"""From a model of the user's library to a `VLM`: importers, preprocessing, class embeddings.

Everything that knows open_clip, transformers or timm lives here, and only here. The user's model is read by the names
of its weights and never changed. No method and no engine may come in; `core` gives the towers that weights are put
into.
Read `vlm.py` first, then `load.py`.
"""
