"""KServe's open inference protocol, v2. A stream is a sequence: its id is the request's `sequence_id`.

`sequence_start` begins a sequence: it makes the stream, or resets the one that has this id. `sequence_end` removes the
stream after its answers. Neither of both sends images to a stream that is there. A request without a sequence gets the
plain model's answers.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response
from pydantic import BaseModel

import lessmore
from lessmore.errors import LessmoreError
from lessmore.serve.answer import Answer, Asked
from lessmore.serve.api import Classifier, Serving
from lessmore.serve.auth import Caller
from lessmore.serve.errors import RequestError, UnavailableError, UnknownModelError, UnknownStreamError
from lessmore.serve.inference_body import HEADER, InferRequest, OutputTensor, infer_body, read_infer_body
from lessmore.serve.registry import StreamRow
from lessmore.serve.schemas import ID, NewStream
from lessmore.serve.service import Service

inference_routes = APIRouter(prefix="/v2", tags=["open inference protocol"])
ModelName = Annotated[str, Path(max_length=200)]
_OUTPUTS = {
    "label": ("BYTES", [-1]), "score": ("FP32", [-1]), "index": ("INT64", [-1]), "changed": ("BOOL", [-1]),
    "seq": ("INT64", [-1]), "labels": ("BYTES", [-1, -1]), "scores": ("FP32", [-1, -1]),
    "zero_shot_scores": ("FP32", [-1, -1]),
}  # fmt: skip
_BODY = {"requestBody": {"required": True, "content": {
    "application/json": {"schema": InferRequest.model_json_schema()},
    "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
}}}  # fmt: skip


class ServerMetadata(BaseModel):
    """What serves, and which extensions of the protocol it knows."""

    name: str
    version: str
    extensions: list[str]


class TensorMetadata(BaseModel):
    """An input or an output."""

    name: str
    datatype: str
    shape: list[int]


class ModelMetadata(BaseModel):
    """The model, its inputs and its outputs."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class ModelReady(BaseModel):
    """Whether the model answers."""

    name: str
    ready: bool


@inference_routes.get("/health/live", response_class=Response)
async def live() -> Response:
    """Whether the process answers."""
    return Response()


@inference_routes.get("/health/ready", response_class=Response)
async def ready(service: Serving) -> Response:
    """Whether a forward pass of the model is good, and the server takes images."""
    await _check_ready(service)
    return Response()


@inference_routes.get("")
async def server_metadata() -> ServerMetadata:
    """What serves."""
    return ServerMetadata(name="lessmore", version=lessmore.__version__, extensions=["binary_tensor_data", "sequence"])


@inference_routes.get("/models/{name}")
@inference_routes.get("/models/{name}/versions/1", include_in_schema=False)
async def model_metadata(service: Serving, name: ModelName) -> ModelMetadata:
    """The model's inputs and outputs."""
    _check_name(service, name)
    outputs = [TensorMetadata(name=one, datatype=kind, shape=shape) for one, (kind, shape) in _OUTPUTS.items()]
    image = TensorMetadata(name="image", datatype="BYTES", shape=[-1])
    return ModelMetadata(name=name, versions=["1"], platform="lessmore", inputs=[image], outputs=outputs)


@inference_routes.get("/models/{name}/ready")
@inference_routes.get("/models/{name}/versions/1/ready", include_in_schema=False)
async def model_ready(service: Serving, name: ModelName) -> ModelReady:
    """Whether the model answers."""
    _check_name(service, name)
    await _check_ready(service)
    return ModelReady(name=name, ready=True)


