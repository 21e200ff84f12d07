"""Where a run's numbers go while it runs: one protocol, and TensorBoard as a user of it."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from lessmore.errors import ConfigError


class RunLogger(Protocol):
    """Follows runs. It sees what is recorded anyway, so it can change no number."""

    def begin(self, name: str, spec: Mapping[str, Any]) -> None:
        """A run begins or is resumed.

        Args:
            name: Its folder's name.
            spec: What was asked.
        """

    def log(self, name: str, step: int, values: Mapping[str, float]) -> None:
        """An image was answered.

        Args:
            name: The run.
            step: Its place in the stream, from 1.
            values: Running figures: accuracy, zero_shot_accuracy and gain as fractions, confidence, entropy.
        """

    def finish(self, name: str, summary: Mapping[str, Any]) -> None:
        """A run is done.

        Args:
            name: The run.
            summary: The content of its summary.json.
        """


class TensorBoardLogger:
    """Curves of every run below a folder, for `tensorboard --logdir FOLDER`."""

    def __init__(self, folder: str | Path, every: int = 10) -> None:
        """Begin.

        Args:
            folder: Where the event files go, one folder per run.
            every: Images between two points of a curve.

        Raises:
            ConfigError: tensorboard is not installed.
        """
        try:
            self._module: Any = importlib.import_module("torch.utils.tensorboard")
        except ImportError as error:
            raise ConfigError("this needs tensorboard; install it with: pip install 'lessmore[tensorboard]'") from error
        self._folder, self._every = Path(folder), every
        self._writers: dict[str, Any] = {}

    def begin(self, name: str, spec: Mapping[str, Any]) -> None:
        """Open the run's event file and write down what was asked.

        Args:
            name: The run.
            spec: What was asked.
        """
        writer = self._writers[name] = self._module.SummaryWriter(str(self._folder / name))
        writer.add_text("spec", "\n".join(f"    {key}: {value}" for key, value in sorted(spec.items())))

    def log(self, name: str, step: int, values: Mapping[str, float]) -> None:
        """Add a point to each curve, now and then.

        Args:
            name: The run.
            step: Its place in the stream, from 1.
            values: Running figures by name.
        """
        if step % self._every == 0:
            for key, value in values.items():
                self._writers[name].add_scalar(key, value, step)

    def finish(self, name: str, summary: Mapping[str, Any]) -> None:
        """Add the final figures and close the file.

        Args:
            name: The run.
            summary: The content of its summary.json.
        """
        writer, found = self._writers.pop(name), summary["metrics"]
        for key in ("accuracy", "zero_shot_accuracy", "gain", "confidence_ece", "zero_shot_ece"):
            if found[key] is not None:
                writer.add_scalar(f"final/{key}", found[key], found["n"])
        writer.close()
