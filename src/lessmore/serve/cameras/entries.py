"""What stands under `cameras:`, checked entry by entry before the server starts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lessmore.cameras.mqtt import mqtt_address
from lessmore.cameras.notices import Notify
from lessmore.cameras.reader import ReadingOptions
from lessmore.cameras.selection import SelectionRules
from lessmore.cameras.source import FrameSource, read_sources
from lessmore.cameras.video import DecodingOptions, check_hardware
from lessmore.cameras.webhook import web_address
from lessmore.errors import ConfigError
from lessmore.serve.schemas import ID, Classes, ClassName, Groups, Template

_ODD = re.compile(r"[^a-z0-9_-]+")


class CameraEntry(BaseModel):
    """One camera, as the operator wrote it; what is left out is the server's own."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)

    source: Annotated[str, Field(min_length=1)] | Annotated[int, Field(ge=0)]
    """A webcam's number, an address, a video file, or a folder."""
    stream: Annotated[str, Field(pattern=ID)] | None = None
    """Id of its stream; made of the source where there is none."""
    name: ClassName | None = None
    """What people call it."""
    key: str | None = None
    """Name of the API key that owns the stream; without one, keys with the scope admin alone see it."""
    classes: Classes | Groups | None = None
    templates: Template | Annotated[list[Template], Field(min_length=1, max_length=100)] = "photo"
    preset: Annotated[str, Field(max_length=100)] = "camera"
    R: Annotated[float, Field(gt=0, le=1)] | None = None
    method: Annotated[str, Field(max_length=100)] = "tca"
    unknown: Literal["off", "auto"] | float = "off"
    every: Annotated[float, Field(ge=0)] = 0.0
    """Seconds between two frames that are answered."""
    when: Literal["always", "motion"] = "always"
    track: bool = False
    frames: Literal["auto", "newest", "all"] = "auto"
    keyframes: bool = False
    hardware: str = "none"
    output: str | None = None
    """A file of rows, .jsonl."""
    save: str | None = None
    """A video of the answered frames, .mp4."""
    mqtt: str | None = None
    webhook: str | None = None
    notify: Notify = "changes"

    @property
    def config(self) -> dict[str, Any]:
        """What a new stream is made with, as `POST /v1/streams` takes it."""
        return self.model_dump(include={"classes", "templates", "preset", "R", "method", "unknown"})


@dataclass(frozen=True)
class ServedCamera:
    """A camera of the server; its stream's id is the name of its source."""

    entry: CameraEntry
    source: FrameSource
    reading: ReadingOptions

    @property
    def stream(self) -> str:
        """Id of its stream."""
        return self.source.name


def read_cameras(given: Any) -> list[ServedCamera]:
    """The cameras of a configuration.

    Args:
        given: What stands under `cameras:`; None means no camera.

    Raises:
        ConfigError: It is no list, or an entry names nothing that can be watched; the sentence says which entry.
    """
    if not isinstance(given or [], list):
        raise ConfigError("cameras is no list; write one entry for each camera, such as - source: rtsp://host/path")
    found: list[ServedCamera] = []
    for i, one in enumerate(given or [], 1):
        try:
            camera = _camera(_entry(one))
            if camera.stream in [other.stream for other in found]:
                raise ConfigError(f"its stream {camera.stream} is another camera's; give it a stream of its own")
        except ConfigError as error:
            raise ConfigError(f"camera {i}: {error}") from error
        found.append(camera)
    return found


def _entry(given: Any) -> CameraEntry:
    try:
        return CameraEntry.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "the entry"
        known = ", ".join(CameraEntry.model_fields)
        raise ConfigError(f"{place}: {first['msg']}; an entry may have {known}") from error


def _camera(entry: CameraEntry) -> ServedCamera:
    """An entry with its source; all that can be refused without opening the source is refused."""
    word = str(entry.source)
    (source,) = read_sources([word])
    if source.kind == "stdin":
        raise ConfigError("- is standard input, which a server does not have; use lessmore watch")
    check_hardware(entry.hardware)
    rules = SelectionRules(entry.every, entry.when == "motion", entry.track)
    reading = ReadingOptions(rules, DecodingOptions(entry.keyframes, entry.hardware), entry.frames)
    _check_outputs(entry)
    return ServedCamera(entry, replace(source, name=entry.stream or _id_of(source.name)), reading)


def _check_outputs(entry: CameraEntry) -> None:
    if entry.mqtt is not None:
        mqtt_address(entry.mqtt)
    if entry.webhook is not None:
        web_address(entry.webhook)
    for path, ending in ((entry.output, ".jsonl"), (entry.save, ".mp4")):
        if path is not None and Path(path).suffix.lower() != ending:
            raise ConfigError(f"{path} does not end in {ending}; give it that ending")
        if path is not None and not Path(path).absolute().parent.is_dir():
            raise ConfigError(f"there is no folder {Path(path).absolute().parent}; make it, or choose another")


def _id_of(name: str) -> str:
    return _ODD.sub("-", name.lower()).strip("-_")[:32] or "camera"


def owner_of(camera: ServedCamera, keys: Sequence[str]) -> str:
    """Name of the key that owns a camera's stream; empty where none does.

    Args:
        camera: The camera.
        keys: Names of the server's keys.

    Raises:
        ConfigError: There is no such key.
    """
    key = camera.entry.key
    if key is not None and key not in keys:
        raise ConfigError(
            f"camera {camera.stream}: there is no API key {key!r}; name one of the key file, or leave key out"
        )
    return key or ""
