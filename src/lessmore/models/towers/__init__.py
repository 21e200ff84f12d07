"""Importers: the user's model, read by name into our own towers and never changed.

One file for each library and architecture; each registers a function with a test of the host object. An importer maps
names of weights and states shapes, and may not import the host's library. `weights.py` checks that nothing is left
over.
Read `hf_clip.py` first.
"""

from lessmore.models.towers import dinotxt, hf_clip, hf_siglip, hf_siglip2, open_clip
from lessmore.models.towers.registry import Family, Towers, import_model, is_a, register_family

__all__ = [
    "Family",
    "Towers",
    "dinotxt",
    "hf_clip",
    "hf_siglip",
    "hf_siglip2",
    "import_model",
    "is_a",
    "open_clip",
    "register_family",
]
