"""Damage: what disks, networks and people do to the bytes of a file."""

from __future__ import annotations

import random
from collections.abc import Callable

ByteChange = Callable[[bytes, random.Random], bytes]


def flip(data: bytes, dice: random.Random) -> bytes:
    """One to eight bits, anywhere."""
    changed = bytearray(data)
    for _ in range(dice.randint(1, 8)):
        changed[dice.randrange(len(changed))] ^= 1 << dice.randrange(8)
    return bytes(changed)


def flip_early(data: bytes, dice: random.Random) -> bytes:
    """Bytes of the first kilobyte, where headers are."""
    changed = bytearray(data)
    for _ in range(dice.randint(1, 4)):
        changed[dice.randrange(min(1024, len(changed)))] = dice.randrange(256)
    return bytes(changed)


def cut(data: bytes, dice: random.Random) -> bytes:
    return data[: dice.randrange(len(data))]


def append(data: bytes, dice: random.Random) -> bytes:
    return data + dice.choice([b"\0", b"\n", b"{}\n", b"\xff" * 100, data, data[-100:], dice.randbytes(50)])


def swap(data: bytes, dice: random.Random) -> bytes:
    """Two pieces in each other's place."""
    a, b, c, d = sorted(dice.randrange(len(data) + 1) for _ in range(4))
    return data[:a] + data[c:d] + data[b:c] + data[a:b] + data[d:]


def repeat(data: bytes, dice: random.Random) -> bytes:
    a, b = sorted(dice.randrange(len(data) + 1) for _ in range(2))
    return data[:b] + data[a:b] + data[b:]


def drop(data: bytes, dice: random.Random) -> bytes:
    a, b = sorted(dice.randrange(len(data) + 1) for _ in range(2))
    return data[:a] + data[b:]


def blank(data: bytes, dice: random.Random) -> bytes:
    """A hole, as a crash leaves it."""
    a, b = sorted(dice.randrange(len(data) + 1) for _ in range(2))
    return data[:a] + bytes(b - a) + data[b:]


def lines(data: bytes, dice: random.Random) -> bytes:
    """A line left out, given twice, or moved."""
    rows = data.split(b"\n")
    row = rows.pop(dice.randrange(len(rows)))
    for _ in range(dice.randrange(3)):
        rows.insert(dice.randrange(len(rows) + 1), row)
    return b"\n".join(rows)


def digits(data: bytes, dice: random.Random) -> bytes:
    """Another digit in the place of one: what a careful hand changes."""
    places = [i for i, byte in enumerate(data[:20_000]) if 48 <= byte <= 57]
    if not places:
        return flip(data, dice)
    changed = bytearray(data)
    for place in dice.sample(places, min(len(places), dice.randint(1, 3))):
        changed[place] = 48 + (changed[place] - 48 + dice.randint(1, 9)) % 10
    return bytes(changed)


def nothing(data: bytes, dice: random.Random) -> bytes:
    return b""


def noise(data: bytes, dice: random.Random) -> bytes:
    return dice.randbytes(dice.randrange(1, 2 * len(data) + 2))


DAMAGE: tuple[ByteChange, ...] = (
    flip,
    flip,
    flip,
    flip_early,
    flip_early,
    cut,
    append,
    swap,
    repeat,
    drop,
    blank,
    lines,
    digits,
    digits,
    nothing,
    noise,
)


def damaged(data: bytes, dice: random.Random) -> bytes:
    """The bytes after one kind of damage, or two."""
    for _ in range(dice.choice([1, 1, 1, 2])):
        data = dice.choice(DAMAGE)(data, dice) if data else noise(b"", dice)
    return data
