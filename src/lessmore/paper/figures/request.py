"""What every figure is drawn from, and what drawing returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from PIL import Image
from torch import Tensor

from lessmore.config import Condensation, Preset
from lessmore.core import stream
from lessmore.core.reservoir import Reservoir
from lessmore.data.stream import Stream
from lessmore.errors import ConfigError, ImageError
from lessmore.lab.job import Job
from lessmore.lab.labels import method_label
from lessmore.lab.report.tokens import as_seen
from lessmore.methods import Setup
from lessmore.methods.tca import TCA, Answer, decide, look
from lessmore.models.to_pixels import to_pixels
from lessmore.models.vlm import VLM

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas


@dataclass(frozen=True)
class Request:
    """A model, a stream of labelled images, the classes and the settings."""

    vlm: VLM
    stream: Stream
    text: Tensor
    """Normalised class embeddings, [C, E]."""
    names: list[str]
    settings: Preset
    limit: int
    """Number of images of the stream that are used, at most."""
    preset: str = "own settings"
    """Name of the preset behind the settings."""

    @classmethod
    def from_job(cls, job: Job, limit: int, cache: bool | str | Path = True) -> Request:
        """The stream and settings of a run.

        Args:
            job: The run.
            limit: Images to look at, at most.
            cache: Where class embeddings are kept; see `lessmore.storage.cache.cache_folder`.
        """
        return cls(job.vlm, job.stream, job.setup(cache).text, job.classes, job.settings, limit, job.spec.preset)

    def about(self) -> dict[str, Any]:
        """What the figure is about, as JSON."""
        return {
            "model": self.vlm.name,
            "dataset": self.stream.dataset.name,
            "classes": len(self.names),
            "order": self.stream.order,
            "seed": self.stream.seed,
            "domains": sorted({visit.domain for visit in self.stream.visits}),
            "class_token": self.vlm.vision.shape.class_token,
            "preset": self.preset,
            "R": self.settings.condensation.R,
        }

    def where(self) -> str:
        """Model, data set and corruption in a few words, for captions."""
        domains = [d for d in self.about()["domains"] if d != "none"]
        shift = f" under {', '.join(domains[:3])}{' and more' if len(domains) > 3 else ''}" if domains else ""
        return f"{Path(self.vlm.name).name} on {self.stream.dataset.name}{shift}"

    def method(self) -> str:
        """Which TCA the figure is about."""
        return method_label("TCA", "tca", self.preset)

    def attention_words(self) -> str:
        """What a token's attention means in this tower."""
        if self.vlm.vision.shape.class_token:
            return "attention of the class token"
        return "attention received on average (the tower has no class token)"

    def condensation(self) -> Condensation:
        """The settings' condensation; refused if it condenses nothing."""
        if not self.settings.condensation.active:
            raise ConfigError("this figure shows what condensation does, and R=1 condenses nothing; give R below 1")
        return self.settings.condensation


@dataclass(frozen=True)
class Drawn:
    """A finished figure and its numbers."""

    figure: Canvas
    data: dict[str, Any]
    """Plain JSON data."""
    caption: str


@dataclass(frozen=True)
class PaperFigure:
    """A figure of the paper that can be drawn of any model and data."""

    name: str
    title: str
    """Which figure of the paper, in one line."""
    images: int
    """How many images it looks at by default."""
    guided: bool
    """Whether it runs an online stream."""
    draw: Callable[[Request], Drawn]


class FigureSample(NamedTuple):
    """One image of the stream."""

    i: int
    id: str
    label: int
    domain: str
    picture: Image.Image
    """The square that the tower sees."""
    pixels: Tensor
    """[1, 3, H, W]"""


def samples(request: Request, most: int | None = None) -> Iterator[FigureSample]:
    """The first readable images of the stream.

    Args:
        request: The stream and its limit.
        most: A smaller limit; None for none.

    Raises:
        ConfigError: No image can be read.
    """
    stream, found = request.stream, 0
    wanted = min(request.limit, request.limit if most is None else most)
    for i in range(len(stream)):
        if found == wanted:
            break
        try:
            image = stream.image(i)
            pixels = to_pixels(image, request.vlm)
        except ImageError:
            continue
        found += 1
        picture = as_seen(image, request.vlm)
        yield FigureSample(i, stream.id(i), stream.label(i), stream.visits[i].domain, picture, pixels)
    if not found:
        raise ConfigError("there is no image to look at; give a stream with readable images and a limit of 1 or more")


class Met(NamedTuple):
    """One step of TCA's stream."""

    sample: FigureSample
    before: Reservoir
    answer: Answer
    after: Reservoir
    feature: Tensor
    """L2-normalised feature of the sample, `[E]`."""


@torch.no_grad()
def online(request: Request) -> Iterator[Met]:
    """TCA over the images of the stream, with the reservoir before and after each."""
    vlm = request.vlm
    setup = Setup(vlm.vision, request.text, vlm.logit_scale, request.settings, vlm, tuple(request.names))
    method = TCA(setup)
    operations = method.make_operations(stream.apply)
    state = method.stream
    for sample in samples(request):
        before, encoded = state, look(setup, sample.pixels, state)
        answer, state = decide(setup, encoded, before, operations)
        yield Met(sample, before.reservoir, answer, state.reservoir, encoded.feature[0])


def reservoir_of(request: Request) -> Reservoir | None:
    """The reservoir after the stream; None if the condensation does not use anchors."""
    if not request.settings.condensation.uses_anchor:
        return None
    state = None
    for met in online(request):
        state = met.after
    return state


def at_ratio(config: Condensation, R: float) -> Condensation:
    """The same condensation at another R.

    Args:
        config: The condensation; a rate or a count of its own is dropped.
        R: Kept fraction of the tokens.
    """
    if config.counts == "rate":
        return replace(config, R=R, counts="table", rate=None)
    return replace(config, R=R, r=None)


def json_data(value: Any) -> Any:
    """A value as JSON data: tensors and arrays become lists, floats keep six significant digits."""
    if isinstance(value, dict):
        return {str(k): json_data(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_data(v) for v in value]
    if hasattr(value, "tolist"):
        return json_data(value.tolist())
    if isinstance(value, float):
        return float(f"{value:.6g}") if abs(value) < float("inf") else None
    return value
