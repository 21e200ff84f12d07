"""The bodies that the server takes, checked before anything looks at them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

ID = r"^[a-z0-9][a-z0-9_-]{0,31}$"
"""What a stream's id looks like."""


def _printable(text: str) -> str:
    if not text.strip() or any(ord(letter) < 32 or 0xD800 <= ord(letter) < 0xE000 for letter in text):
        raise ValueError("must have letters, and no control characters")
    return text


ClassName = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_printable)]
Classes = Annotated[list[ClassName], Field(min_length=1, max_length=10_000)]
Groups = Annotated[dict[ClassName, Classes], Field(min_length=1, max_length=10_000)]
"""Names by the names of their groups."""
Template = Annotated[str, Field(min_length=1, max_length=500), AfterValidator(_printable)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


class _Told(BaseModel):
    model_config = ConfigDict(use_attribute_docstrings=True)


class NewStream(_Body):
    """A stream to be made; what is left out is the server's own."""

    id: Annotated[str, Field(pattern=ID)] | None = None
    """Its id; one is drawn where there is none."""
    name: Annotated[str, Field(max_length=200), AfterValidator(_printable)] | None = None
    classes: Classes | Groups | None = None
    templates: Template | Annotated[list[Template], Field(min_length=1, max_length=100)] = "photo"
    preset: Annotated[str, Field(max_length=100)] = "default"
    R: Annotated[float, Field(gt=0, le=1)] | None = None
    method: Annotated[str, Field(max_length=100)] = "tca"
    unknown: Literal["off", "auto"] | float = "off"


class ClassListChange(_Body):
    """A change of a stream's class list, in this order, and of how unknown images are told."""

    rename: Annotated[dict[ClassName, ClassName], Field(max_length=10_000)] = {}
    """New names by present ones."""
    remove: Annotated[list[ClassName], Field(max_length=10_000)] = []
    add: Annotated[list[ClassName], Field(max_length=10_000)] | Groups = []
    unknown: Literal["off", "auto"] | float | None = None
    """`off`, `auto` or a threshold; left out, it stays as it is."""


class ForkedStream(_Body):
    """The stream that a fork becomes."""

    id: Annotated[str, Field(pattern=ID)] | None = None
    name: Annotated[str, Field(max_length=200), AfterValidator(_printable)] | None = None


class HubParameters(_Body):
    """Parameters as Hugging Face's inference clients send them."""

    candidate_labels: Classes
    hypothesis_template: Template | None = None
    stream: Annotated[str, Field(pattern=ID)] | None = None


class HubRequest(_Body):
    """A zero-shot image classification as Hugging Face's inference clients send it."""

    inputs: str
    """The image in base64."""
    parameters: HubParameters


class ErrorDetail(_Told):
    """What went wrong."""

    type: str
    message: str
    remedy: str


class ErrorBody(_Told):
    """Body of every error."""

    error: ErrorDetail


class ClassScore(_Told):
    """Probability of one class."""

    label: str
    score: float
    zero_shot_score: float


class GroupScore(_Told):
    """Probability of a group of classes."""

    label: str
    score: float


class ImageAnswer(_Told):
    """The answer for one image."""

    stream: str
    seq: int
    label: str
    index: int
    score: float
    zero_shot_label: str
    changed: bool
    refused: bool
    entropy: float
    unknown: bool = False
    unknown_score: float | None = None
    """How unlike all classes the image is; none where the stream does not ask."""
    domain_changes: int
    """Changes of domain that the stream has noticed."""
    domain_changed: bool
    """Whether this image was one."""
    track: str | None
    """The object that the image is a frame of."""
    frames: int
    """Frames of the object that the answer is made of."""
    group: str | None
    """The most probable group; null where the class list has none."""
    groups: list[GroupScore]
    top: list[ClassScore]
    ms: float | None = None
    """Time from the request's last byte to the answer; only in the answer itself."""
    tokens: str | None = None
    """With `explain=tokens`, a PNG as a data URI; not in an answer that is repeated for its key."""


class ImageAnswers(_Told):
    """Answers for several images, in their order; one without an answer has its error in its place."""

    answers: list[ImageAnswer | ErrorBody]


class CameraReport(_Told):
    """A camera that the server itself watches."""

    source: str
    """Its address without user and password, its number, or its file."""
    condition: Literal["opening", "live", "lost", "ended", "failed"]
    why: str
    answered: int
    """Frames since the server started."""
    failed: int
    dropped: dict[str, int]
    """Frames that were left out, by reason."""
    reconnects: int


class StreamSummary(_Told):
    """A stream, as the list has it."""

    id: str
    name: str | None
    owner: str
    created: float
    resident: bool
    camera: CameraReport | None = None
    """The camera behind it, where the server watches one."""


class StreamList(_Told):
    """A page of the list."""

    streams: list[StreamSummary]
    next: str | None
    """The id to give as `after` for the next page; None where this is the last."""


class StreamStatus(StreamSummary):
    """A stream, and how it is doing."""

    config: dict[str, Any]
    """Its settings. Classes with groups are pairs of a group and its names, in the order of the class list."""
    health: dict[str, float]
    seq: int
    last: ImageAnswer | None


class Alive(_Told):
    """The state of the server."""

    status: Literal["ok", "ready"]
