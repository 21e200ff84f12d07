"""Where a camera's answers go beside the server's events: rows, a video, MQTT, a webhook.

One thread hands answers over, so that no output is used by two at a time and none keeps the server waiting.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from lessmore.cameras.answer import CameraAnswer, Sink
from lessmore.cameras.frame import Frame
from lessmore.cameras.mqtt import MqttSink
from lessmore.cameras.notices import Notify, answer_json
from lessmore.cameras.recording import AnnotatedVideo, next_part
from lessmore.cameras.webhook import Webhook
from lessmore.errors import ConfigError
from lessmore.serve.answer import Answer
from lessmore.serve.cameras.entries import ServedCamera
from lessmore.storage.files import open_plain

_LOG = logging.getLogger("lessmore.serve")
_SAME = ("label", "index", "score", "zero_shot_label", "changed", "entropy", "refused", "frames", "domain_changes")
"""Fields that an answer of the server and one of a camera share."""


class RowLog(Sink):
    """Appends answers to a file as lines of JSON."""

    def __init__(self, path: Path) -> None:
        """Open it.

        Args:
            path: The file; one that exists is appended to.

        Raises:
            OSError: It cannot be opened.
        """
        super().__init__()
        self._file = os.fdopen(open_plain(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab", buffering=0)

    def put(self, answer: CameraAnswer, image: Image.Image | None) -> None:
        """Append a line.

        Args:
            answer: The answer.
            image: Not looked at.
        """
        self._file.write(f"{answer_json(answer)}\n".encode())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class Outputs:
    """All outputs of all cameras."""

    def __init__(self, cameras: Sequence[ServedCamera]) -> None:
        """Open them.

        Args:
            cameras: The cameras.

        Raises:
            ConfigError: A file cannot be written.
        """
        self._sinks: dict[str, list[Sink]] = {}
        self._told: set[str] = set()
        try:
            self._shared = self._senders(cameras)
            for camera in cameras:
                self._sinks[camera.stream] = [*self._files(camera), *self._shared.get(camera.stream, [])]
        except OSError as error:
            raise ConfigError(f"{error.filename} cannot be written ({error.strerror}); choose another file") from error

    @staticmethod
    def _files(camera: ServedCamera) -> list[Sink]:
        files: list[Sink] = []
        entry = camera.entry
        if entry.output is not None:
            files.append(RowLog(Path(entry.output)))
        if entry.save is not None:
            files.append(AnnotatedVideo(next_part(Path(entry.save)), camera.stream))
        return files

    @staticmethod
    def _senders(cameras: Sequence[ServedCamera]) -> dict[str, list[Sink]]:
        """One connection for all cameras that send to the same place."""
        wanted: dict[tuple[type[MqttSink] | type[Webhook], str, Notify], list[str]] = {}
        for one in cameras:
            if one.entry.mqtt is not None:
                wanted.setdefault((MqttSink, one.entry.mqtt, one.entry.notify), []).append(one.stream)
            if one.entry.webhook is not None:
                wanted.setdefault((Webhook, one.entry.webhook, one.entry.notify), []).append(one.stream)
        found: dict[str, list[Sink]] = {}
        for (kind, address, notify), streams in wanted.items():
            sink = MqttSink(address, streams, notify) if kind is MqttSink else Webhook(address, notify)
            for stream in streams:
                found.setdefault(stream, []).append(sink)
        return found

    def put(self, answer: CameraAnswer, image: Image.Image | None) -> None:
        """Hand an answer over; an output that fails is given up, and the log says so.

        Args:
            answer: The answer.
            image: The frame; None where it could not be read.
        """
        sinks = self._sinks[answer.source]
        for sink in list(sinks):
            try:
                sink.put(answer, image)
            except OSError as error:
                sinks.remove(sink)
                sink.problems.append(f"an output of camera {answer.source} ends here ({error.strerror}); make room")
            self._say(sink)

    def told(self, stream: str, condition: str, why: str) -> None:
        """Tell a camera's outputs how it is.

        Args:
            stream: Its stream.
            condition: As `Sink.told` takes it.
            why: A reason, for people.
        """
        for sink in self._sinks[stream]:
            sink.told(stream, condition, why)

    def close(self) -> None:
        """End all of them."""
        for sink in {id(sink): sink for sinks in self._sinks.values() for sink in sinks}.values():
            sink.close()
            self._say(sink)

    def _say(self, sink: Sink) -> None:
        for problem in sink.problems:
            if problem not in self._told:
                self._told.add(problem)
                _LOG.warning("%s", problem)


def camera_answer(stream: str, frame: Frame, time: str, ms: float, answer: Answer | Exception) -> CameraAnswer:
    """An answer of the server as an answer to a camera's frame.

    Args:
        stream: The camera's stream.
        frame: The frame.
        time: When it was answered.
        ms: Milliseconds from the decoded frame to its answer.
        answer: The answer, or why there is none.
    """
    seconds = None if frame.seconds is None else round(frame.seconds, 6)
    if isinstance(answer, Exception):
        about: dict[str, Any] = {"number": 0, "error": " ".join(str(answer).split())}
    else:
        about = {"number": answer["seq"], **{name: answer[name] for name in _SAME}}
        about["unknown"] = None if answer["unknown_score"] is None else answer["unknown"]
    about |= {"frame": frame.number, "seconds": seconds, "file": frame.file}
    return CameraAnswer(stream, time=time, ms=round(ms, 1), **about)
