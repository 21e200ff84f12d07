"""The page's files, a look at a stream, and the frames of the rendered camera."""

from __future__ import annotations

import base64
import io
from html import escape
from pathlib import Path
from string import Template
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from PIL import Image
from pydantic import BaseModel
from torch import Tensor

import lessmore
from lessmore.assets import camera, world
from lessmore.serve.api import Classifier, ReadRow, Serving
from lessmore.serve.errors import NoPageFileError
from lessmore.serve.page.reference import reference_html

_HERE = Path(__file__).parent
_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_FILES = {path.name: path for path in sorted(_HERE.iterdir()) if path.suffix in _TYPES}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' blob: data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Permissions-Policy": "camera=(self), microphone=(), geolocation=()",
    "Cache-Control": "no-cache",
}
FRAMES = 60
"""Frames of the rendered camera in one answer."""

page_routes = APIRouter()


class StreamGlance(BaseModel):
    """What the live page shows of a stream beside its answers."""

    seq: int
    """Number of the image that this is about; 0 before the first since the stream is in memory."""
    strength: float
    """Share of the stream mean that is removed from the answers."""
    drift: float
    """Evidence of a change of domain."""
    frame: str | None
    """The image as the tower saw it, where the operator keeps thumbnails."""
    square: str | None
    """How the tower sees an image: `crop` the middle square, `squash` it into one, or `keep` its shape."""
    tokens: dict[str, Any] | None
    """Fate of every patch after every condensing block, and the colour of its token."""
    votes: list[dict[str, Any]]
    """The most probable classes, each with its stored images and what each of them added to the class's score."""


class CameraPicture(BaseModel):
    """A frame of the rendered camera."""

    number: int
    image: str
    """A PNG in base64."""
    label: str | None
    """What it shows; null where the lens is covered."""
    condition: str


class CameraPictures(BaseModel):
    """Frames of the rendered camera, and the stream to send them to."""

    stream: dict[str, Any]
    """Body of the `POST /v1/streams` that makes the stream."""
    frames: list[CameraPicture]


@page_routes.get("/", include_in_schema=False)
async def live_page(service: Serving) -> Response:
    """The page; it names no stream, for everybody may see it."""
    facts = {"model": service.vlm.name, "version": lessmore.__version__, "waiting": service.waiting}
    facts["thumbnails"] = str(service.settings.thumbnails).lower()
    facts["keys"] = str(service.settings.api_keys is not None).lower()
    text = Template((_HERE / "live.html").read_text(encoding="utf-8"))
    return Response(
        text.substitute({name: escape(str(value)) for name, value in facts.items()}),
        media_type="text/html; charset=utf-8",
        headers=_HEADERS,
    )


@page_routes.get("/docs", include_in_schema=False)
async def reference_page(request: Request) -> Response:
    """Every call and body in words; it needs no script and nothing from elsewhere."""
    text = Template((_HERE / "reference.html").read_text(encoding="utf-8"))
    page = text.substitute(version=escape(lessmore.__version__), reference=reference_html(request.app.openapi()))
    return Response(page, media_type="text/html; charset=utf-8", headers=_HEADERS)


@page_routes.get("/page/{file}", include_in_schema=False)
async def page_file(file: str) -> Response:
    """A script or style sheet of the page."""
    path = _FILES.get(file)
    if path is None:
        raise NoPageFileError(f"the page has no file {file[:100]!r}", "open / in a browser")
    return Response(path.read_bytes(), media_type=f"{_TYPES[path.suffix]}; charset=utf-8", headers=_HEADERS)


@page_routes.get("/v1/streams/{stream}/look", tags=["streams"])
async def look_at_stream(service: Serving, row: ReadRow) -> StreamGlance:
    """Where the tokens of a stream's newest image went, and which stored images spoke for its best classes."""
    return StreamGlance(**await service.glance(row))


@page_routes.get("/v1/streams/{stream}/frame", tags=["streams"], response_class=Response)
async def newest_frame(service: Serving, row: ReadRow) -> Response:
    """The newest image as a JPEG, where the operator keeps thumbnails; else 204."""
    resident = service.streams.resident.get(row.id)
    frame = None if resident is None else resident.glance.frame
    return Response(frame, media_type="image/jpeg") if frame else Response(status_code=204)


@page_routes.get("/v1/camera", tags=["server"])
def rendered_camera(
    _: Classifier,
    kind: Literal["belt", "spot"] = "belt",
    seed: Annotated[int, Query(ge=0, lt=2**30)] = 1,
    start: Annotated[int, Query(ge=0, lt=10**6)] = 0,
    count: Annotated[int, Query(ge=1, le=FRAMES)] = 30,
) -> CameraPictures:
    """Frames of a rendered camera whose day turns to night; the truth comes with them, for whoever wants to count.

    Args:
        _: Who asks.
        kind: `belt`: every frame shows another object; `spot`: objects stay for several frames.
        seed: Which camera.
        start: Number of the first frame.
        count: How many frames.
    """
    classes = world.world_class_names(camera.camera_classes(kind))
    frames = [
        CameraPicture(
            number=one.number,
            image=base64.b64encode(_png(one.pixels)).decode(),
            label=None if one.label is None else classes[one.label],
            condition=one.condition,
        )
        for one in camera.camera_frames(kind, seed, start, count)
    ]
    return CameraPictures(stream={"classes": classes, **camera.CAMERAS[kind].setting}, frames=frames)


def _png(pixels: Tensor) -> bytes:
    file = io.BytesIO()
    array = (pixels * 255).round().byte().permute(1, 2, 0).contiguous().numpy()
    Image.fromarray(array).save(file, "PNG")
    return file.getvalue()
