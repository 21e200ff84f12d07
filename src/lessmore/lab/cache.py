"""Encodings of images, computed once and shared by all runs that do not need the encoder to see their state.

A folder holds what one tower, under one condensation, makes of one data set: shards of a few dozen images, each a
safetensors file that names its images in its header. Shards appear whole or not at all and never change, so runs may
read and add at the same time and be killed at any time. Images are encoded one by one, so that an encoding from the
cache equals a fresh one bit by bit.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from lessmore.config import Condensation
from lessmore.core.condense.source import Step
from lessmore.core.encoder import PLAIN, Encoded, encode
from lessmore.core.vit import ViT
from lessmore.storage.files import write_safetensors

SCHEMA = "lessmore.encodings/1"
_SHARD = 64  # images: what a killed run has to encode again at most


class CachedEncoding(NamedTuple):
    """One image, encoded."""

    encoded: Encoded
    """A batch of one; without steps, and without tokens (L = 0) where they were not asked for."""
    kept: int
    """Tokens that left the last block."""


def tokens_left(vision: ViT, steps: list[Step]) -> int:
    """Tokens of the (first) image that leave the last block, the class token included."""
    # Behind every token that leaves a block there is a patch that came.
    return int(steps[-1].target[0].amax()) + 1 + vision.shape.class_token if steps else vision.shape.tokens


def effective(condensation: Condensation) -> Condensation:
    """The same computation under one name: settings of a condensation that condenses nothing do not matter."""
    return condensation if condensation.active else replace(PLAIN, summary=condensation.summary)


def cache_folder(cache: bool | str | Path, identity: Mapping[str, Any], condensation: Condensation) -> Path | None:
    """Where encodings of what `identity` names lie; None where cache is False."""
    if cache is False:
        return None
    default = os.environ.get("LESSMORE_CACHE") or Path.home() / ".cache" / "lessmore"
    made_of = {"schema": SCHEMA, **identity, "condensation": asdict(condensation)}
    digest = hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()
    return Path(default if cache is True else cache) / "encodings" / digest[:32]


class Shards:
    """The encodings in one folder; with folder None it only remembers the last ones."""

    def __init__(self, folder: Path | None, tokens: bool) -> None:
        self.folder = folder
        self.tokens = tokens
        self._place: dict[str, tuple[Path, int]] = {}
        self._new: dict[str, CachedEncoding] = {}
        self._open: Callable[[Path], Any] = functools.lru_cache(maxsize=64)(lambda path: safe_open(path, "pt"))
        for path in sorted(folder.glob("*.safetensors")) if folder else ():
            self._place.update((name, (path, row)) for row, name in enumerate(self._ids(path)))

    def _ids(self, path: Path) -> list[str]:
        """The images of a shard; none where it cannot be read or lacks the tokens."""
        try:
            with safe_open(path, framework="pt") as shard:
                usable = not self.tokens or "tokens" in shard.keys()  # noqa: SIM118  (not a dict)
                return json.loads(shard.metadata()["ids"]) if usable else []
        except (SafetensorError, OSError, KeyError, TypeError, ValueError):
            return []

    def __contains__(self, name: str) -> bool:
        return name in self._place or name in self._new

    def get(self, name: str) -> CachedEncoding | None:
        """The encoding of an image, on the CPU."""
        if name in self._new or name not in self._place:
            return self._new.get(name)
        path, row = self._place[name]
        try:
            return self._read(path, row)
        except (SafetensorError, OSError):
            return None

    def _read(self, path: Path, row: int) -> CachedEncoding:
        shard = self._open(path)
        # Cloned, because where a tensor lies in memory may decide how a product of it is rounded.
        feature = shard.get_slice("feature")[row : row + 1].clone()
        tokens = shard.get_slice("tokens")[row : row + 1].clone() if self.tokens else feature.new_empty(1, 0, 0)
        return CachedEncoding(Encoded(feature, tokens, []), int(shard.get_slice("kept")[row : row + 1]))

    def put(self, name: str, entry: CachedEncoding) -> None:
        """Add an encoding; it is on the disk after a few dozen more, or after `flush`."""
        feature, tokens, _ = entry.encoded
        tokens = tokens.cpu() if self.tokens else feature.new_empty(1, 0, 0, device="cpu")
        self._new[name] = CachedEncoding(Encoded(feature.cpu(), tokens, []), entry.kept)
        if len(self._new) >= _SHARD:
            self.flush()

    def flush(self) -> None:
        """Write what is new as one shard. A cache that cannot be written is given up with a warning."""
        names, entries = list(self._new), list(self._new.values())
        self._new = {}
        if not names or self.folder is None:
            return
        tensors = {
            "feature": torch.cat([entry.encoded.feature for entry in entries]),
            "kept": torch.tensor([entry.kept for entry in entries]),
        }
        if self.tokens:
            tensors["tokens"] = torch.cat([entry.encoded.tokens for entry in entries])
        ids = json.dumps(names)
        path = self.folder / f"{hashlib.sha256(f'{self.tokens} {ids}'.encode()).hexdigest()[:32]}.safetensors"
        try:
            write_safetensors(path, tensors, {"schema": SCHEMA, "ids": ids})
        except OSError as error:
            warnings.warn(f"encodings are not cached ({error}); set LESSMORE_CACHE to a folder with room", stacklevel=2)
            self.folder = None
            return
        self._place.update((name, (path, row)) for row, name in enumerate(names))


class CachedEncoder:
    """The vision tower under one condensation, asked at most once for every image."""

    def __init__(self, vision: ViT, condensation: Condensation, shards: Shards) -> None:
        self.vision = vision
        self.condensation = condensation
        self.shards = shards

    def __call__(self, name: str, pixels: Callable[[], Tensor]) -> tuple[CachedEncoding, bool]:
        """The encoding on the tower's device, and whether it was made just now from pixels() [1, 3, H, W]."""
        stored = self.shards.get(name)
        if stored is not None:
            return self._placed(stored), False
        encoded = encode(self.vision, pixels(), self.condensation)
        entry = CachedEncoding(encoded, tokens_left(self.vision, encoded.steps))
        self.shards.put(name, entry)
        return entry, True

    def _placed(self, entry: CachedEncoding) -> CachedEncoding:
        device = self.vision.positions.device
        feature, tokens, steps = entry.encoded
        return CachedEncoding(Encoded(feature.to(device), tokens.to(device), steps), entry.kept)