@inference_routes.post("/models/{name}/infer", openapi_extra=_BODY, response_class=Response)
@inference_routes.post("/models/{name}/versions/1/infer", include_in_schema=False)
async def infer(request: Request, service: Serving, caller: Classifier, name: ModelName) -> Response:
    """Answer images, in order. If one of them fails, so does the request; those before it have been adapted to."""
    _check_name(service, name)
    body, images = read_infer_body(await request.body(), request.headers.get(HEADER))
    top = _whole(body, "top", 5, 10_000)
    stream = _sequence(body)
    if stream is None:
        answers = [await _plain(service, data, top) for data in images]
    else:
        request.state.stream = stream
        answers = await _of_sequence(service, caller, stream, body, images, top)
    data, length = infer_body(body, name, _outputs(answers))
    kind = "application/json" if length is None else "application/octet-stream"
    return Response(data, media_type=kind, headers={} if length is None else {HEADER: str(length)})


def model_name(service: Service) -> str:
    """The model's name, as it can stand in an address."""
    return re.sub(r"[^\w.-]+", "-", service.vlm.name).strip("-")


def _check_name(service: Service, name: str) -> None:
    if name != model_name(service):
        raise UnknownModelError(f"there is no model {name[:100]!r}", f"take {model_name(service)}")


async def _check_ready(service: Service) -> None:
    if not await service.ready():
        raise UnavailableError("the model is not ready", "wait until /v2/health/ready answers 200", 1)


def _sequence(body: InferRequest) -> str | None:
    """The stream of a request; 0 and an empty text mean none, as the protocol has it."""
    given = body.parameters.get("sequence_id", 0)
    if given in (0, ""):
        return None
    stream = str(given)
    if isinstance(given, (bool, float)) or not re.fullmatch(ID, stream):
        raise RequestError("sequence_id cannot be the id of a stream", "take a number, or a-z, 0-9, - and _")
    return stream


def _whole(body: InferRequest, name: str, usual: int, most: int) -> int:
    value = body.parameters.get(name, usual)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise RequestError(f"the parameter {name} is no number from 1 to {most}", "leave it out, or mend it")
    return value


async def _of_sequence(
    service: Service, caller: Caller, stream: str, body: InferRequest, images: list[bytes], top: int
) -> list[Answer]:
    row = await _row(service, caller, stream, start=body.parameters.get("sequence_start") is True)
    patience = body.parameters.get("timeout") and math.ceil(_whole(body, "timeout", 1, 3_600_000_000) / 1000)
    answers = []
    for answer in await service.classify(row, images, Asked(top=top), patience or None):
        if isinstance(answer, LessmoreError):
            raise answer
        answers.append(answer)
    if body.parameters.get("sequence_end") is True:
        await service.delete(row)
    return answers


async def _row(service: Service, caller: Caller, stream: str, start: bool) -> StreamRow:
    try:
        row = await service.find(stream, caller)
    except UnknownStreamError as error:
        if not start:
            raise UnknownStreamError(f"there is no sequence {stream!r}", "begin it with sequence_start") from error
        given = NewStream().model_dump(exclude={"id", "name"})
        return await service.create(service.stream_config(given), caller, stream, None)
    if start:
        await service.reset(row)
    return row


async def _plain(service: Service, data: bytes, top: int) -> Answer:
    config = service.stream_config({"templates": "photo", "preset": "default", "R": None})
    pairs = await service.zero_shot(data, config)
    best = [{"label": label, "score": score, "zero_shot_score": score} for label, score in pairs[:top]]
    index = config["classes"].index(pairs[0][0])
    return {"label": pairs[0][0], "index": index, "score": pairs[0][1], "changed": False, "seq": 0, "top": best}


def _outputs(answers: list[Answer]) -> list[OutputTensor]:
    """Columns of the answers; where there are several classes, those of an image one after another."""
    rows, width = len(answers), len(answers[0]["top"])
    columns: dict[str, list[Any]] = {name: [one[name] for one in answers] for name in list(_OUTPUTS)[:5]}
    for name, key in (("labels", "label"), ("scores", "score"), ("zero_shot_scores", "zero_shot_score")):
        columns[name] = [one[key] for answer in answers for one in answer["top"]]
    return [
        OutputTensor(name, kind, [rows] if len(shape) == 1 else [rows, width], columns[name])
        for name, (kind, shape) in _OUTPUTS.items()
    ]
