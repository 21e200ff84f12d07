"""The results of a demo run: accuracies and paired gains with their intervals, as text, as JSON and as a page."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import lessmore
from lessmore.core.costs import costs
from lessmore.lab.demo import BASELINE, CONTENDERS, OURS, PRESET, DemoContender, DemoResult, DemoStream, answer_verdict
from lessmore.lab.labels import preset_label
from lessmore.lab.metrics import interval, resampled
from lessmore.lab.report.page import Chart, DemoPage, DemoRow, Estimate
from lessmore.methods.resolve import resolve

SCHEMA = "lessmore.demo/1"
_FIRST = 20  # running accuracies of fewer images say nothing
_Z = 1.959964  # 97.5 % point of the normal distribution


@dataclass(frozen=True)
class ContenderLine:
    """One contender's numbers."""

    contender: DemoContender
    accuracy: list[Estimate]
    """One per shift, then their mean, in percent."""
    gain: list[Estimate]
    """The same for the paired difference to zero-shot, in points."""
    gmacs: float
    ms: NDArray[np.float64]
    """Milliseconds of every image of every stream."""

    @property
    def median_ms(self) -> float:
        """The usual time of one image."""
        return float(np.median(self.ms))


def wilson(hits: NDArray[np.float64]) -> Estimate:
    """Share of ones among hits `[n]` in percent, with Wilson's 95 % interval."""
    n, p = len(hits), float(hits.mean())
    middle = (p + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half = _Z / (1 + _Z**2 / n) * math.sqrt(p * (1 - p) / n + _Z**2 / (4 * n**2))
    return Estimate(100 * p, 100 * (middle - half), 100 * (middle + half))


def paired_gain(differences: Sequence[NDArray[np.float64]], seed: int = 0) -> Estimate:
    """Mean paired difference in points, averaged over streams, with a 95 % bootstrap interval.

    Images are resampled within their stream, each with both its answers.

    Args:
        differences: One array per stream, `[n]`, of −1, 0 or 1 per image.
        seed: Seeds the bootstrap.
    """
    generator = np.random.default_rng(seed)
    draws = np.mean([resampled(*np.unique(d[:, None], axis=0, return_counts=True), generator) for d in differences], 0)
    low, high = interval(draws[:, 0])
    return Estimate(100 * float(np.mean([d.mean() for d in differences])), 100 * float(low), 100 * float(high))


def contender_lines(result: DemoResult) -> list[ContenderLine]:
    """The numbers of every contender."""
    return [_line(result, contender) for contender in CONTENDERS]


def _line(result: DemoResult, contender: DemoContender) -> ContenderLine:
    name = contender.name
    hits = [stream.hits(name) for stream in result.streams]
    gains = [stream.hits(name) - stream.hits(BASELINE) for stream in result.streams]
    shape = result.vlm.vision.shape
    chosen = resolve(contender.method, PRESET, contender.R, contender.reducer, shape=shape).preset
    adaptation = chosen.adaptation if contender.method == "tca" else None
    return ContenderLine(
        contender=contender,
        accuracy=[*map(wilson, hits), wilson(np.concatenate(hits))],
        gain=[*(paired_gain([gain]) for gain in gains), paired_gain(gains)],
        gmacs=costs(shape, chosen.condensation, adaptation, len(result.classes)).gmacs,
        ms=np.concatenate([stream.ms[name] for stream in result.streams]),
    )


def changes(streams: Sequence[DemoStream]) -> dict[str, int]:
    """How many of zero-shot's answers TCA left right or wrong, fixed or broke."""
    return _counts(streams, [stream.answers[BASELINE] for stream in streams])


def corrections(streams: Sequence[DemoStream]) -> dict[str, int]:
    """The same for the correction alone, against the same condensed forward pass without it."""
    return _counts(streams, [stream.before for stream in streams])


def _counts(streams: Sequence[DemoStream], before: Sequence[NDArray[np.int64]]) -> dict[str, int]:
    rows = [row for s, b in zip(streams, before, strict=True) for row in zip(s.labels, b, s.answers[OURS], strict=True)]
    counted = Counter(answer_verdict(*row) for row in rows)
    return {name: counted[name] for name in ("right", "fixed", "broken", "wrong")}


def demo_verdict(result: DemoResult, found: Sequence[ContenderLine]) -> str:
    """The outcome in one sentence, whatever it is.

    Args:
        result: The run.
        found: Its numbers, from `lines`.
    """
    ours, plain = (next(line for line in found if line.contender.name == name) for name in (OURS, BASELINE))
    gain, saved = ours.gain[-1], 100 * (1 - ours.gmacs / plain.gmacs)
    outcome = (
        "is more accurate than"
        if gain.low > 0
        else "is less accurate than"
        if gain.high < 0
        else "is not clearly different from"
    )
    cost = f"{abs(saved):.0f} % {'fewer' if saved > 0 else 'more'} multiply-accumulates"
    return (
        f"{OURS} {outcome} zero-shot here: {_signed(gain.value)} points on average over {len(result.streams)} shifts "
        f"(95 % interval {_signed(gain.low)} to {_signed(gain.high)}), with {cost}."
    )


def _signed(value: float) -> str:
    return f"{value:+.1f}".replace("-", "−")


def text_table(result: DemoResult, found: Sequence[ContenderLine]) -> str:
    """An aligned table for terminals.

    Args:
        result: The run.
        found: Its numbers, from `lines`.
    """
    titles = [stream.title for stream in result.streams]
    head = ["", *titles, "mean", "gain over zero-shot", "GMACs", "ms"]
    body = [[line.contender.name, *map(_short, line.accuracy), _gain(line), *_costs(line)] for line in found]
    widths = [max(len(row[i]) for row in [head, *body]) for i in range(len(head))]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))])
        for row in [head, *body]
    )


