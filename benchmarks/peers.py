"""Other people's code, brought beside ours for one run of `speed.py`; none of it belongs to this repository."""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
import time
import types
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

Forward = Callable[[], object]


def forwards(args: argparse.Namespace) -> dict[str, Callable[[Tensor], Forward]]:
    """Forward passes of a ViT-B/16 by name; making one fails where its library is not installed."""
    return {
        "open_clip, eager": lambda image: _run(_open_clip(image), image),
        "open_clip, compiled": lambda image: _run(_compiled(_open_clip(image)), image),
        "transformers, eager": lambda image: _run(_transformers(image), image),
        "ToMe's own patch on timm, r = 13": lambda image: _run(_tome(image, args.tome), image),
    }


def _run(model: Callable[[Tensor], object], image: Tensor) -> Forward:
    model(image)
    return lambda: model(image)


def _compiled(model: Any) -> Any:
    return torch.compile(model, mode="reduce-overhead" if torch.cuda.is_available() else "default")


def _open_clip(image: Tensor) -> Any:
    import open_clip

    model = open_clip.create_model("ViT-B-16", precision="fp32").visual
    return model.eval().requires_grad_(False).to(image.device, image.dtype)


def _transformers(image: Tensor) -> Any:
    from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

    config = CLIPVisionConfig(hidden_size=768, intermediate_size=3072, num_attention_heads=12, patch_size=16)
    model = CLIPVisionModelWithProjection(config).eval().requires_grad_(False).to(image.device, image.dtype)
    return lambda pixels: model(pixel_values=pixels).image_embeds


def _tome(image: Tensor, checkout: str | None) -> Any:
    if checkout is None:
        raise ImportError("give --tome, a checkout of ToMe")
    import timm

    sys.path.insert(0, checkout)
    import tome

    model = timm.create_model("vit_base_patch16_224", pretrained=False).eval().requires_grad_(False)
    tome.patch.timm(model)
    model.r = 13
    return model.to(image.device, image.dtype)


def released(checkout: str, C: int, images: int = 30) -> float:
    """Milliseconds per image of the paper's code on random ViT-B/16 weights, its own loop, the first half left out.

    It finds its reservoir full at the first image: entries of the kinds that it stores itself, with random values.
    """
    model = _released_model(checkout)
    import runner

    text = torch.nn.functional.normalize(torch.randn(512, C), dim=0).cuda().half()
    pixels = torch.randn(images, 3, 224, 224)
    stamps: list[float] = []

    def loader() -> Any:
        for i in range(images):
            torch.cuda.synchronize()
            stamps.append(time.perf_counter())
            yield pixels[i : i + 1], torch.zeros(1, dtype=torch.long)

    settings = {"reservoir_size": 3, "scale": 1, "lambd": 3, "beta": 5}
    switches = argparse.Namespace(
        reservoir_sim=True, div=True, token_sim=True, flag=True, backbone="ViT-B/16", visualize_mask=False
    )
    own = runner.update_reservoir_sim
    runner.update_reservoir_sim = _full_from_the_start(own, settings["reservoir_size"])
    try:
        runner.run_test_tca(settings, loader(), model, text, switches)
    finally:
        runner.update_reservoir_sim = own
    torch.cuda.synchronize()
    steps = [b - a for a, b in pairwise(stamps)]
    return round(1000 * statistics.median(steps[images // 2 :]), 3)


def _full_from_the_start(update: Callable[..., Any], M: int) -> Callable[..., Any]:
    def filled(reservoir: dict[int, list[Any]], label: int, entry: list[Tensor], *rest: Any, **named: Any) -> Any:
        for stored in reservoir.values():
            stored += [[torch.rand_like(part) for part in entry] for _ in range(M - len(stored))]
        return update(reservoir, label, entry, *rest, **named)

    return filled


UNUSED = ("wandb", "fvcore", "einops", "gdown", "scipy", "matplotlib")
"""What the released code imports beside torch, none of it on the path that is timed."""


def _stand_in(package: str) -> None:
    class Anything(types.ModuleType):
        def __getattr__(self, name: str) -> Any:
            return None if name.startswith("__") else Anything(name)

    for name in (package, "fvcore.nn", "scipy.spatial", "scipy.spatial.distance", "matplotlib.pyplot"):
        if name.split(".")[0] == package:
            sys.modules[name] = Anything(name)


def _released_model(checkout: str) -> Any:
    """Its CLIP with random weights; modules it imports without using them are stood in for."""
    for name in UNUSED:
        if name not in sys.modules and importlib.util.find_spec(name) is None:
            _stand_in(name)
    if checkout not in sys.path:
        sys.path.insert(0, checkout)
    import clip
    from clip.model import CLIP

    weights = Path("released-random.pt")
    if not weights.exists():
        random = CLIP(512, 224, 12, 768, 16, 77, 49408, 512, 8, 12, "Ours-0.035")
        torch.save({key: value.half() for key, value in random.state_dict().items()}, weights)
    return clip.load(str(weights), "Ours-0.035", device="cuda")[0].eval()
