"""Routes of streams: `/v1/streams` and what lies under it."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Query, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.datastructures import UploadFile

from lessmore.errors import LessmoreError
from lessmore.serve.answer import Asked
from lessmore.serve.api import AdminRow, Classifier, ClassifyRow, Reader, ReadRow, Serving
from lessmore.serve.errors import BusyError, MediaTypeError, RequestError, error_body
from lessmore.serve.guard import error_response
from lessmore.serve.schemas import (
    ClassListChange,
    ClassName,
    ForkedStream,
    ImageAnswer,
    ImageAnswers,
    NewStream,
    StreamList,
    StreamStatus,
    StreamSummary,
)
from lessmore.serve.service import Service

_KEY = re.compile(r"[!-~]{1,200}")
_HEADERS = {
    "Idempotency-Key": ("the same key again gets the first answer", {"type": "string", "pattern": f"^{_KEY.pattern}$"}),
    "X-Timeout-Ms": ("how long an image may wait", {"type": "integer", "minimum": 1, "maximum": 3_600_000}),
}
_IMAGES = {
    "parameters": [
        {"name": name, "in": "header", "required": False, "description": text, "schema": schema}
        for name, (text, schema) in _HEADERS.items()
    ],
    "requestBody": {
        "required": True,
        "content": {
            "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
            "image/*": {"schema": {"type": "string", "format": "binary"}},
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {"image": {"type": "array", "items": {"type": "string", "format": "binary"}}},
                }
            },
        },
    },
}
_STATE = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}

_ANSWERS: dict[int | str, dict[str, Any]] = {200: {"model": ImageAnswer | ImageAnswers}, 207: {"model": ImageAnswers}}

stream_routes = APIRouter(prefix="/v1", tags=["streams"])


@stream_routes.post("/streams", status_code=201)
async def create_stream(
    service: Serving, caller: Classifier, body: Annotated[NewStream | None, Body()] = None
) -> StreamSummary:
    """Make a stream; it starts with nothing learned."""
    given = (body or NewStream()).model_dump()
    stream, name = given.pop("id"), given.pop("name")
    row = await service.create(service.stream_config(given), caller, stream, name)
    return StreamSummary(**service.summary(row))


@stream_routes.get("/streams")
async def list_streams(
    service: Serving,
    caller: Reader,
    after: Annotated[str, Query(max_length=32)] = "",
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> StreamList:
    """Streams by their ids."""
    rows = await service.page(caller, after, limit)
    following = rows[-1].id if len(rows) == limit else None
    return StreamList(streams=[StreamSummary(**service.summary(row)) for row in rows], next=following)


@stream_routes.get("/streams/{stream}")
async def show_stream(service: Serving, row: ReadRow) -> StreamStatus:
    """A stream's settings, its health and its last answer."""
    return StreamStatus(**await service.status(row))


@stream_routes.post("/streams/{stream}/images", openapi_extra=_IMAGES, responses=_ANSWERS)
async def classify_images(
    request: Request,
    service: Serving,
    row: ClassifyRow,
    top: Annotated[int, Query(ge=1, le=10_000)] = 5,
    track: Annotated[ClassName | None, Query()] = None,
    explain: Annotated[Literal["tokens"] | None, Query()] = None,
) -> Response:
    """Answer images of a stream, in order, and adapt to them.

    Images of one `track` are frames of one object: the answer is that of all of them, and the first alone adapts.
    """
    asked, timeout = Asked(_key_of(request), top, track, explain is not None), _timeout_of(request)
    service.scheduler.check(row.id, 1)
    images, several = await _images_of(request, service.settings.queue)
    answers = await service.classify(row, images, asked, timeout)
    if not several:
        return error_response(answers[0]) if isinstance(answers[0], LessmoreError) else JSONResponse(answers[0])
    failed = any(isinstance(answer, LessmoreError) for answer in answers)
    bodies = [error_body(one) if isinstance(one, LessmoreError) else one for one in answers]
    return JSONResponse({"answers": bodies}, 207 if failed else 200)


