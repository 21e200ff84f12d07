"""What the live page shows of a stream beside its answers: where the newest image's tokens went, and who voted.

Where the operator keeps thumbnails, small pictures of the newest image and of those in the reservoir come with it. All
of it is in memory alone, and goes when the stream leaves memory.
"""

from __future__ import annotations

import base64
import io
import math
from dataclasses import dataclass, field
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from lessmore.adapter import Adapter
from lessmore.core.condense.source import Step, source_map
from lessmore.core.reservoir import Reservoir
from lessmore.engines.answered import Answered
from lessmore.methods import FollowsStream
from lessmore.methods.tca import TCA
from lessmore.models.preprocess import Preprocess
from lessmore.models.vlm import VLM

FRAME, THUMBNAIL = 224, 64
"""Longest sides of the newest image and of the stored ones, in pixels."""
SHOWN = 3
"""Classes whose votes are shown."""
NOTHING: dict[str, Any] = {
    "seq": 0, "strength": 0.0, "drift": 0.0, "frame": None, "square": None, "tokens": None, "votes": [],
}  # fmt: skip
"""What there is to see of a stream that is not in memory."""


@dataclass
class Glance:
    """Of one stream; only the thread that computes may change it."""

    keep: bool = False
    """Whether pictures are kept."""
    seq: int = 0
    """Number of the newest image."""
    frame: bytes | None = None
    """The newest image as the tower saw it, as a JPEG."""
    steps: list[Step] = field(default_factory=list)
    """What the condensing blocks did to it."""
    best: list[int] = field(default_factory=list)
    """Its most probable classes."""
    thumbnails: dict[int, bytes] = field(default_factory=dict)
    """Stored images by their numbers, as JPEGs."""

    def take(self, adapter: Adapter, answered: Answered, pixels: Tensor, seq: int) -> None:
        """Look at an image that was just answered.

        Args:
            adapter: The stream's.
            answered: The answer.
            pixels: What the method looked at, `[V, 3, H, W]`.
            seq: The image's number in the stream.
        """
        self.seq, self.steps = seq, answered.steps
        self.best = answered.scores.topk(min(SHOWN, len(answered.scores))).indices.tolist()
        if not self.keep:
            return
        picture = _picture(pixels[0], adapter.vlm)
        self.frame = _jpeg(picture, FRAME)
        memory = _reservoir(adapter)
        if memory is not None and answered.stored:
            self.thumbnails[int(memory.step) - 1] = _jpeg(picture, THUMBNAIL)
            stored = set(memory.ids.flatten().tolist())
            self.thumbnails = {i: one for i, one in self.thumbnails.items() if i in stored}

    @property
    def memory(self) -> int:
        """Bytes of all pictures."""
        return len(self.frame or b"") + sum(map(len, self.thumbnails.values()))

    def body(self, adapter: Adapter) -> dict[str, Any]:
        """All of it, as the page gets it."""
        method = adapter.answerer.method
        mean = method.stream_mean() if isinstance(method, FollowsStream) else None
        return {
            "seq": self.seq,
            "strength": 0.0 if mean is None else float(mean.strength),
            "drift": 0.0 if mean is None else float(mean.evidence),
            "frame": None if self.frame is None else _uri(self.frame),
            "square": adapter.vlm.preprocess.mode if isinstance(adapter.vlm.preprocess, Preprocess) else None,
            "tokens": _tokens(self.steps),
            "votes": self._votes(adapter),
        }

    def _votes(self, adapter: Adapter) -> list[dict[str, Any]]:
        """The stored images of the most probable classes; none where the setting lets none vote."""
        method = adapter.answerer.method
        if not isinstance(method, TCA) or not self.best or adapter.preset.adaptation.lam == 0:
            return []
        memory, added = method.stream.reservoir, method.contributions()
        return [{"label": adapter.classes[c], "images": self._stored(memory, added[c], c)} for c in self.best]

    def _stored(self, memory: Reservoir, added: Tensor, label: int) -> list[dict[str, Any]]:
        """The stored images of a class, the one that added most first."""
        facts = zip(memory.ids[label].tolist(), memory.keys[label].tolist(), added.tolist(), strict=True)
        found = [
            {"number": i + 1, "entropy": key, "added": weight if math.isfinite(weight) else None}
            | {"thumbnail": _uri(self.thumbnails[i]) if i in self.thumbnails else None}
            for i, key, weight in facts
            if i >= 0
        ]
        return sorted(found, key=lambda one: -(one["added"] or 0))


def _reservoir(adapter: Adapter) -> Reservoir | None:
    """The reservoir of a stream whose method has one."""
    method = adapter.answerer.method
    return method.stream.reservoir if isinstance(method, TCA) else None


def _tokens(steps: list[Step]) -> dict[str, Any] | None:
    """Every patch's fate after every condensing block, and the colour of its token if it was merged."""
    from lessmore.lab.report.tokens import cluster_colours

    if not steps:
        return None
    trace = source_map(steps)
    return {
        "blocks": list(trace.blocks),
        "left": trace.left[0].tolist(),
        "fate": trace.fate[0].tolist(),
        "colour": cluster_colours(trace).tolist(),
    }


def _picture(pixels: Tensor, vlm: VLM) -> Image.Image:
    """What the tower saw.

    Args:
        pixels: Preprocessed, `[3, H, W]`.
        vlm: Says how they were normalised; where it does not, contrast is stretched.
    """
    pixels = pixels.detach().float().cpu()
    if isinstance(vlm.preprocess, Preprocess):
        mean, std = (torch.tensor(triple)[:, None, None] for triple in (vlm.preprocess.mean, vlm.preprocess.std))
        pixels = pixels * std + mean
    else:
        pixels = (pixels - pixels.amin()) / (pixels.amax() - pixels.amin()).clamp_min(1e-6)
    return Image.fromarray((pixels.clamp(0, 1) * 255).round().byte().permute(1, 2, 0).contiguous().numpy())


def _jpeg(picture: Image.Image, side: int) -> bytes:
    """A picture as a JPEG.

    Args:
        picture: RGB.
        side: Its longest side is made no longer than this.
    """
    small, file = picture.copy(), io.BytesIO()
    small.thumbnail((side, side))
    small.save(file, "JPEG", quality=82)
    return file.getvalue()


def _uri(picture: bytes) -> str:
    """A JPEG as an address that holds it."""
    return "data:image/jpeg;base64," + base64.b64encode(picture).decode()
