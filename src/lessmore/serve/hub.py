"""The route that Hugging Face's inference clients speak: zero-shot image classification with labels in the request."""

from __future__ import annotations

import base64
import binascii
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel

from lessmore.errors import LessmoreError
from lessmore.serve.answer import Asked, flat_names
from lessmore.serve.api import Classifier, Serving
from lessmore.serve.auth import Caller
from lessmore.serve.errors import RequestError
from lessmore.serve.schemas import HubRequest
from lessmore.serve.service import Service


class HubScore(BaseModel):
    """Probability of one label."""

    label: str
    score: float


hub_routes = APIRouter(tags=["Hugging Face"])


@hub_routes.post("/", include_in_schema=False)  # where clients look that know the server's address alone
@hub_routes.post("/zero-shot-image-classification")
async def classify_zero_shot(
    request: Request, service: Serving, caller: Classifier, body: HubRequest
) -> list[HubScore]:
    """Probabilities of labels, the best first. With a stream, in `parameters` or `X-Stream`, it adapts."""
    data = _decoded(body.inputs)
    stream = body.parameters.stream or request.headers.get("x-stream")
    if stream is not None:
        request.state.stream = stream
        pairs = await _adapted(service, caller, stream, body, data)
    else:
        pairs = await service.zero_shot(data, service.stream_config(_config(body)))
    return [HubScore(label=label, score=score) for label, score in pairs]


def _config(body: HubRequest) -> dict[str, Any]:
    template = body.parameters.hypothesis_template
    return {
        "classes": body.parameters.candidate_labels,
        "templates": "photo" if template is None else [template],
        "preset": "default",
        "R": None,
    }


async def _adapted(
    service: Service, caller: Caller, stream: str, body: HubRequest, data: bytes
) -> list[tuple[str, float]]:
    row = await service.find(stream, caller)
    classes = flat_names((await service.status(row))["config"]["classes"])
    if sorted(classes) != sorted(body.parameters.candidate_labels):
        raise RequestError(
            f"the labels are not the classes of stream {stream}", "send those, or make a stream with these labels"
        )
    (answer,) = await service.classify(row, [data], Asked(top=len(classes)), None)
    if isinstance(answer, LessmoreError):
        raise answer
    return [(one["label"], one["score"]) for one in answer["top"]]


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise RequestError("inputs is not base64", "send the image's bytes in base64") from error