@stream_routes.patch("/streams/{stream}", status_code=204)
async def change_classes(service: Serving, row: ClassifyRow, body: ClassListChange) -> None:
    """Change the class list, or the threshold of unknown images.

    What was learned of classes that stay is kept; a new class starts as unseen.
    """
    await service.relist(row, **body.model_dump())


@stream_routes.post("/streams/{stream}/reset", status_code=204)
async def reset_stream(service: Serving, row: ClassifyRow) -> None:
    """Forget what the stream learned."""
    await service.reset(row)


@stream_routes.post("/streams/{stream}/fork", status_code=201)
async def fork_stream(
    service: Serving, row: ClassifyRow, caller: Classifier, body: Annotated[ForkedStream | None, Body()] = None
) -> StreamSummary:
    """Make another stream that goes on from where this one stands."""
    given = body or ForkedStream()
    return StreamSummary(**service.summary(await service.fork(row, caller, given.id, given.name)))


@stream_routes.delete("/streams/{stream}", status_code=204)
async def delete_stream(service: Serving, row: ClassifyRow) -> None:
    """Remove a stream and all it learned."""
    await service.delete(row)


@stream_routes.get("/streams/{stream}/state", response_class=Response)
async def export_state(service: Serving, row: AdminRow) -> Response:
    """The state as `Adapter.save` writes it."""
    return Response(await service.export_state(row), media_type="application/octet-stream")


@stream_routes.put("/streams/{stream}/state", status_code=204, openapi_extra=_STATE)
async def import_state(request: Request, service: Serving, row: AdminRow) -> None:
    """Go on from a state that `Adapter.save` or this server wrote."""
    await service.import_state(row, await request.body())


@stream_routes.get("/events", response_class=StreamingResponse)
async def listen_to_all(service: Serving, caller: Reader) -> StreamingResponse:
    """Answers, changes of domain, errors and cameras of all streams, as server-sent events."""
    return _listened(service, caller.owner, None)


@stream_routes.get("/streams/{stream}/events", response_class=StreamingResponse)
async def listen_to_stream(service: Serving, row: ReadRow) -> StreamingResponse:
    """Answers, changes of domain, errors and the camera of a stream, as server-sent events."""
    return _listened(service, None, row.id)


def _listened(service: Service, owner: str | None, stream: str | None) -> StreamingResponse:
    if service.events.full:
        raise BusyError("too many programs listen to events", "try again later", 10)
    return StreamingResponse(service.events.listen(owner, stream), media_type="text/event-stream")


async def _images_of(request: Request, most: int) -> tuple[list[bytes], bool]:
    """The images of a body, and whether it may have several."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind in ("", "application/octet-stream") or kind.startswith("image/"):
        return [await request.body()], False
    if kind != "multipart/form-data":
        raise MediaTypeError(
            f"images are not sent as {kind[:100]!r}",
            "send the bytes as image/jpeg or the like, or as multipart/form-data: curl -F image=@photo.jpg",
        )
    async with request.form(max_files=most, max_fields=most) as form:
        parts = [value for _, value in form.multi_items()]
        images = [await part.read() for part in parts if isinstance(part, UploadFile)]
        if not images or len(images) < len(parts):
            raise RequestError("the form has no files, or other fields", "send files alone: curl -F image=@photo.jpg")
    return images, len(images) > 1


def _key_of(request: Request) -> str | None:
    key = request.headers.get("idempotency-key")
    if key is not None and not _KEY.fullmatch(key):
        raise RequestError("the Idempotency-Key is too long or has odd characters", "take up to 200 letters and digits")
    return key


def _timeout_of(request: Request) -> int | None:
    text = request.headers.get("x-timeout-ms")
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,7}", text) or not 1 <= int(text) <= 3_600_000:
        raise RequestError("X-Timeout-Ms is no number of milliseconds", "take 1 to 3600000")
    return int(text)
