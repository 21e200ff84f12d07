"""One run: a stream through a method, sample by sample. It can be cut off anywhere and resumes exactly.

Every sample adds a line to the run's files; now and then a checkpoint stores the method's state. A run that was cut off
resumes from its last checkpoint and writes the same bytes as an uninterrupted one. The summary is computed from the
lines alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path

from tqdm import tqdm

from lessmore.data.dataset import Dataset
from lessmore.errors import StateError
from lessmore.lab import metrics, provenance
from lessmore.lab.job import Job, prepare_job
from lessmore.lab.journal import REMEDY, SampleRow
from lessmore.lab.loader import Loaded, load_images
from lessmore.lab.loggers import RunLogger
from lessmore.lab.sampler import Sampler
from lessmore.lab.spec import RunSpec
from lessmore.lab.store import Store, read_summary
from lessmore.lab.summary import RunSummary, header, summarise_run
from lessmore.methods.saved import forms_of, problem_of
from lessmore.models.vlm import VLM


def run_one(
    spec: RunSpec,
    output: str | Path,
    *,
    resume: bool = True,
    quiet: bool = False,
    cache: bool | str | Path = True,
    checkpoints: float = 0.02,
    stop: Callable[[], bool] = lambda: False,
    vlm: VLM | None = None,
    dataset: Dataset | None = None,
    logger: RunLogger | None = None,
) -> RunSummary | None:
    """Do one run, or what is left of it, in its folder under `output`.

    Args:
        spec: What to run.
        output: Where runs go; each has a folder of its own.
        resume: Continue a run that was cut off and leave a finished one alone; False starts over.
        quiet: No progress bar.
        cache: Keep encodings and class embeddings on disk; a path says where.
        checkpoints: Largest fraction of the time that checkpoints may take.
        stop: Asked after every sample; once it is true the run stops, ready to be resumed.
        vlm: The model that `spec` names, if it is open already.
        dataset: The data set that `spec` names, if it is open already.
        logger: Follows the run while it goes on; a finished run is not told again.

    Returns:
        The summary, or None if the run was stopped.

    Raises:
        LessmoreError: The run cannot be prepared, its folder is in use or damaged, or loading images failed.
    """
    metrics.require()
    job = prepare_job(spec, vlm, dataset)
    folder = Path(output) / job.name
    done = read_summary(folder) if resume else None
    if done is not None and done["key"] != job.key:
        raise StateError(f"{folder} holds the summary of another run; {REMEDY}")
    if done is not None:
        return done
    with Store(folder, job.key) as store:
        environment = provenance.environment(job.vlm.device)
        provenance.watch_memory(job.vlm.device)
        sampler = Sampler(job, cache)
        forms, problem = forms_of(sampler.method), problem_of(spec.method)
        begun = store.begin(header(job, environment), restart=not resume, like=forms, problem=problem)
        if begun.cursor:
            sampler.resume(begun.state, store.rows())
        with _Progress(job, store.rows(), quiet, logger) as progress:
            if not _stream(sampler, store, begun.cursor, CheckpointPace(checkpoints), progress, stop):
                return None
        summary = store.finish(summarise_run(sampler, store, environment))
        if logger is not None:
            logger.finish(job.name, summary)
        return summary


class CheckpointPace:
    """Decides when a checkpoint is due, so that all of them together take at most a fraction of the time."""

    def __init__(self, share: float) -> None:
        self.share = share
        self.spent = 0.0
        self._begun = time.perf_counter()
        self._last = 0.02

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self._begun

    def due(self) -> bool:
        """Whether a checkpoint that takes as long as the last one fits in."""
        return self.spent + self._last <= self.share * self.elapsed

    @contextmanager
    def spending(self) -> Iterator[None]:
        """Times the checkpoint that is written inside the block."""
        start = time.perf_counter()
        yield
        self._last = time.perf_counter() - start
        self.spent += self._last


def _stream(
    sampler: Sampler, store: Store, cursor: int, pace: CheckpointPace, progress: _Progress, stop: Callable[[], bool]
) -> bool:
    """Answer the samples from `cursor` on; False if stopped before the end."""
    total, stopped = len(sampler.job.stream), False
    with closing(_samples(sampler, cursor)) as samples:
        for loaded in samples:
            row, timing = sampler(loaded)
            store.append(row, timing)
            progress.count(row)
            cursor = loaded.i + 1
            stopped = cursor < total and stop()
            if stopped or pace.due():
                with pace.spending():
                    store.checkpoint(cursor, sampler.method.state())
            if stopped:
                break
    sampler.flush()
    return not stopped


def _samples(sampler: Sampler, cursor: int) -> Generator[Loaded]:
    """Samples from `cursor` on. Only images without a cached encoding are loaded."""
    job = sampler.job
    needed = [i for i in range(cursor, len(job.stream)) if not sampler.cached(i)]
    with closing(load_images(job.stream, job.vlm.preprocess, needed, job.spec.workers)) as images:
        missing = set(needed)
        for i in range(cursor, len(job.stream)):
            yield next(images) if i in missing else Loaded(i, None, None)


class _Progress:
    """A bar with the running accuracy and gain, invisible without a terminal; a logger gets the same figures."""

    def __init__(self, job: Job, before: list[SampleRow], quiet: bool, logger: RunLogger | None) -> None:
        self._right = self._plain = self._answered = 0
        self._name, self._logger = job.name, logger
        if logger is not None:
            logger.begin(job.name, asdict(job.spec))
        self._bar = tqdm(total=len(job.stream), initial=len(before), unit="image", disable=quiet or None)
        for row in before:
            self._add(row)

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.close()

    def count(self, row: SampleRow) -> None:
        """Show one more sample."""
        self._add(row)
        if self._answered:
            accuracy, gain = self._right / self._answered, (self._right - self._plain) / self._answered
            self._bar.set_postfix_str(f"accuracy {100 * accuracy:.1f}, gain {100 * gain:+.1f}", refresh=False)
            if self._logger is not None and "error" not in row:
                figures = {"accuracy": accuracy, "zero_shot_accuracy": accuracy - gain, "gain": gain}
                figures |= {name: row[name] for name in ("confidence", "entropy")}
                self._logger.log(self._name, row["i"] + 1, figures)
        self._bar.update()

    def _add(self, row: SampleRow) -> None:
        if "error" not in row:
            self._answered += 1
            self._right += row["prediction"] == row["label"]
            self._plain += row["zero_shot"] == row["label"]
