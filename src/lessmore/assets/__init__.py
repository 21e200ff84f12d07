"""The embedded world: a renderer of labelled images and two small models trained on it, so that nothing is downloaded.

`world` draws, `shifts` disturbs, `words` tokenises; `tools/train_tiny.py` makes the model folders named here.
Pictures and weights from elsewhere stay out, because every install ships this folder. It imports nothing of ours but
errors.
Read `world.py` first.
"""

from __future__ import annotations

from pathlib import Path

from lessmore.errors import ModelError, unknown

MODELS = ("tiny", "tiny-siglip")
"""Names of the embedded models: a class-token tower under the CLIP loss, a MAP-head tower under the sigmoid loss."""


def model_folder(name: str) -> Path:
    """The folder of an embedded model, in transformers' format."""
    if name not in MODELS:
        raise ModelError(unknown("embedded model", name, MODELS))
    folder = Path(__file__).parent / name
    if not (folder / "model.safetensors").is_file():
        raise ModelError(f"the weights of {name!r} are missing from {folder}; reinstall lessmore")
    return folder
