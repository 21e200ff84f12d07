"""Encodings of `streams.py` small enough to try rules on a CPU.

Features in int8. The tokens of all layers, each of length √P_l so that a dot product is the sum that the correction
takes, in the 192 directions that hold most of them; those of an early layer in 64. A trial on these is a trial: figures
come from the tokens themselves.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from stream_pool import Codes, Pool
from torch import Tensor

from lessmore.config import preset
from lessmore.core.class_texts import ClassTexts
from lessmore.core.correction import layer_weights

WIDTH, SHALLOW_WIDTH, SHALLOW = 192, 64, 3
"""Directions of the tokens and of the early layer's; which layer that is."""
PART = 4000


def _coded(x: Tensor) -> dict[str, Any]:
    scale = x.abs().amax(dim=0).clamp_min(1e-9) / 127
    return {"codes": (x / scale).round().to(torch.int8).cpu().numpy(), "scale": scale.float().cpu().numpy()}


def _weighted(tokens: Tensor) -> Tensor:
    config = preset("default").adaptation
    weights = layer_weights(tokens.shape[1], config.beta, config.layer_weights, torch.empty(0, device=tokens.device))
    return (F.normalize(tokens.float(), dim=-1) * weights.sqrt()[:, None]).flatten(1)


def _projected(tokens: Tensor, width: int, make: Any) -> tuple[Tensor, float]:
    """Rows in the directions that hold most of them, and the share that these hold."""
    dice = torch.Generator().manual_seed(0)
    some = make(tokens[torch.randperm(len(tokens), generator=dice)[:8000].to(tokens.device)])
    axes = torch.svd_lowrank(some, q=min(width, some.shape[1]), niter=3)[2]
    held = float((some @ axes).square().sum() / some.square().sum())
    return torch.cat([make(part) @ axes for part in tokens.split(PART)]), held


def save_compact(pool: Pool, folder: Path) -> None:
    """Write two files of a pool."""
    codes = pool.codes["default"]
    tokens, held = _projected(codes.tokens, WIDTH, _weighted)
    shallow, early = _projected(codes.tokens, SHALLOW_WIDTH, lambda x: F.normalize(x[:, SHALLOW].float(), dim=-1))
    print(f"{pool.name}: {held:.3f} of the tokens kept, {early:.3f} of the early ones", flush=True)
    features = {f"features.{k}": v for k, v in _coded(codes.features).items()}
    facts = {name: getattr(pool, name) for name in ("labels", "photos", "deep", "right")}
    texts = {"text": pool.texts.text.cpu().numpy(), "scale": pool.texts.scale, "conditions": np.array(pool.conditions)}
    np.savez(folder / f"{pool.name}.features.npz", **features, **facts, **texts)
    both = {"tokens": _coded(tokens), "shallow": _coded(shallow)}
    flat = {f"{name}.{k}": v for name, part in both.items() for k, v in part.items()}
    np.savez(folder / f"{pool.name}.tokens.npz", **flat)


def load_compact(name: str, folder: Path) -> tuple[Pool, Tensor]:
    """A pool whose towers seem to have one layer, and the early layer's tokens `[rows, 64]`."""
    found, beside = dict(np.load(folder / f"{name}.features.npz")), folder / f"{name}.tokens.npz"
    found |= dict(np.load(beside)) if beside.is_file() else {}

    def decoded(key: str) -> Tensor:
        return torch.from_numpy(found[f"{key}.codes"].astype(np.float32) * found[f"{key}.scale"])

    texts = ClassTexts.of(torch.from_numpy(found["text"]), float(found["scale"]))
    none = torch.zeros(len(found["right"]), 1)
    tokens, shallow = (decoded(key) if f"{key}.codes" in found else none for key in ("tokens", "shallow"))
    codes = Codes(F.normalize(decoded("features"), dim=-1), tokens[:, None])
    facts = {key: found[key] for key in ("labels", "photos", "deep")}
    pool = Pool(
        name, texts, tuple(found["conditions"].tolist()), **facts, codes={"default": codes}, right=found["right"]
    )
    return pool, shallow
