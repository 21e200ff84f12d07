"""Tables and picture of `labelfree.py`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from labelfree_rules import ABLATIONS, BASELINES, MEAN, OURS, TRIED, ZERO_SHOT, padded, run, size, strength
from labelfree_streams import Shelf, streams
from numpy.typing import NDArray

PICTURED = (
    ("EuroSAT, clean", "eurosat", "none>none"),
    ("EuroSAT, contrast 2", "eurosat", "contrast:2>contrast:2"),
    ("Caltech101, clean, then contrast 4", "caltech101", "none>contrast:4"),
)
RESAMPLES = 2000
_ORDERS, _WINDOW = 24, 100
_RED, _BLUE, _GREY = "#c0392b", "#1f5fa8", "#888888"


def mean_of(values: Sequence[float] | NDArray[np.float64]) -> list[float]:
    """Mean, its 95 % interval by a bootstrap over the values (streams), least, greatest, and number of values."""
    x = np.asarray(values, dtype=float)
    means = x[np.random.default_rng(0).integers(len(x), size=(RESAMPLES, len(x)))].mean(axis=1)
    return [float(x.mean()), *map(float, np.quantile(means, (0.025, 0.975))), float(x.min()), float(x.max()), len(x)]


def signed(value: float | None) -> str:
    """With a sign, two places and a true minus."""
    return "–" if value is None else f"{value:+.2f}".replace("-", "−")


def estimate(row: Sequence[float]) -> str:
    """Value and interval."""
    return f"{signed(row[0])} [{signed(row[1])}, {signed(row[2])}]"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """As markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def show(part: str, found: Mapping[str, Any]) -> str:
    """All tables of a part."""
    check = found["check"]
    title = f"## {part}\nmapped as one by one: {check['same']} of {check['answers']} answers"
    return "\n".join([title, *_tables(found)])


def _tables(found: Mapping[str, Any]) -> Iterator[str]:
    yield "\nMain: mean over streams [interval over streams], (worst, best)\n\n" + _main(found["summary"])
    yield "\nThe same parts and ideas, shifted; clean; few classes\n\n" + _parts(found["summary"])
    yield "\nNo harm, all conditions\n\n" + _harm(found)
    yield "\nThe preset default less fixed, both on features\n\n" + _default(found["cells"])
    yield "\nStreams where the rule is more than 1 point below matched zero-shot\n\n" + _worst(found["cells"])
    yield "\nChange of domain: points below a rule that knew the new domain all along; images until within 1 point\n"
    yield _change(found["change"])
    yield "\nFalse alarms of the detector: % of steps, streams with any\n\n" + _alarms(found["alarms"])
    yield "\nStrength w after so many images; share of images with w = 0\n\n" + _strength(found["strength"])
    yield "\nLopsided at the end of the stream: 10 %, half and 90 % of the streams are below\n\n" + _shape(
        found["lopsided"]
    )
    yield "\nLogits times a factor, shifted\n\n" + _scale(found["scale"])
    yield "\nAll images known beforehand, shifted\n\n" + _whitening(found["whitening"])
    yield "\nBy set, shifted, mean gain i.i.d. and sorted\n\n" + _sets(found["cells"])


def _main(summary: Mapping[str, Any]) -> str:
    rows = []
    for kind in ("i.i.d.", "sorted", "blocks of 10", "blocks of 50"):
        for name in (rule.name for rule in (*BASELINES, OURS) if rule.name in summary[kind]):
            shifted, clean = (summary[kind][name].get(domain) for domain in ("shifted", "clean"))
            less = "" if name == OURS.name else estimate(shifted["rule less this"])
            rows.append([kind, name, _wide(shifted["gain"]), _wide(clean["gain"]) if clean else "", less])
    return table(["stream", "", "shifted", "clean", "the rule gains more, shifted"], rows)


def _wide(row: Sequence[float]) -> str:
    return f"{estimate(row)} ({signed(row[3])}, {signed(row[4])}), {row[5]}"


