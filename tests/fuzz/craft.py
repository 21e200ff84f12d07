"""Content that makes no sense, under a right checksum: what somebody who knows the format could write."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from types import NoneType
from typing import Any

import torch
from torch import Tensor

from lessmore.storage import sealed

Tensors = dict[str, Tensor]


def _number(value: float) -> Callable[[Tensor, random.Random], Tensor]:
    def put(tensor: Tensor, dice: random.Random) -> Tensor:
        changed = tensor.clone() if tensor.is_floating_point() else tensor.double()
        changed.view(-1)[dice.randrange(changed.numel())] = value
        return changed

    return put


def _huge(tensor: Tensor, dice: random.Random) -> Tensor:
    if tensor.dtype == torch.bool:
        return tensor.long() * 2**40
    sign = dice.choice((-1, 1))
    return torch.full_like(tensor, sign * 1e30) if tensor.is_floating_point() else torch.full_like(tensor, sign * 2**40)


def _shape(tensor: Tensor, dice: random.Random) -> Tensor:
    return dice.choice([tensor[None], tensor.reshape(-1)[:-1].clone(), torch.cat([tensor.reshape(-1)] * 2)])


def _type(tensor: Tensor, dice: random.Random) -> Tensor:
    kinds = [torch.float64, torch.float16, torch.int32, torch.bool, torch.bfloat16, torch.uint8]
    return tensor.to(dice.choice([kind for kind in kinds if kind != tensor.dtype]))


CRAFTS: tuple[Callable[[Tensor, random.Random], Tensor], ...] = (
    _number(math.nan),
    _number(math.inf),
    _number(-math.inf),
    _huge,
    _shape,
    _type,
)


def crafted_tensors(tensors: Tensors, dice: random.Random, fewer: bool = True) -> tuple[Tensors, str]:
    """One tensor that cannot be, too many or (where `fewer`) too few of them; and which."""
    name = dice.choice([name for name, tensor in sorted(tensors.items()) if tensor.numel()])
    changed = dict(tensors)
    kind = dice.choice([kind for kind in range(len(CRAFTS) + 2) if fewer or kind != len(CRAFTS)])
    if kind < len(CRAFTS):
        changed[name] = CRAFTS[kind](tensors[name], dice).contiguous()
    elif kind == len(CRAFTS):
        del changed[name]
    else:
        changed[f"{name}."] = tensors[name].clone()
    return changed, f"{CRAFTS[kind].__name__ if kind < len(CRAFTS) else 'names'} {name}"


ODD: tuple[Any, ...] = (None, -1, 2**60, 1e400, math.nan, "", "x" * 1000, [], [[]], {}, {"a": 1}, True, -0.5, "\ud800")


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to everything inside a value of JSON."""
    if path:
        yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield from places(one, (*path, key))


def _cannot_be(name: Any, value: Any, odd: Any) -> bool:
    """Whether this is nonsense in the place of the value, not merely another value: a forgery is beyond a checksum."""
    if value is None and (name == "unknown_score" or isinstance(name, int)):
        return isinstance(odd, (str, list, dict))  # where a figure may be missing, any figure is merely another value
    if name in ("seed", "pixels", "stream") or value is None or isinstance(value, str):
        return not isinstance(odd, (str, int, NoneType))
    if isinstance(value, bool):
        return not isinstance(odd, bool)
    if value == {}:
        return not isinstance(odd, (dict, NoneType))
    return odd is not None and (not isinstance(value, float) or odd not in (-1, -0.5))


def crafted_json(value: Any, dice: random.Random, *names: str) -> tuple[Any, str]:
    """The value with something odd somewhere inside; only below fields of these names where there are some."""
    changed = json.loads(json.dumps(value))
    known = [place for place in places(changed) if not names or place[0] in names]
    *way, last = dice.choice(known)
    holder = changed
    for step in way:
        holder = holder[step]
    odd = dice.choice([odd for odd in ODD if _cannot_be(last, holder[last], odd)])
    if isinstance(holder, dict) and dice.random() < 0.2:
        del holder[last]
        return changed, f"without {way} {last}"
    holder[last] = odd
    return changed, f"{[*way, last]} = {str(odd)[:30]!r}"


def rewrite_tensors(file: Path, schema: str, dice: random.Random, names: tuple[str, ...] = ()) -> str:
    """Craft a file of `write_tensors` in place: its tensors, or what it says of itself."""
    tensors, facts = sealed.read_tensors(file, schema, 1 << 30, "")
    if dice.random() < 0.7:
        tensors, told = crafted_tensors(tensors, dice)
    else:
        facts, told = crafted_json(facts, dice, *names)
    sealed.write_tensors(file, tensors, schema, facts)
    return told
