"""From a request to a job: everything is resolved, nothing is left to chance, and a key names the result.

The key is a hash of all that can change the numbers, by content and not by name: weights, preprocessing, prompts,
settings, the stream and a sample of its pixels, precision and kind of device.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, is_dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lessmore.config import Preset
from lessmore.core.algorithm import UNKNOWN, algorithm
from lessmore.data.dataset import Dataset
from lessmore.data.registry import open_dataset
from lessmore.data.stream import Stream, make_stream
from lessmore.engines import encoder_key, resolve_engine
from lessmore.engines.calibration import calibration_pixels
from lessmore.errors import ModelError
from lessmore.lab.loader import load_one
from lessmore.lab.provenance import glance
from lessmore.lab.spec import RunSpec
from lessmore.lab.store import SCHEMA
from lessmore.methods import Setup, method_options
from lessmore.models.devices import choose_device
from lessmore.models.load import load
from lessmore.models.vlm import VLM
from lessmore.prompts import Templates, class_names, prompts, template_texts, templates_for

_NAME_BYTES = 240  # the longest name most file systems take is 255


@dataclass(frozen=True)
class Job:
    """A run with all its parts."""

    spec: RunSpec
    vlm: VLM
    stream: Stream
    settings: Preset
    classes: list[str]
    templates: Templates

    @cached_property
    def identity(self) -> dict[str, Any]:
        """All that can change the numbers, as JSON."""
        options = method_options(self.spec.method, self.spec.own_options())
        return {
            "schema": SCHEMA,
            "algorithm": algorithm(),
            **self.sight,
            "prompts": self._prompts(),
            "method": self.spec.method,
            "engine": self.engine,
            "options": {} if options is None else asdict(options),
            "condensation": asdict(self.settings.condensation),
            "adaptation": asdict(self.settings.adaptation),
            "stream": self.stream.fingerprint(),
            "seed": self.spec.seed,
            **({} if self.spec.unknown == "off" else {"unknown": [self.spec.unknown, UNKNOWN]}),
        }

    @cached_property
    def engine(self) -> str:
        """The engine that answers, never `auto`."""
        spec, settings = self.spec, self.settings.condensation
        asked = spec.unknown != "off"
        return resolve_engine(spec.engine, spec.method, self.vlm.vision, settings, spec.computed, asked)

    @cached_property
    def calibration(self) -> Tensor | None:
        """What int8 is calibrated on, `[N, 3, H, W]`: the folder asked for, or the first images of the stream."""
        if self.spec.computed != "int8":
            return None
        if self.spec.calibrate is not None:
            return calibration_pixels(self.spec.calibrate, self.vlm)
        loaded = (load_one(self.stream, self.vlm.preprocess, i).pixels for i in range(len(self.stream)))
        return calibration_pixels((torch.from_numpy(pixels) for pixels in loaded if pixels is not None), self.vlm)

    @cached_property
    def sight(self) -> dict[str, Any]:
        """What decides how an image of the data set is encoded, besides the condensation."""
        return {
            "model": self.vlm.fingerprint(),
            "preprocess": _describe(self.vlm.preprocess),
            "dataset": self.stream.dataset.fingerprint(),
            "pixels": glance(self.stream.dataset),
            "dtype": str(self.vlm.dtype).removeprefix("torch."),
            "device": self.vlm.device.type,
            "encoder": encoder_key(self.engine, self.spec.computed, self.calibration),
        }

    @cached_property
    def key(self) -> str:
        """Sha256 of the identity."""
        return hashlib.sha256(json.dumps(self.identity, sort_keys=True).encode()).hexdigest()

    @property
    def name(self) -> str:
        """The run's folder: readable, and unique by the start of its key."""
        spec, seen = self.spec, self.stream
        parts = [seen.dataset.name, Path(spec.model).name, spec.method, spec.reducer]
        parts += [f"R{self.settings.condensation.R:g}", spec.corruption or "", spec.order, f"seed{spec.seed}"]
        readable = "_".join(re.sub(r"[^A-Za-z0-9.]+", "-", part).strip("-.") for part in parts if part)
        return f"{readable[: _NAME_BYTES - 17]}_{self.key[:16]}"

    def setup(self, cache: bool | str | Path) -> Setup:
        """What the method is built from; `cache` says where class embeddings are kept, if at all."""
        # Cloned, because where a tensor lies in memory may decide how a product of it is rounded.
        text = self.vlm.classifier(self.classes, self.templates, cache=cache).clone()
        return Setup(
            vision=self.vlm.vision,
            text=text,
            logit_scale=self.vlm.logit_scale,
            preset=self.settings,
            vlm=self.vlm,
            classes=tuple(self.classes),
            templates=template_texts(self.templates),
            options=self.spec.own_options(),
            precision=self.spec.computed,
            calibration=self.calibration,
        )

    def _prompts(self) -> str:
        """Sha256 over the token ids, through which class names, templates and tokenizer have their effect."""
        texts = [prompt for row in prompts(self.classes, self.templates) for prompt in row]
        ids = self.vlm.tokenize(texts).cpu().contiguous()
        return hashlib.sha256(f"{len(self.classes)} {tuple(ids.shape)}".encode() + ids.numpy().tobytes()).hexdigest()


def prepare_job(spec: RunSpec, vlm: VLM | None = None, dataset: Dataset | None = None) -> Job:
    """Resolve a run: open its model and data set, and settle every setting.

    Args:
        spec: What was asked.
        vlm: The model that `spec` names, if it is open already.
        dataset: The data set that `spec` names, if it is open already.

    Raises:
        LessmoreError: A name is unknown, data are missing, or settings do not go together.
    """
    dataset = dataset or open_dataset(spec.dataset, None if spec.root is None else Path(spec.root))
    templates = _templates(spec.templates, dataset.templates)
    stream = make_stream(dataset, spec.order, spec.seed, spec.limit, spec.corruption)
    vlm = vlm or open_model(spec)
    settings = spec.settings(vlm.vision.shape)
    return Job(spec, vlm, stream, settings, class_names(dataset.classes), templates_for(templates, vlm.family))


def open_model(spec: RunSpec, network: bool = True) -> VLM:
    """The model on the device and in the precision asked for.

    Args:
        spec: The run.
        network: Whether the model may be looked up on the network.

    Raises:
        ModelError: It cannot be read, or put on the device.
    """
    device = choose_device(spec.device)
    try:
        return load(spec.model, network=network).to(device, spec.weights)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ModelError(f"the model cannot be put on device {spec.device!r} ({reason}); try --device cpu") from error


def _templates(wanted: str | None, own: Mapping[str, tuple[str, ...]]) -> Templates:
    """The data set's own set of that name, or else the package's."""
    if wanted is None:
        return next(iter(own.values()), "photo")
    return own.get(wanted, wanted)


def _describe(preprocess: Any) -> str:
    if is_dataclass(preprocess):
        return repr(preprocess)
    kind = preprocess if hasattr(preprocess, "__qualname__") else type(preprocess)
    return f"{kind.__module__}.{kind.__qualname__}"