def _parts(summary: Mapping[str, Any]) -> str:
    kinds = ("i.i.d.", "sorted", "Zipf", "a tenth of the classes", "one class")
    columns = [(kind, domain) for kind in kinds for domain in ("shifted", "clean")]
    rows = []
    for name in (rule.name for rule in (OURS, *ABLATIONS, *TRIED, MEAN, ZERO_SHOT)):
        cells = [summary[kind].get(name, {}).get(domain) for kind, domain in columns]
        rows.append([name, *(f"{signed(c['gain'][0])} ({signed(c['gain'][3])})" if c else "" for c in cells)])
    return table(["mean (worst)", *(f"{kind}, {domain}" for kind, domain in columns)], rows)


def _every(cells: Mapping[str, Any], kind: str) -> list[tuple[str, str, list[float]]]:
    return [(s, c, kinds[kind]) for s, conditions in cells.items() for c, kinds in conditions.items() if kind in kinds]


def _harm(found: Mapping[str, Any]) -> str:
    rows = []
    for kind in dict.fromkeys(k for s in found["cells"].values() for kinds in s.values() for k in kinds):
        every = _every(found["cells"], kind)
        name, condition, worst = min(every, key=lambda x: x[2][0])
        values = np.array([row for *_, row in every])
        below = [f"{int((values[:, j] < -1).sum())}" for j in (0, 2, 7, 9)]
        last = min((row for *_, row in every), key=lambda row: row[7])
        rows.append(
            [
                *(kind, str(len(every)), signed(values[:, 0].mean()), f"{estimate(worst)} {name} {condition}"),
                *(f"{below[0]} ({below[1]})", signed(values[:, 3].mean()), signed(values[:, 3].min())),
                *(str(int((values[:, 3] < -1).sum())), signed(values[:, 4].mean()), signed(values[:, 4].min())),
                *(str(int((values[:, 4] < -1).sum())), *(signed(x) for x in _ends(values[:, 5:8]))),
                *(estimate([last[7], *last[8:]]), f"{below[2]} ({below[3]})"),
            ]
        )
    head = ["stream", "n", "mean", "worst", "below −1 (interval too)", "mean, R = 0.9", "worst, R = 0.9"]
    others = ["running mean: mean", "worst", "below −1"]
    others += [
        part for name in ("bold", "fixed, on features", "default, on features") for part in (f"{name}: mean", "worst")
    ]
    return table([*head, "below −1, R = 0.9", *others, "interval", "below −1 (interval too)"], rows)


def _ends(values: NDArray[np.float64]) -> list[float]:
    """Mean and least of every column."""
    return [float(x) for column in values.T for x in (column.mean(), column.min())]


def _default(cells: Mapping[str, Any]) -> str:
    rows = []
    for kind in dict.fromkeys(k for s in cells.values() for kinds in s.values() for k in kinds):
        both = [(condition, row[7] - row[6]) for _, condition, row in _every(cells, kind)]
        parts = [[x for condition, x in both if (condition == "none") == clean] for clean in (False, True)]
        rows.append([kind, *(_wide(mean_of(part)) if part else "" for part in parts)])
    return table(["stream", "shifted", "clean"], rows)


def _worst(cells: Mapping[str, Any]) -> str:
    rows = []
    for kind in dict.fromkeys(k for s in cells.values() for kinds in s.values() for k in kinds):
        for name, condition, row in _every(cells, kind):
            if min(row[0], row[7]) < -1:
                default = estimate([row[7], *row[8:]])
                rows.append([kind, f"{name} {condition}", estimate(row), *map(signed, row[3:7]), default])
    head = ["stream", "", "gain", "over zero-shot at R = 0.9", "running mean", "bold"]
    return table([*head, "fixed, on features", "default, on features"], rows)


def _change(changes: Sequence[Mapping[str, Any]]) -> str:
    names = [name for name in changes[0] if name not in ("set", "change")]
    rows = []
    for row in changes:
        parts = [f"{' / '.join(signed(x) for x in row[name]['below'])}; {row[name]['images']}" for name in names]
        rows.append([f"{row['set']} {row['change']}", signed(row[names[0]]["gain once settled"]), *parts])
    return table(["change", "gain once settled", *names], rows)


