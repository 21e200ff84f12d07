"""Encodings of images, computed once and shared by all runs whose encoder need not see the stream's state.

A folder holds what one tower, under one condensation, makes of one data set: shards of a few dozen images, each a
safetensors file that names its images in its header. A shard is written atomically and never changes, so runs can read
and add at the same time and be killed at any time. Images are encoded one by one, so that an encoding from the cache
equals a fresh one bit by bit.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lessmore.config import Condensation
from lessmore.core.algorithm import ENCODING
from lessmore.core.condense.source import Step
from lessmore.core.encoder import PLAIN, Encoded
from lessmore.core.stream_check import LARGEST
from lessmore.core.vit import ViT
from lessmore.errors import StateError
from lessmore.storage.cache import Cache, cache_folder, drop, warn_uncached
from lessmore.storage.sealed import read_facts, read_tensors, write_tensors
from lessmore.storage.state import Form, finite_problem

_log = logging.getLogger(__name__)
SCHEMA = "lessmore.encodings/2"
_MOST = 1 << 31  # bytes of a shard
_REMEDY = "its images are encoded again"
_OPEN = 16  # shards kept in memory
_SHARD = 64  # images: what a killed run has to encode again at most


class CachedEncoding(NamedTuple):
    """One image, encoded."""

    encoded: Encoded
    """A batch of one; without steps, and without tokens (L = 0) unless they were asked for."""
    kept: int
    """Tokens that left the last block."""


def tokens_left(vision: ViT, steps: list[Step]) -> int:
    """Tokens of the first image that leave the last block, the class token and registers among them.

    Args:
        vision: The tower.
        steps: What its condensing blocks did; empty means nothing was condensed.
    """
    # Tokens of the last block are numbered from 0, and each comes from at least one patch.
    return int(steps[-1].target[0].amax()) + 1 + vision.shape.first if steps else vision.shape.tokens


def canonical_condensation(condensation: Condensation) -> Condensation:
    """A condensation under its canonical name: if it condenses nothing, its other settings do not matter."""
    return condensation if condensation.active else replace(PLAIN, summary=condensation.summary)


def encodings_folder(cache: Cache, identity: Mapping[str, Any], condensation: Condensation) -> Path | None:
    """The folder of one kind of encoding, or None where there is no cache.

    Args:
        cache: See `lessmore.storage.cache.cache_folder`.
        identity: What decides an encoding besides the condensation: `Job.sight`.
        condensation: How the tower condenses.
    """
    made_of = {"schema": SCHEMA, "algorithm": ENCODING, **identity, "condensation": asdict(condensation)}
    digest = hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()
    return cache_folder(cache, "encodings", digest[:32])


class Shards:
    """The encodings in one folder. Without a folder it only remembers the latest ones.

    A shard is checked as a whole when the first of its images is asked for. A damaged one is removed with a line in the
    log, and its images are encoded again.
    """

    def __init__(self, folder: Path | None, tokens: bool, vision: ViT | None = None) -> None:
        """Index the shards of a folder.

        Args:
            folder: Where the shards are; None keeps nothing on disk.
            tokens: Whether encodings need their tokens; shards without them are then ignored.
            vision: The tower that made them; what it cannot have made is refused.
        """
        self.folder = folder
        self.tokens = tokens
        self._vision = vision
        self._place: dict[str, tuple[Path, int]] = {}
        self._new: dict[str, CachedEncoding] = {}
        self._open = functools.lru_cache(maxsize=_OPEN)(self._read)
        for path in sorted(folder.glob("*.safetensors")) if folder else ():
            self._place.update((name, (path, row)) for row, name in enumerate(self._ids(path)))

    def _ids(self, path: Path) -> list[str]:
        """The images that a shard claims to hold; none where it lacks the tokens."""
        facts = read_facts(path, SCHEMA)
        if not facts:
            _log.warning("%s is not a readable file of encodings; %s", path, _REMEDY)
            drop(path)
        ids = facts.get("ids")
        usable = isinstance(ids, list) and (facts.get("tokens") is True or not self.tokens)
        return ids if usable and isinstance(ids, list) and all(isinstance(name, str) for name in ids) else []

    def __contains__(self, name: str) -> bool:
        return name in self._place or name in self._new

    def get(self, name: str) -> CachedEncoding | None:
        """The encoding of an image, on the CPU."""
        if name in self._new or name not in self._place:
            return self._new.get(name)
        path, row = self._place[name]
        try:
            shard = self._open(path)
        except StateError as error:
            _log.warning("%s", error)
            drop(path)
            self._place = {image: place for image, place in self._place.items() if place[0] != path}
            return None
        # Cloned, because where a tensor lies in memory may decide how a product of it is rounded.
        feature = shard["feature"][row : row + 1].clone()
        tokens = shard["tokens"][row : row + 1].clone() if self.tokens else feature.new_empty(1, 0, 0)
        return CachedEncoding(Encoded(feature, tokens, []), int(shard["kept"][row]))

    def _read(self, path: Path) -> dict[str, Tensor]:
        """The tensors of a shard, checked."""
        try:
            tensors, facts = read_tensors(path, SCHEMA, _MOST, _REMEDY)
        except FileNotFoundError as error:
            raise StateError(f"{path} has gone; {_REMEDY}") from error
        count = sum(place[0] == path for place in self._place.values())
        kept = tensors.get("kept")
        usual = facts.get("folder") == path.parent.name and kept is not None and kept.ndim == 1 and len(kept) >= count
        if not usual or not self._possible(tensors, facts.get("tokens") is True):
            raise StateError(f"{path} does not hold the encodings it is named for; {_REMEDY}")
        return tensors

    def _possible(self, tensors: Mapping[str, Tensor], tokens: bool) -> bool:
        """Whether the tower can have made them."""
        n = len(tensors["kept"])
        if tensors.keys() != {"feature", "kept", *(("tokens",) if tokens else ())} or finite_problem(tensors):
            return False
        if self._vision is None:
            return all(len(tensor) == n for tensor in tensors.values())
        shape, dtype = self._vision.shape, self._vision.positions.dtype
        forms = {
            "feature": Form(torch.promote_types(dtype, torch.float32), (n, shape.embed)),
            "kept": Form(torch.int64, (n,)),
            "tokens": Form(dtype, (n, shape.blocks.depth, shape.blocks.width)),
        }
        if not all(forms[name].fits(tensor) for name, tensor in tensors.items()):
            return False
        bounds = [((tensors["feature"].norm(dim=-1) - 1).abs() < 1e-3), tensors["kept"] >= 1]
        most = LARGEST if shape.flexible else shape.tokens
        bounds += [tensors["kept"] <= most, *(t.abs() <= LARGEST for t in tensors.values())]
        return all(bool(bound.all()) for bound in bounds)

    def put(self, name: str, entry: CachedEncoding) -> None:
        """Add an encoding; it reaches the disk with its shard, after a few dozen more or at `flush`.

        Args:
            name: The image's id in the stream.
            entry: Its encoding; one with NaN or infinity is not kept.
        """
        feature, tokens = entry.encoded.feature, entry.encoded.tokens
        if not bool(feature.isfinite().all() and tokens.isfinite().all()):
            return
        tokens = tokens.cpu() if self.tokens else feature.new_empty(1, 0, 0, device="cpu")
        self._new[name] = CachedEncoding(Encoded(feature.cpu(), tokens, []), entry.kept)
        if len(self._new) >= _SHARD:
            self.flush()

    def flush(self) -> None:
        """Write what is new as one shard. After a failed write the cache stays off, with a warning."""
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
        digest = hashlib.sha256(f"{self.tokens} {json.dumps(names)}".encode()).hexdigest()
        path = self.folder / f"{digest[:32]}.safetensors"
        try:
            write_tensors(path, tensors, SCHEMA, {"ids": names, "tokens": self.tokens, "folder": self.folder.name})
        except OSError as error:
            warn_uncached("encodings", error)
            self.folder = None
            return
        self._open.cache_clear()
        self._place.update((name, (path, row)) for row, name in enumerate(names))


class CachedEncoder:
    """The vision tower under one condensation; each image is encoded at most once."""

    def __init__(self, encode: Callable[[Tensor], Encoded], vision: ViT, shards: Shards) -> None:
        """Put a cache before an encoder.

        Args:
            encode: Encodes images `[1, 3, H, W]` under the condensation.
            vision: The tower that it stands for.
            shards: The cache.
        """
        self.encode, self.vision, self.shards = encode, vision, shards

    def __call__(self, name: str, pixels: Callable[[], Tensor]) -> tuple[CachedEncoding, bool]:
        """The encoding of an image on the tower's device, and whether it was computed just now.

        Args:
            name: The image's id in the stream.
            pixels: Called only if the encoding is not cached; gives `[1, 3, H, W]`.
        """
        stored = self.shards.get(name)
        if stored is not None:
            return self._placed(stored), False
        encoded = self.encode(pixels())
        entry = CachedEncoding(encoded, tokens_left(self.vision, encoded.steps))
        self.shards.put(name, entry)
        return entry, True

    def _placed(self, entry: CachedEncoding) -> CachedEncoding:
        device = self.vision.positions.device
        feature, tokens = entry.encoded.feature, entry.encoded.tokens
        return CachedEncoding(Encoded(feature.to(device), tokens.to(device), entry.encoded.steps), entry.kept)
