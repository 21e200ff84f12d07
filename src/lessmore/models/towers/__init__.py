"""Importers: the user's model, read by name into our own towers and never changed."""

from lessmore.models.towers import hf_clip, hf_siglip, open_clip
from lessmore.models.towers.registry import Family, Towers, import_model, is_a, register_family

__all__ = ["Family", "Towers", "hf_clip", "hf_siglip", "import_model", "is_a", "open_clip", "register_family"]