def _alarms(alarms: Sequence[Mapping[str, Any]]) -> str:
    kinds = [kind for kind in alarms[0] if kind != "set"]
    cell = "{steps, %:.2f} %, {streams with any}/{streams}"
    rows = [[row["set"], *(cell.format(**row[kind]) for kind in kinds)] for row in alarms]
    return table(["set", *kinds], rows)


def _strength(strength: Mapping[str, Any]) -> str:
    rows = [
        [kind, domain, *(f"{w:.2f}" for w in row[:-1]), f"{row[-1]:.1f} %"]
        for kind, domains in strength.items()
        for domain, row in domains.items()
    ]
    return table(["stream", "", "1", "3", "10", "30", "100", "300", "1,000", "w = 0"], rows)


def _shape(shapes: Mapping[str, Sequence[float]]) -> str:
    return table(["stream", "10 %", "half", "90 %"], [[k, *(signed(x) for x in row)] for k, row in shapes.items()])


def _scale(scale: Mapping[str, Any]) -> str:
    return table(["factor", "i.i.d.", "sorted"], [[f, *(signed(x) for x in row.values())] for f, row in scale.items()])


def _whitening(rows: Mapping[str, Sequence[float]]) -> str:
    return table(
        ["", "mean [interval over streams] (worst, best), streams"], [[k, _wide(row)] for k, row in rows.items()]
    )


def _sets(cells: Mapping[str, Any]) -> str:
    rows = []
    for name, conditions in cells.items():
        shifted = [kinds for c, kinds in conditions.items() if c != "none" and "sorted" in kinds]
        means = [np.mean([kinds[kind][0] for kinds in shifted]) for kind in ("i.i.d.", "sorted")]
        rows.append([name, str(len(shifted)), *(signed(float(m)) for m in means)])
    return table(["set", "shifted streams", "i.i.d.", "sorted"], rows)


def picture(shelves: Mapping[str, Shelf], path: Path) -> None:
    """Centre, strength and gain over time on three streams, the mean of 24 orders."""
    from matplotlib.figure import Figure

    canvas = Figure(figsize=(10, 5), layout="constrained")
    axes = canvas.subplots(2, len(PICTURED), sharex=True, sharey="row")
    for column, (title, name, change) in enumerate(PICTURED):
        shelf, (above, below) = shelves[name], axes[:, column]
        made = streams(shelf, ["sudden change, long"], [change], _ORDERS)
        for label, watch, colour in (("strength w", strength, _RED), ("size of the centre", size, _GREY)):
            course = run(OURS, shelf, made, watch).watched.mean(dim=1).numpy()
            above.plot(np.arange(1, len(course) + 1), course, color=colour, label=label)
        for rule, colour in ((MEAN, _GREY), (OURS, _RED), (ZERO_SHOT, _BLUE)):
            gain = _running(shelf, made, run(rule, shelf, made).answers)
            below.plot(np.arange(len(gain)) + _WINDOW, gain, color=colour, label=rule.name, lw=1.2)
        above.set_title(title, fontsize=10)
        below.axhline(0, color="black", lw=0.6)
        below.set_xlabel("images")
    axes[0, 0].set_ylabel("strength, size")
    axes[1, 0].set_ylabel(f"gain, points, last {_WINDOW} images")
    for row in axes:
        row[0].legend(fontsize=8, frameon=False)
    canvas.savefig(path, dpi=100)


def _running(shelf: Shelf, made: Any, answers: NDArray[np.int64]) -> NDArray[np.float64]:
    """Mean gain over the last hundred images, in points."""
    images, rows = padded([s.images for s in made]), padded([s.rows for s in made])
    gain = (answers == shelf.labels[images]).astype(float) - shelf.base[rows]
    return 100 * np.convolve(gain.mean(axis=0), np.full(_WINDOW, 1 / _WINDOW), mode="valid")
