"""One turn: an image of each of several streams, encoded together where that is possible, settled one by one.

Streams whose encoder does not look at their state share a pass of the tower if they share the tower and its condensing.
A stream with anchors in its encoder, with several views or with token counts of its own gets a pass of its own. Each
image is then settled by the stream's own method, in the way of `Answerer`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from lessmore.config import Condensation
from lessmore.core.condense.source import Step
from lessmore.core.encoder import Encoded
from lessmore.core.vit import ViT
from lessmore.engines.answered import Answered, plain_scores
from lessmore.engines.answers import Answerer
from lessmore.engines.split_encoder import split_encoder
from lessmore.errors import NonFiniteError
from lessmore.methods import FromEncoded, Setup


class NextImage(NamedTuple):
    """What a stream has for a turn."""

    answerer: Answerer
    """The stream's answer path."""
    pixels: Tensor
    """As its method looks at them."""
    track: str | None = None
    """The object that this is a frame of; see `lessmore.engines.tracks`."""


@torch.no_grad()
def take_turn(images: Sequence[NextImage], together: bool = True) -> list[Answered | NonFiniteError]:
    """Answer one image of each stream, and adapt.

    Args:
        images: Streams, all different, with the pixels of an image of each.
        together: Whether streams may share a pass of the tower. Answers then equal those of an `Adapter` to rounding,
            else exactly.
    """
    answers: dict[int, Answered | NonFiniteError] = {}
    for (vision, condensation, _), group in _groups(images).items() if together else ():
        if len(group) > 1:
            answers |= zip(group, _encoded_together(vision, condensation, [images[i] for i in group]), strict=True)
    for i, one in enumerate(images):
        if i not in answers:
            answers[i] = _answer(partial(one.answerer.predict, one.pixels, one.track))
    return [answers[i] for i in range(len(images))]


def _groups(images: Sequence[NextImage]) -> dict[tuple[ViT, Condensation, torch.Size], list[int]]:
    """Places of images that may share a pass, by tower, condensing and shape."""
    groups: dict[tuple[ViT, Condensation, torch.Size], list[int]] = defaultdict(list)
    for i, one in enumerate(images):
        setup = shared_setup(one.answerer)
        if setup is not None and len(one.pixels) == 1:
            groups[setup.vision, setup.preset.condensation, one.pixels.shape].append(i)
    return groups


def shared_setup(answerer: Answerer) -> Setup | None:
    """What a stream's images are encoded with, where others may share the pass; else None."""
    method = answerer.method
    setup = getattr(method, "setup", None)
    if not isinstance(method, FromEncoded) or method.wants is None or not isinstance(setup, Setup):
        return None
    # The shared pass computes in the type of the weights; whoever asked for another engine or precision gets that.
    own = setup.precision in (None, str(setup.vision.positions.dtype).removeprefix("torch."))
    if answerer.engine == "openvino" or not own:
        return None
    return None if setup.preset.condensation.rule == "sampling" else setup


def _encoded_together(
    vision: ViT, condensation: Condensation, images: Sequence[NextImage]
) -> list[Answered | NonFiniteError]:
    prefix, rest = split_encoder(vision, condensation)
    encoded = rest(prefix(torch.cat([one.pixels for one in images])), None)
    return [
        _answer(
            partial(
                one.answerer.answer, row(encoded, i), partial(plain_scores, one.answerer.setup, one.pixels), one.track
            )
        )
        for i, one in enumerate(images)
    ]


def _answer(ask: partial[Answered]) -> Answered | NonFiniteError:
    try:
        return ask()
    except NonFiniteError as error:
        return error


def row(encoded: Encoded, i: int) -> Encoded:
    """One image of an encoded batch, as a batch of one.

    Args:
        encoded: The batch.
        i: The image's place in it.
    """
    at = slice(i, i + 1)
    steps = [Step(s.block, s.stage, s.target[at], None if s.anchor is None else s.anchor[at]) for s in encoded.steps]
    return Encoded(encoded.feature[at], encoded.tokens[at], steps)
