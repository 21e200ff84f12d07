"""The object people hold: a model, a class list and a stream, adapted one image at a time."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from lessmore.config import Preset
from lessmore.config import preset as make_preset
from lessmore.core.condense.registry import reducer_for
from lessmore.core.condense.registry import resolve_reducer as make_reducer
from lessmore.core.condense.schedule import schedule
from lessmore.core.condense.source import SourceMap, source_map
from lessmore.core.debias import CHANGES, STRENGTH
from lessmore.core.encoder import PLAIN, encode
from lessmore.engines import Batching, build, check_engine
from lessmore.errors import ImageError, NonFiniteError
from lessmore.methods import Debiasing, FromViews, Method, Outcome, Setup, method_options, split_options
from lessmore.methods.zeroshot import zero_shot_logits
from lessmore.models.load import load
from lessmore.models.to_pixels import Image, to_pixels, to_views
from lessmore.models.vlm import VLM
from lessmore.prompts import Templates, class_names, prompts, template_texts
from lessmore.storage import statefile


@dataclass(frozen=True)
class Prediction:
    """The answer for one image. Score tensors are float32 on the CPU and sum to one."""

    label: str
    index: int
    scores: Tensor
    """Probability of every class after adaptation, [C]."""
    zero_shot_scores: Tensor
    """The same before adaptation, from the same forward pass, [C]."""
    entropy: float
    """Entropy of `zero_shot_scores`, in nats."""
    refused: bool = False
    """The adapted answer was not finite: this is the plain model's, and nothing was stored."""
    trace: SourceMap | None = None
    """Where every patch went, block by block; only when asked for."""

    @property
    def changed(self) -> bool:
        """Whether adaptation changed the answer."""
        return self.index != int(self.zero_shot_scores.argmax())


@dataclass
class Health:
    """How the adaptation is doing."""

    seen: int = 0
    """Images answered."""
    changed: int = 0
    """Of these, answers that adaptation changed."""
    refused: int = 0
    """Images that could not be read, or whose adapted answer was not finite; never stored."""
    stored: int = 0
    """Images that entered the reservoir (some have left it since)."""
    fill: float = 0.0
    """Share of the reservoir's slots in use."""
    empty_classes: int = 0
    """Classes the reservoir holds nothing of."""
    strength: float = 0.0
    """How much of the stream's centre is taken off the answers, 0 to 1."""
    domain_changes: int = 0
    """Changes of domain that were noticed."""

    @property
    def agreement(self) -> float:
        """Share of the answers that equal zero-shot's."""
        return 1 - self.changed / self.seen if self.seen else 1.0


