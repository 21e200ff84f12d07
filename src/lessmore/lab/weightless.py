"""Models without weights, and methods on them: all that counting costs needs, whatever the size of the model."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from lessmore.config import Preset, preset
from lessmore.core.costs import costs
from lessmore.core.text import TextShape, TextTower
from lessmore.core.vit import ViT, ViTShape
from lessmore.methods import Method, Setup, make_method
from lessmore.methods.cocoop import new_network
from lessmore.methods.context import WORDS, frame_prompts, write_context
from lessmore.methods.registry import find_method
from lessmore.methods.resolve import fit_to_tower
from lessmore.models.load import load
from lessmore.models.shapes import SHAPES
from lessmore.models.vlm import VLM


class BlankVLM(VLM):
    """A model on the meta device."""

    def text_fingerprint(self) -> str:
        """There are no weights to tell it by."""
        return ""


def blank_model(name: str) -> BlankVLM:
    """The model that `lessmore.load` knows by that name, or one of `SHAPES`, for which every word is one token."""
    if name not in SHAPES:
        vlm = load(name).to("meta")
        return BlankVLM(vlm.vision, vlm.text, vlm.logit_scale, 0.0, vlm.tokenizer, vlm.preprocess, vlm.family, name)
    vision, text = SHAPES[name]
    with torch.device("meta"):
        towers = ViT(vision).requires_grad_(False), TextTower(text).requires_grad_(False)

    def preprocess(image: Image.Image) -> Tensor:
        return torch.zeros(3, vision.image_size, vision.image_size)

    def tokenize(texts: list[str]) -> Tensor:
        return torch.stack([_row(line, text) for line in texts])

    return BlankVLM(*towers, 1.0, 0.0, tokenize, preprocess, "siglip" if "SigLIP" in name else "clip", name)


def _row(line: str, shape: TextShape) -> Tensor:
    """Start mark, a 1 for every word and for the full stop, end mark, zeros: [T]."""
    words = line.replace(".", " .").split()[: shape.context - 2]
    ids = [shape.vocab - 2, *(1 for _ in words), shape.vocab - 1]
    return torch.tensor(ids + [0] * (shape.context - len(ids)))


def blank_method(name: str, vlm: VLM, preset: Preset, classes: Sequence[str], options: Mapping[str, Any]) -> Method:
    """A method fit for `macs` and `facts` but not for images; files that it reads are made up.

    Args:
        name: The method.
        vlm: The model, blank or not.
        preset: The settings.
        classes: Class names; only their number and lengths matter.
        options: The method's own options.
    """
    text = torch.zeros(len(classes), vlm.vision.shape.embed).to(vlm.vision.positions)
    with made_up_files(name, vlm) as files:
        own = {**options, **files}
        return make_method(name, Setup(vlm.vision, text, vlm.logit_scale, preset, vlm, tuple(classes), options=own))


@contextmanager
def made_up_files(name: str, vlm: VLM) -> Iterator[dict[str, str]]:
    """Options of a method that name a file or folder: a context that has learnt nothing, a folder without images.

    Args:
        name: The method.
        vlm: The model that a context must fit.

    Yields:
        The options; the files exist only inside the block.
    """
    kind = find_method(name).options
    names = {f.name for f in fields(kind)} if kind else set()
    with tempfile.TemporaryDirectory() as folder:
        made = {"folder": folder} if "folder" in names else {}
        if "context" in names:
            made["context"] = str(_write_untrained(name, vlm, Path(folder)))
        yield made


def _write_untrained(name: str, vlm: VLM, folder: Path) -> Path:
    start = frame_prompts(vlm, ["x"]).start
    learned = {"context": torch.zeros(start.shape)}
    if name == "cocoop":
        learned |= new_network(vlm.vision.shape.embed, start.shape[1], torch.Generator())
    path = folder / "context.safetensors"
    write_context(path, vlm, learned, {"method": name, "words": WORDS})
    return path


BUDGETS = (1.0, 0.9, 0.7)
"""The R that a shape's cost is listed at."""


def shape_gmacs(vision: ViTShape) -> dict[float, float]:
    """What one image costs a tower at each of `BUDGETS`, condensed as `default` does: 10⁹ multiply-accumulates."""
    fitted = {R: fit_to_tower(preset("default", R=R), vision).condensation for R in BUDGETS}
    return {R: costs(vision, condensation, classes=0).gmacs for R, condensation in fitted.items()}
