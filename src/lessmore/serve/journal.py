"""The form of a journal: records one after another, each with its length and checksums.

    record = length of the payload, CRC of the payload, CRC of these two, payload

A server that is killed leaves a whole record or the beginning of one. The beginning of one at the end of a journal was
never answered, and is cut. So is an end of zeros, which is what a loss of power leaves. Anything else that does not fit
is damage: it is reported, and nothing after it is used.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from safetensors.torch import load, save
from torch import Tensor

from lessmore.errors import StateError

_HEAD = struct.Struct("<II")
_CHECK = struct.Struct("<I")
_LONGEST = 1 << 30


@dataclass(frozen=True)
class Record:
    """One entry of a journal."""

    facts: dict[str, Any]
    tensors: dict[str, Tensor] = field(default_factory=dict)


def pack_record(facts: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bytes:
    """A record as bytes.

    Args:
        facts: Anything JSON can hold.
        tensors: Tensors by name, on whatever device.
    """
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    payload = save(plain, {"facts": json.dumps(facts, separators=(",", ":"))})
    head = _HEAD.pack(len(payload), zlib.crc32(payload))
    return head + _CHECK.pack(zlib.crc32(head)) + payload


def read_records(data: bytes, name: str) -> tuple[list[Record], int]:
    """The records of a journal, and how many of its bytes are whole.

    Args:
        data: The journal.
        name: What to call it in an error.

    Raises:
        StateError: It is damaged before its end.
    """
    records, place = [], 0
    while (payload := _payload(data, place, name)) is not None:
        records.append(_record(payload, name, place))
        place += _HEAD.size + _CHECK.size + len(payload)
    return records, place


def _payload(data: bytes, place: int, name: str) -> bytes | None:
    """The payload of the record at a place; None where the journal ends, or was torn."""
    start = place + _HEAD.size + _CHECK.size
    if len(data) < start or (not any(data[place:start]) and not any(data[place:])):
        return None
    head = data[place : place + _HEAD.size]
    if _CHECK.unpack_from(data, place + _HEAD.size)[0] != zlib.crc32(head):
        raise _damaged(name, place)
    length, check = _HEAD.unpack(head)
    if length > _LONGEST:
        raise _damaged(name, place)
    if len(data) < start + length:
        return None
    payload = data[start : start + length]
    if zlib.crc32(payload) != check:
        raise _damaged(name, place)
    return payload


def _record(payload: bytes, name: str, place: int) -> Record:
    try:
        size = int.from_bytes(payload[:8], "little")
        facts = json.loads(json.loads(payload[8 : 8 + size])["__metadata__"]["facts"])
        tensors = load(payload)
    except Exception as error:  # the checksum is right, so somebody made it so; safetensors then raises all kinds
        raise _damaged(name, place) from error
    if not isinstance(facts, dict):
        raise _damaged(name, place)
    return Record(facts, tensors)


def _damaged(name: str, place: int) -> StateError:
    return StateError(
        f"{name} is damaged at byte {place}, and nothing after it was used; "
        "put back a copy of the store, or reset or delete the stream"
    )
