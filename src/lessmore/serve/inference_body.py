"""Bodies of the open inference protocol, v2: tensors as JSON, or as bytes after the JSON (its binary data extension).

Images are a tensor of type BYTES. In JSON each of its elements is the image in base64. In binary form each element is
its length, as 4 bytes in little endian, and then the image as it is.
"""

from __future__ import annotations

import base64
import binascii
import json
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, Field, ValidationError

from lessmore.serve.errors import RequestError

HEADER = "Inference-Header-Content-Length"
"""Says how many bytes of a body are JSON."""
_LENGTH = struct.Struct("<I")
_NUMBERS = {"FP32": np.float32, "INT64": np.int64, "BOOL": np.bool_}
_SEE = "see /docs, and the open inference protocol, v2"

Parameters = dict[str, str | int | float | bool]


class InputTensor(BaseModel):
    """An input, with its data in JSON or after it."""

    name: str
    shape: Annotated[list[int], Field(max_length=8)]
    datatype: str
    parameters: Parameters = {}
    data: list[Any] | None = None


class RequestedOutput(BaseModel):
    """An output that a client wants."""

    name: str
    parameters: Parameters = {}


class InferRequest(BaseModel):
    """The JSON of an inference request; what it has beside this is ignored, as the protocol wants it."""

    id: Annotated[str, Field(max_length=200)] | None = None
    parameters: Parameters = {}
    inputs: Annotated[list[InputTensor], Field(min_length=1, max_length=16)]
    outputs: Annotated[list[RequestedOutput], Field(max_length=64)] | None = None


@dataclass(frozen=True)
class OutputTensor:
    """An output tensor."""

    name: str
    datatype: str
    shape: Sequence[int]
    values: Sequence[Any]
    """Flat: texts for BYTES, else numbers."""


def read_infer_body(data: bytes, header: str | None) -> tuple[InferRequest, list[bytes]]:
    """The request of a body, and its images.

    Args:
        data: The body.
        header: Value of `Inference-Header-Content-Length`; None where all of the body is JSON.

    Raises:
        RequestError: It is not a request with one tensor of images.
    """
    if header is not None and not (header.isascii() and header.isdigit() and int(header[:18]) <= len(data)):
        raise RequestError(f"{HEADER} is not a number of bytes of the body", _SEE)
    length = len(data) if header is None else int(header)
    try:
        request = InferRequest.model_validate_json(data[:length])
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = " ".join(str(part) for part in first["loc"])[:200]
        wrong = f"{where or 'the body'}: {first['msg']}".encode("ascii", "replace").decode()
        raise RequestError(wrong, _SEE) from error
    if len(request.inputs) != 1 or request.inputs[0].name != "image" or request.inputs[0].datatype != "BYTES":
        raise RequestError("the request has not exactly one input, image, of type BYTES", _SEE)
    return request, _images(request.inputs[0], data[length:])


def _images(tensor: InputTensor, rest: bytes) -> list[bytes]:
    size = tensor.parameters.get("binary_data_size")
    if size is None:
        images = [_decoded(one) for one in _flat(tensor.data or [])]
    elif tensor.data is not None or size != len(rest):
        raise RequestError("binary_data_size is not what follows the JSON", _SEE)
    else:
        images = list(_elements(rest))
    count = 1
    for length in tensor.shape:
        count *= length
    if not images or count != len(images) or min(tensor.shape, default=0) < 1:
        raise RequestError(f"the shape {tensor.shape} does not fit {len(images)} images", "give [number of images]")
    return images


def _flat(values: list[Any]) -> Iterable[Any]:
    for value in values:
        if isinstance(value, list):
            yield from value  # [N, 1]; anything deeper is refused as no text
        else:
            yield value


def _decoded(text: Any) -> bytes:
    try:
        if not isinstance(text, str):
            raise ValueError
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise RequestError(
            "an element of image is not base64", "send base64, or use the binary data extension"
        ) from error


def _elements(data: bytes) -> Iterable[bytes]:
    place = 0
    while place < len(data):
        end = place + _LENGTH.size
        if end > len(data) or (end := end + _LENGTH.unpack_from(data, place)[0]) > len(data):
            raise RequestError("the binary data of image ends in the middle of an element", _SEE)
        yield data[place + _LENGTH.size : end]
        place = end


def infer_body(request: InferRequest, model: str, outputs: Sequence[OutputTensor]) -> tuple[bytes, int | None]:
    """The body of an answer, and how many bytes of it are JSON where others follow.

    Args:
        request: What was asked for.
        model: The model's name.
        outputs: All outputs there are.

    Raises:
        RequestError: The request wants an output that there is not.
    """
    known = {one.name: one for one in outputs}
    wanted = request.outputs or [RequestedOutput(name=name) for name in known]
    odd = next((one.name for one in wanted if one.name not in known), None)
    if odd is not None:
        raise RequestError(f"there is no output {odd[:100]!r}", f"take some of {', '.join(known)}")
    told, tails = [], []
    for one in wanted:
        binary = one.parameters.get("binary_data", request.parameters.get("binary_data_output", False))
        tail = _binary(known[one.name]) if binary is True else None
        told.append(_described(known[one.name], tail))
        tails.append(tail or b"")
    about = {"model_name": model, "model_version": "1", "outputs": told}
    if request.id is not None:
        about["id"] = request.id
    head = json.dumps(about).encode()
    return head + b"".join(tails), len(head) if any(tails) else None


def _described(output: OutputTensor, tail: bytes | None) -> dict[str, Any]:
    about: dict[str, Any] = {"name": output.name, "datatype": output.datatype, "shape": list(output.shape)}
    if tail is None:
        return {**about, "data": list(output.values)}
    return {**about, "parameters": {"binary_data_size": len(tail)}}


def _binary(output: OutputTensor) -> bytes:
    if output.datatype == "BYTES":
        texts = [str(value).encode() for value in output.values]
        return b"".join(_LENGTH.pack(len(text)) + text for text in texts)
    return np.asarray(output.values, dtype=_NUMBERS[output.datatype]).tobytes()
