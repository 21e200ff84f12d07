"""The page of many runs: one self-contained file that loads nothing."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import lessmore
from lessmore.lab.labels import preset_label, preset_note
from lessmore.lab.metrics import trouble, unknown_note
from lessmore.lab.report import charts, detail
from lessmore.lab.report.album import Album, AlbumEntry
from lessmore.lab.report.browser import names_of, page_data
from lessmore.lab.report.overview import Overview, OverviewLine, cost_chart, overview
from lessmore.lab.report.runs import Finished
from lessmore.lab.report.tables import TUNED
from lessmore.lab.report.thresholds import TITLE, threshold_figure
from lessmore.lab.report.write import part, render


@dataclass(frozen=True)
class ReportPanel:
    """What the page shows of one run, apart from its samples."""

    number: int
    title: str
    facts: dict[str, str]
    figures: tuple[detail.DetailFigure, ...]
    reservoir: tuple[tuple[str, tuple[AlbumEntry, ...]], ...]
    """Class names with the entries of each class."""
    reservoir_note: str
    notes: tuple[str, ...]


def render_report(runs: Sequence[Finished], albums: Sequence[Album], left_out: Sequence[str] = ()) -> str:
    """The page as HTML text.

    Args:
        runs: The runs, at least one.
        albums: Their pictures, in the same order.
        left_out: Other runs with the reason why they are not shown, to be listed.
    """
    found = overview(runs)
    numbers = {run.summary["key"]: number for number, run in enumerate(runs)}
    titles = [run_title(run) for run in runs]
    script = part("report.js")
    return render(
        "report.html",
        signed=charts.signed_number,
        interval=charts.interval_bar,
        verdict=charts.gain_verdict,
        version=lessmore.__version__,
        lead=lead_sentence(found),
        overview=found,
        widest=max(abs(end) for line in found.lines for end in (line.gain.low, line.gain.high)),
        numbers=numbers,
        opened=numbers.get(found.opened or "", 0),
        facets=_facets(found),
        tuned=TUNED,
        chooser=TITLE,
        presets=preset_note(
            sorted({r.summary["spec"]["preset"] for r in runs if r.summary["spec"]["method"] == "tca"})
        ),
        panels=[_panel(i, titles[i], run, album) for i, (run, album) in enumerate(zip(runs, albums, strict=True))],
        left_out=left_out,
        data=page_data(titles, [run.rows for run in runs], albums),
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def run_title(run: Finished) -> str:
    """A run in a few words."""
    spec, data = run.summary["spec"], run.summary["dataset"]
    seen = [data["name"], spec["corruption"], None if spec["order"] == "iid" else spec["order"]]
    setting = f"{spec['method']} + {spec['reducer']}, {spec['preset']}, R = {spec['R']:g}, seed {spec['seed']}"
    return f"{' '.join(text for text in seen if text)}: {setting}"


def lead_sentence(found: Overview) -> str:
    """The outcome in a sentence or two, whatever it is."""
    lines = [line for line in found.lines if not line.plain]
    if not lines:
        return "Zero-shot runs only: there is nothing to compare them with."
    better, worse = (
        sum(charts.gain_verdict(line.gain.low, line.gain.high) == kind for line in lines) for kind in ("good", "bad")
    )
    if len(lines) == 1:
        gain = lines[0].gain
        outcome = "above" if better else "below" if worse else "not clearly different from"
        return (
            f"Accuracy is {outcome} matched zero-shot: {charts.signed_number(gain.value)} points "
            f"(95 % interval {charts.signed_number(gain.low)} to {charts.signed_number(gain.high)}), "
            f"at {charts.signed_number(100 * (lines[0].gmacs / lines[0].plain_gmacs - 1), 0)} % multiply-accumulates. "
            f"{_calibration(lines)}"
        )
    streams = "one stream" if len(found.streams) == 1 else f"{len(found.streams)} streams"
    return (
        f"Of {len(lines)} comparisons on {streams} of images, {better} are clearly above matched "
        f"zero-shot, {worse} clearly below, and {len(lines) - better - worse} not clearly different. "
        f"{_calibration(lines)}"
    )


def _calibration(lines: Sequence[OverviewLine]) -> str:
    ours, plain = fmean(line.ece for line in lines), fmean(line.zero_shot_ece for line in lines)
    mean = " on average" if len(lines) > 1 else ""
    return f"Calibration error{mean}: {ours:.1f} points, zero-shot's {plain:.1f}."


def _facets(found: Overview) -> list[dict[str, str]]:
    """Per stream, accuracy against multiply-accumulates and against time."""

    def of(stream: str) -> dict[str, str]:
        lines: list[OverviewLine] = [line for line in found.lines if line.stream == stream]
        return {
            "stream": stream,
            "gmacs": cost_chart(lines, lambda line: line.gmacs, "GMACs"),
            "ms": cost_chart(lines, lambda line: line.ms, "ms per image"),
        }

    return [of(stream) for stream in found.streams]


def _panel(number: int, name: str, run: Finished, album: Album) -> ReportPanel:
    metrics, names = run.summary["metrics"], names_of(run.rows, album)
    domains = [detail.domain_figure(metrics["domains"])] if metrics["domains"] else []
    return ReportPanel(
        number=number,
        title=name,
        facts=_facts(run),
        figures=(
            detail.over_time_figure(run.rows),
            detail.windows_figure(metrics["over_time"]),
            detail.confusion_figure(run.rows, names),
            detail.calibration_figure(run.rows, metrics),
            threshold_figure(run.rows),
            *detail.class_figures(run.rows, names),
            *domains,
        ),
        reservoir=_by_class(album, names),
        reservoir_note=_reservoir_note(run, album),
        notes=album.notes,
    )


def _facts(run: Finished) -> dict[str, str]:
    spec, data, found, made = (run.summary[name] for name in ("spec", "dataset", "metrics", "provenance"))
    machine = made["hardware"]["gpu"] or made["hardware"]["cpu"]
    failed = f"; {trouble(found)}" if trouble(found) else ""
    called = f"; {unknown_note(found)}" if unknown_note(found) else ""
    options = ", ".join(f"{name} = {value}" for name, value in spec["options"].items())
    return {
        "Data": f"{data['name']}, {data['classes']:,} classes; {data['note'] or 'all images'}",
        "Stream": f"{spec['order']}, seed {spec['seed']}, corruption {spec['corruption'] or 'none'}",
        "Images": f"{found['n']:,} answered{failed}{called}",
        "Model": f"{spec['model'].rstrip('/').rpartition('/')[2]}, {made['dtype']}",
        "Method": f"{spec['method']} with reducer {spec['reducer']}, R = {spec['R']:g}",
        "Preset": f"{spec['preset']}: {preset_label(spec['preset'])}" + (f"; {options}" if options else ""),
        "Adaptation": f"changed {found['changed']:,} answers of the condensed model; McNemar {_p(found['mcnemar_p'])}",
        "Machine": f"{machine}; threads: {made['threads']}; torch {made['versions']['torch']}",
    }


def _p(value: float) -> str:
    return "p < 0.001" if value < 0.001 else f"p = {value:.3f}"


def _by_class(album: Album, names: Sequence[str]) -> tuple[tuple[str, tuple[AlbumEntry, ...]], ...]:
    classes = dict.fromkeys(entry.label for entry in album.reservoir)
    return tuple((names[c], tuple(entry for entry in album.reservoir if entry.label == c)) for c in classes)


def _reservoir_note(run: Finished, album: Album) -> str:
    if run.summary["spec"]["method"] != "tca":
        return f"{run.summary['spec']['method']} keeps no reservoir of images; only tca does."
    if not album.entries:
        return "The reservoir cannot be shown: see below."
    right = sum(entry.label == entry.row["label"] for entry in album.reservoir)
    shown = len(album.reservoir)
    amount = f"Shown are {shown:,} of {album.entries:,} images" if shown < album.entries else f"{shown:,} images"
    marked = "; the others are marked" if right < shown else ""
    key = run.header["identity"]["adaptation"]["key"]
    number = "entropy in nats" if key == "entropy" else "−p log p of the predicted class, in nats"
    return (
        f"What the run remembered at the end, by the class an image was taken for. {amount}, {right:,} of which really "
        f"belong to that class{marked}. The number is the {number}: small means sure."
    )
