"""Answers for other machines: only what has changed, or all of them."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Literal

from PIL import Image

from lessmore.cameras.answer import CameraAnswer, Sink

Notify = Literal["changes", "all"]


class Notices(Sink):
    """A sink that sends answers on: one of each source at first, then those with another label."""

    def __init__(self, notify: Notify) -> None:
        """Nothing has been sent.

        Args:
            notify: Whether every answer is sent.
        """
        super().__init__()
        self._notify = notify
        self._labels: dict[str, str | None] = {}

    def put(self, answer: CameraAnswer, image: Image.Image | None) -> None:
        """Send an answer if it says something new.

        Args:
            answer: The answer; one that is an error is not sent.
            image: Not looked at: no picture leaves the machine.
        """
        if answer.error is not None:
            return
        label = None if answer.unknown else answer.label
        known = answer.source in self._labels and self._labels[answer.source] == label
        if self._notify == "all" or not known:
            self._labels[answer.source] = label
            self.send(answer)

    def send(self, answer: CameraAnswer) -> None:
        """Send an answer without waiting for anybody."""
        raise NotImplementedError


def answer_json(answer: CameraAnswer) -> str:
    """An answer as JSON."""
    return json.dumps(asdict(answer))