def _short(estimate: Estimate) -> str:
    return f"{estimate.value:.1f} ±{(estimate.high - estimate.low) / 2:.1f}"


def _gain(line: ContenderLine) -> str:
    gain = line.gain[-1]
    return (
        "" if line.contender.name == BASELINE else f"{_signed(gain.value)} [{_signed(gain.low)}, {_signed(gain.high)}]"
    )


def _costs(line: ContenderLine) -> tuple[str, str]:
    return f"{line.gmacs:.3f}", f"{line.median_ms:.1f}"


def as_json(result: DemoResult, found: Sequence[ContenderLine]) -> dict[str, Any]:
    """All numbers of the run, including every answer, in plain values.

    Args:
        result: The run.
        found: Its numbers, from `lines`.
    """
    names = [*(stream.title for stream in result.streams), "mean"]
    return {
        "schema": SCHEMA,
        "model": result.vlm.name,
        "model_fingerprint": result.vlm.fingerprint(),
        "preset": PRESET,
        "seed": result.seed,
        "classes": result.classes,
        "versions": {"lessmore": lessmore.__version__, "torch": torch.__version__},
        "workers": result.workers,
        "seconds": result.seconds,
        "methods": {line.contender.name: _line_json(line, names) for line in found},
        "changes": changes(result.streams),
        "corrections": corrections(result.streams),
        "streams": {stream.title: _stream_json(stream) for stream in result.streams},
    }


def _line_json(line: ContenderLine, names: Sequence[str]) -> dict[str, Any]:
    spread = {"mean": line.ms.mean(), "p50": line.median_ms, "p95": np.quantile(line.ms, 0.95)}
    return {
        **{k: v for k, v in line.contender._asdict().items() if k != "name"},
        "accuracy": {name: asdict(estimate) for name, estimate in zip(names, line.accuracy, strict=True)},
        "gain": {name: asdict(estimate) for name, estimate in zip(names, line.gain, strict=True)},
        "gmacs": line.gmacs,
        "ms": {name: round(float(value), 4) for name, value in spread.items()},
    }


