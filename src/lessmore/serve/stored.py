"""What the files of a stream may say about it, beside its state; checked before anything uses it.

Checksums find damage. They do not stop whoever can write a file, so types and ranges are checked as well.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from lessmore.errors import StateError
from lessmore.serve.schemas import ClassName, ClassScore, GroupScore, ImageAnswer

Count = Annotated[int, Field(ge=0, le=10**12)]
"""Changes or images of one stream: thirty years at a thousand a second."""


Probability = Annotated[float, Field(ge=0, le=1.001)]
_STRICT = ConfigDict(strict=True, allow_inf_nan=False)


class _Stored(BaseModel):
    model_config = ConfigDict(extra="forbid", **_STRICT)


class StoredConfig(_Stored):
    """Arguments of `lessmore.adapt` that a stream has of its own; what their values mean is checked there."""

    classes: Annotated[list[str | tuple[str, list[str]]], Field(min_length=1)]
    templates: str | list[str]
    preset: str
    R: float | None
    method: str
    unknown: Literal["off", "auto"] | float = "off"


class StoredScore(ClassScore):
    """Probability of one class."""

    model_config = _STRICT
    score: Probability
    zero_shot_score: Probability


class StoredGroupScore(GroupScore):
    """Probability of a group."""

    model_config = _STRICT
    score: Probability


class StoredAnswer(ImageAnswer):
    """An answer that was given."""

    model_config = _STRICT
    seq: Count
    index: Count
    score: Probability
    entropy: Annotated[float, Field(ge=0, le=30)]
    domain_changes: Count
    frames: Annotated[int, Field(ge=1, le=10**12)]
    groups: list[StoredGroupScore]  # type: ignore[assignment]
    top: Annotated[list[StoredScore], Field(min_length=1)]  # type: ignore[assignment]

    @model_validator(mode="after")
    def _whole(self) -> StoredAnswer:
        missing = type(self).model_fields.keys() - self.model_fields_set - {"ms", "tokens"}
        if missing:
            raise ValueError(f"{min(missing)} is missing")
        return self


class StoredPlace(_Stored):
    """Where a stream stands."""

    number: Count
    seq: Count
    last: StoredAnswer | None
    keys: list[tuple[str, StoredAnswer]]
    files: list[str]


class StoredChange(_Stored):
    """The facts of a journal's record: one image, answered or refused."""

    number: Count
    answer: StoredAnswer | None
    key: str | None
    health: dict[str, Any]
    track: tuple[ClassName, Annotated[int, Field(ge=1, le=10**12)], float | None] | None
    """The image's track, the frames of the track so far, and the sum of their unknown scores."""


Kind = TypeVar("Kind", bound=BaseModel)


def check_stored(kind: type[Kind], value: Any, where: str) -> Kind:
    """The value as what it has to be.

    Args:
        kind: What it has to be.
        value: Anything JSON can hold.
        where: What it belongs to; begins the sentence of the error.

    Raises:
        StateError: It is something else.
    """
    try:
        return kind.model_validate_json(json.dumps(value))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "it"
        reason = f"{place}: {first['msg']}"
    raise StateError(f"{where} makes no sense ({reason[:200]}); put back a copy of the store, or reset the stream")
