"""Files with a seal: a SHA-256 over all they hold, checked before anything in them is used.

A safetensors file is sealed as a whole: the digest is in its header and is taken over the file with zeros in that
place. A JSON file is sealed by its content, so that it may be laid out in another way. The seal notices damage. It does
not prove who wrote a file, so readers still check that the content makes sense.
"""

from __future__ import annotations

import errno
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from safetensors import SafetensorError
from safetensors.torch import load, save_file
from torch import Tensor

from lessmore.errors import StateError
from lessmore.storage.files import read_file, replacing

_UNSEALED = "0" * 64
_MARK = b'"seal":"'
_MOST_JSON = 1 << 28
_CHUNK = 1 << 20
_NOT_JSON = (ValueError, RecursionError)
"""What the JSON parser raises for bytes that are not JSON."""


def write_tensors(path: Path, tensors: Mapping[str, Tensor], schema: str, facts: Mapping[str, Any]) -> None:
    """Write tensors and facts to a sealed safetensors file, atomically.

    Args:
        path: The file.
        tensors: Tensors by name, on any device.
        schema: The kind of file, as `name/version`.
        facts: What belongs to the tensors; anything JSON can hold.

    Raises:
        OSError: The file cannot be written.
    """
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    metadata = {"schema": schema, "facts": json.dumps(facts, sort_keys=True), "seal": _UNSEALED}
    with replacing(path) as new:
        try:
            save_file(plain, new, metadata)
        except SafetensorError as error:  # how safetensors reports a full disk
            raise OSError(errno.EIO, str(error), str(path)) from error
        _seal(new)


def read_tensors(path: Path, schema: str, limit: int, remedy: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and facts of a file of `write_tensors`, on the CPU.

    Args:
        path: The file.
        schema: The schema it must have.
        limit: Bytes it may have at most.
        remedy: What to do if the file cannot be used; ends the sentence of the error.

    Raises:
        FileNotFoundError: There is no such file.
        StateError: The file cannot be read, has another schema, or is damaged.
    """
    data = _bytes(path, limit, remedy)
    metadata = _metadata(data)
    _check_schema(path, metadata.get("schema"), schema, remedy)
    if not _sealed(data, metadata.get("seal")):
        _refuse(path, "is damaged: its checksum does not match", remedy)
    try:
        tensors = load(data)
        facts = json.loads(metadata["facts"])
    except Exception as error:  # sealed by someone on purpose; safetensors then raises anything
        raise StateError(f"{path} is not a readable file of tensors ({error}); {remedy}") from error
    if not isinstance(facts, dict):
        _refuse(path, "has no facts", remedy)
    return tensors, facts


def read_facts(path: Path, schema: str) -> dict[str, Any]:
    """The facts of a file of `write_tensors`, read from its header alone and before its seal is checked.

    Args:
        path: The file.
        schema: The schema it must have.

    Returns:
        The facts; empty where the file cannot be read or has another schema.
    """
    try:
        with open(path, "rb") as file:
            start = file.read(8)
            metadata = _metadata(start + file.read(min(int.from_bytes(start, "little"), _MOST_JSON)))
        facts = json.loads(metadata["facts"]) if metadata.get("schema") == schema else {}
    except (OSError, KeyError, TypeError, *_NOT_JSON):
        return {}
    return facts if isinstance(facts, dict) else {}


def write_sealed_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write an object as JSON with a seal, atomically.

    Args:
        path: The file.
        value: An object that JSON can hold, with a field `schema` for `read_json` to check.

    Raises:
        OSError: The file cannot be written.
    """
    plain = json.loads(json.dumps(value))
    with replacing(path) as new:
        new.write_text(json.dumps({**plain, "seal": seal_of(plain)}, indent=1) + "\n", encoding="utf-8")


def read_json(path: Path, schema: str, remedy: str) -> dict[str, Any]:
    """The object of a file of `write_sealed_json`, without its seal.

    Args:
        path: The file.
        schema: What its field `schema` must say.
        remedy: What to do if the file cannot be used; ends the sentence of the error.

    Raises:
        FileNotFoundError: There is no such file.
        StateError: The file cannot be read, has another schema, or is damaged.
    """
    try:
        value = json.loads(_bytes(path, _MOST_JSON, remedy))
    except _NOT_JSON as error:
        raise StateError(f"{path} is damaged: it is not JSON ({_short(error)}); {remedy}") from error
    if not isinstance(value, dict):
        _refuse(path, "holds no object", remedy)
    _check_schema(path, value.get("schema"), schema, remedy)
    seal = value.pop("seal", None)
    if seal != seal_of(value):
        _refuse(path, "is damaged: its checksum does not match", remedy)
    return value


def seal_of(value: Any) -> str:
    """The seal of a value of JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _bytes(path: Path, limit: int, remedy: str) -> bytes:
    try:
        return read_file(path, limit)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FileNotFoundError(error.errno, error.strerror, str(path)) from error
    except OSError as error:
        raise StateError(f"{path} cannot be read ({error.strerror}); {remedy}") from error


def _check_schema(path: Path, theirs: Any, ours: str, remedy: str) -> None:
    if theirs == ours:
        return
    if isinstance(theirs, str) and theirs.split("/")[0] == ours.split("/")[0]:
        _refuse(path, f"was written by another version of lessmore ({theirs}, this one reads {ours})", remedy)
    _refuse(path, f"is not a readable file of the form {ours}", remedy)


def _refuse(path: Path, what: str, remedy: str) -> NoReturn:
    raise StateError(f"{path} {what}; {remedy}")


def _short(error: Exception) -> str:
    return str(error)[:200]


def _seal(path: Path) -> None:
    """Put the digest of a safetensors file where its header has zeros; equal content gives equal bytes."""
    with open(path, "r+b") as file:
        header = _ordered(file.read(int.from_bytes(file.read(8), "little")))
        file.seek(8)
        file.write(header)
        digest = hashlib.sha256()
        file.seek(0)
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
        file.seek(8 + header.index(_MARK + _UNSEALED.encode()) + len(_MARK))
        file.write(digest.hexdigest().encode())


def _ordered(header: bytes) -> bytes:
    """The header with its metadata sorted by name: safetensors writes them in another order every time."""
    value = json.loads(header)
    value["__metadata__"] = dict(sorted(value["__metadata__"].items()))
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return text.encode().ljust(len(header))


def _sealed(data: bytes, seal: Any) -> bool:
    """Whether the digest in the header is that of the file with zeros in its place."""
    if not isinstance(seal, str) or len(seal) != len(_UNSEALED) or not seal.isascii():
        return False
    # The mark can only be a key of the JSON header: inside a string its quotes would be escaped.
    at = data.find(_MARK) + len(_MARK)
    if data[at : at + len(_UNSEALED)] != seal.encode():
        return False
    view, digest = memoryview(data), hashlib.sha256()
    for part in (view[:at], _UNSEALED.encode(), view[at + len(_UNSEALED) :]):
        digest.update(part)
    return digest.hexdigest() == seal


def _metadata(data: bytes) -> dict[str, Any]:
    """The header's metadata; empty if there is none."""
    try:
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        metadata = header["__metadata__"]
    except (*_NOT_JSON, KeyError, TypeError):
        return {}
    return metadata if isinstance(metadata, dict) else {}