class Adapter:
    """Classifies a stream of images; make one with `lessmore.adapt`."""

    def __init__(self, vlm: VLM, setup: Setup, prompts: str, method: str, seed: int = 0, engine: str = "auto") -> None:
        self.vlm = vlm
        self.classes = list(setup.classes)
        self.method_name = method
        self.preset: Preset = setup.preset
        self._prompts = prompts
        self._seed = seed
        shape, condensation = vlm.vision.shape, setup.preset.condensation
        schedule(shape.patches, shape.blocks.depth, condensation)  # refuse an impossible one before any image
        self._setup = setup
        self._engine = engine
        self._method: Method = build(engine, method, setup)
        self._health = Health()

    @torch.no_grad()
    def __call__(self, image: Image, trace: bool = False) -> Prediction:
        """Classify one image (path, bytes, PIL image, array, or preprocessed tensor [3, H, W]) and adapt."""
        try:
            pixels = self._pixels(image)
            prediction = self._read(self._method.predict(pixels), pixels[:1], trace)
        except (ImageError, NonFiniteError):
            self._health.refused += 1
            raise
        return self._counted(prediction)

    def _counted(self, prediction: Prediction) -> Prediction:
        self._health.seen += 1
        self._health.changed += prediction.changed
        self._health.refused += prediction.refused
        return prediction

    def stream(
        self, images: Iterable[Image], on_error: Literal["raise", "yield"] = "raise", trace: bool = False
    ) -> Iterator[Prediction | ImageError]:
        """Predictions in the order of `images`; with on_error=`yield` a bad image gives its error in its place."""
        answers = (
            self._in_chunks(images, trace) if isinstance(self._method, Batching) else self._one_by_one(images, trace)
        )
        for answer in answers:
            if isinstance(answer, ImageError) and on_error == "raise":
                raise answer
            yield answer

    def _one_by_one(self, images: Iterable[Image], trace: bool) -> Iterator[Prediction | ImageError]:
        for image in images:
            try:
                yield self(image, trace)
            except ImageError as error:
                yield error

    @torch.no_grad()
    def _in_chunks(self, images: Iterable[Image], trace: bool) -> Iterator[Prediction | ImageError]:
        """As many images at a time as the engine likes; whatever is not asked for has then been seen all the same."""
        assert isinstance(self._method, Batching)
        waiting = iter(images)
        while group := [self._try_pixels(image) for image in islice(waiting, self._method.size)]:
            good = [pixels for pixels in group if isinstance(pixels, Tensor)]
            outcomes = iter(self._method.predict_many(torch.cat(good)) if good else [])
            for pixels in group:
                if isinstance(pixels, ImageError):
                    self._health.refused += 1
                    yield pixels
                else:
                    yield self._counted(self._read(next(outcomes), pixels, trace))

    def _try_pixels(self, image: Image) -> Tensor | ImageError:
        try:
            return self._pixels(image)
        except ImageError as error:
            return error

    def reset(self) -> None:
        """Forget the stream."""
        self._method.reset()
        self._health = Health()

    def fork(self) -> Adapter:
        """An independent adapter on the same model that goes on from the same state."""
        other = Adapter.__new__(Adapter)
        other.__dict__.update(self.__dict__)
        other._method = build(self._engine, self.method_name, self._setup)
        other._method.restore(self._method.state())
        other._health = replace(self._health)
        return other

    def health(self) -> Health:
        """Counts since the start (or the last reset), and how the reservoir and the stream's centre stand."""
        health, used = replace(self._health), self._method.slots()
        if used is not None:
            health.fill, health.empty_classes = float(used.float().mean()), int((~used.any(dim=1)).sum())
        course = self._method.course() if isinstance(self._method, Debiasing) else None
        if course is not None:
            health.strength, health.domain_changes = float(course[STRENGTH]), int(course[CHANGES])
        return health

    def save(self, path: str | Path) -> None:
        """Write the state as one safetensors file, atomically."""
        facts = {"health": asdict(self._health), **self._identity()}
        statefile.write_state(Path(path), self._method.state(), facts)

    def restore(self, path: str | Path) -> None:
        """Go on from a file of `save`; a file of another model, class list or method is refused with the reason."""
        tensors, facts = statefile.read_state(Path(path), self._identity())
        self._method.restore(tensors)
        self._health = Health(**facts["health"])

    def _pixels(self, image: Image) -> Tensor:
        """What the method looks at: [1, 3, H, W], or [V, 3, H, W] where it wants views."""
        if isinstance(self._method, FromViews):
            return to_views(image, self.vlm, self._method.views, self._seed)
        return to_pixels(image, self.vlm)

    def _identity(self) -> dict[str, Any]:
        """What a saved state must share with this adapter."""
        options = method_options(self.method_name, self._setup.options)
        return {
            **({} if options is None else {"options": json.loads(json.dumps(asdict(options)))}),
            "model": self.vlm.fingerprint(),
            "classes": self.classes,
            "prompts": self._prompts,
            "method": self.method_name,
            "M": self.preset.adaptation.M,
        }

    def _read(self, outcome: Outcome, pixels: Tensor, trace: bool) -> Prediction:
        """Bring an outcome to the host; one that is not finite is answered by the plain model instead."""
        scores, zero_shot = outcome.scores.float().cpu(), outcome.zero_shot.float().cpu()
        refused = not bool(scores.isfinite().all() and zero_shot.isfinite().all())
        if refused:
            scores = zero_shot = self._plain(pixels)
        if outcome.stored is not None:
            self._health.stored += int(outcome.stored)
        index = int(scores.argmax())
        return Prediction(
            label=self.classes[index],
            index=index,
            scores=scores,
            zero_shot_scores=zero_shot,
            entropy=float(torch.special.entr(zero_shot).sum()),
            refused=refused,
            trace=source_map(outcome.steps) if trace and outcome.steps else None,
        )

    def _plain(self, pixels: Tensor) -> Tensor:
        """Zero-shot probabilities [C] of the whole, uncondensed model."""
        encoded = encode(self.vlm.vision, pixels, PLAIN)
        scores = zero_shot_logits(encoded, self._setup.text, self._setup.logit_scale)[0].softmax(dim=-1).float().cpu()
        if not scores.isfinite().all():
            raise NonFiniteError(
                f"the model answers this image with NaN or infinity in {self.vlm.dtype}; "
                "load it in float32 or bfloat16, or check its weights"
            )
        return scores


def adapt(
    model: Any,
    classes: Sequence[str],
    templates: Templates = "photo",
    method: str = "tca",
    preset: str = "default",
    R: float | None = None,
    reducer: str = "auto",
    engine: str = "auto",
    seed: int = 0,
    tokenizer: Any = None,
    preprocess: Any = None,
    cache: bool | str | Path = True,
    **options: Any,
) -> Adapter:
    """An `Adapter` for a model and a class list.

    model: whatever `lessmore.load` takes. templates: a named set, or strings with `{}`. method, preset, reducer: see
    `list_methods`, `list_presets`, `list_reducers`; reducer `auto` condenses for `tca` alone. R: kept fraction of the
    tokens (the preset's, 0.9, if not given). engine: what runs a step, see `list_engines`; `auto` picks by the model's
    device. cache: keep class embeddings on disk, at the given place if it is a path. seed: of the random views, where
    the method looks at such. options: single fields of the preset, such as `lam=2` or `K=3`, and the method's own, such
    as `alpha=4` of `tda`.
    """
    check_engine(engine)
    vlm = load(model, tokenizer, preprocess)
    own, shared = split_options(method, options)
    chosen = make_preset(preset, **shared, **({} if R is None else {"R": R}))
    chosen = chosen._replace(condensation=make_reducer(reducer_for(reducer, method), chosen.condensation, shared))
    names = class_names(classes)
    written = hashlib.sha256(json.dumps(prompts(names, templates)).encode()).hexdigest()
    text = vlm.classifier(names, templates, cache=cache)
    setup = Setup(vlm.vision, text, vlm.logit_scale, chosen, vlm, tuple(names), template_texts(templates), own)
    return Adapter(vlm, setup, written, method, seed, engine)