def _stream_json(stream: DemoStream) -> dict[str, Any]:
    answers = {name: values.tolist() for name, values in stream.answers.items()}
    return {"labels": stream.labels.tolist(), "answers": answers, "before_correction": stream.before.tolist()}


def as_page(result: DemoResult, found: Sequence[ContenderLine]) -> DemoPage:
    """The page of the run.

    Args:
        result: The run.
        found: Its numbers, from `lines`.
    """
    return DemoPage(
        title="lessmore demo: a classifier that adapts while it runs",
        lead=demo_verdict(result, found).replace(" %", "\u00a0%"),
        facts=_facts(result),
        columns=["method", *(stream.title for stream in result.streams), "mean", "GMACs", "ms per image"],
        rows=_rows(found),
        notes=_notes(result),
        charts=[_chart(stream) for stream in result.streams],
        gallery=_gallery(result.streams),
        exhibits=[exhibit for stream in result.streams for exhibit in stream.exhibits],
    )


def _facts(result: DemoResult) -> dict[str, str]:
    n, shifts = len(result.streams[0].labels), ", ".join(stream.title for stream in result.streams)
    R = next(c.R for c in CONTENDERS if c.name == OURS)
    return {
        "Model": result.vlm.name,
        "Streams": f"{len(result.streams)} shifts × {n} images ({shifts}; the number is the severity, 1 to 5)",
        "Classes": f"{len(result.classes)}, half of them combinations the embedded models never saw",
        "Methods": f"zero-shot on all tokens; EViT and TCA at R = {R:g}, preset {PRESET} for every stream",
        "Preset": f"{PRESET}: {preset_label(PRESET)}",
        "Images": f"drawn by the embedded world from seed {result.seed}; no label is used but for counting",
        "Run": f"{result.seconds:.0f} s, {result.workers} processes of one thread, torch {torch.__version__}",
    }


def _rows(found: Sequence[ContenderLine]) -> list[DemoRow]:
    plain = found[0]
    rows = [DemoRow(line.contender.name, line.accuracy, line.gmacs, line.median_ms) for line in found]
    for line in found[1:]:
        gmacs, ms = 100 * (line.gmacs / plain.gmacs - 1), 100 * (line.median_ms / plain.median_ms - 1)
        rows.append(DemoRow(f"{line.contender.name} gain", line.gain, gmacs, ms, gain=True))
    return rows


def _notes(result: DemoResult) -> str:
    return (
        "Intervals: Wilson for accuracies, a paired bootstrap over images for differences; they speak of other images, "
        "not of other orders of the stream. Zero-shot is the same model with the same prompts on the same images. "
        "GMACs: 10⁹ multiply-accumulates of one image, with scoring, merging and correction. "
        f"ms: median of {len(result.streams) * len(result.streams[0].labels)} single images on this machine, one "
        "thread, from pixels to answer; the methods take turns on every image. Fewer MACs need not be fewer ms at "
        "this size: condensing adds many small steps."
    )


def _chart(stream: DemoStream) -> Chart:
    first = min(_FIRST, len(stream.labels))
    counts = np.arange(1, len(stream.labels) + 1)
    curves = {name: (100 * np.cumsum(stream.hits(name)) / counts)[first - 1 :].tolist() for name in stream.answers}
    return Chart(stream.title, curves, first)


def _gallery(streams: Sequence[DemoStream]) -> str:
    every, own = changes(streams), corrections(streams)
    images = sum(len(stream.labels) for stream in streams)
    return (
        f"Tokens of {OURS} after every condensing block: pruned patches are hatched, merged ones take the "
        f"colour of their token, the others are kept. Of zero-shot's {images} answers it fixed {every['fixed']}, broke "
        f"{every['broken']}, and left {every['right']} right and {every['wrong']} wrong. Its correction from memory "
        f"alone fixed {own['fixed']} and broke {own['broken']}; the rest is the work of condensing. Shown are the "
        "first of their kind after a quarter of each stream: not the best, and not in proportion."
    )
