"""The report: what its numbers and pictures are made of, and what it says where something is missing."""

from __future__ import annotations

import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torchmetrics")
pytest.importorskip("scipy")

import lessmore
from lessmore.cli import main
from lessmore.core.condense.source import GONE, KEPT, MERGED, PRUNED
from lessmore.errors import ImageError
from lessmore.lab.job import prepare_job
from lessmore.lab.report import browser, charts, detail, thresholds
from lessmore.lab.report.album import ENTRIES, Album, Library, choose_pictured, replay_run
from lessmore.lab.report.html import render_report
from lessmore.lab.report.overview import overview
from lessmore.lab.report.runs import Finished, find_runs
from lessmore.lab.runner import run_one
from lessmore.lab.spec import RunSpec
from lessmore.lab.store import read_summary
from tests.small_runs import draw_folder
from tests.synthetic_runs import write_run

IMAGES = 30
PRESETS = ("default", "paper")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images, one of them broken, and runs of a free and of a guided encoder and of zero-shot on them."""
    folder = tmp_path_factory.mktemp("report")
    photos = draw_folder(folder / "photos", IMAGES)
    sorted(photos.rglob("*.png"))[4].write_bytes(b"not an image")
    vlm = lessmore.load("tiny")
    request: list[dict[str, Any]] = [{"preset": name, "R": 0.7} for name in PRESETS]
    for more in (*request, {"method": "zeroshot"}):
        spec = RunSpec("tiny", f"folder:{photos}", device="cpu", order="iid", **more)
        run_one(spec, folder / "runs", quiet=True, vlm=vlm, cache=folder / "cache")
    return folder


@pytest.fixture(scope="module")
def runs(place: Path) -> dict[str, Finished]:
    found, left_out = find_runs([place / "runs"])
    assert left_out == []
    return {run.summary["spec"]["method" if "zeroshot" in run.folder.name else "preset"]: run for run in found}


@pytest.fixture(scope="module")
def albums(runs: dict[str, Finished], place: Path) -> dict[str, Album]:
    library = Library(None, place / "cache")
    return {name: replay_run(run, library, 12) for name, run in runs.items()}


@pytest.mark.parametrize("preset", PRESETS)
def test_reservoir_and_tokens_are_those_of_the_run(
    runs: dict[str, Finished], albums: dict[str, Album], preset: str
) -> None:
    """Held against an adapter that goes through the same images, one of which it cannot read."""
    run, album = runs[preset], albums[preset]
    job = prepare_job(RunSpec(**run.header["spec"]))
    adapter = lessmore.adapt(job.vlm, job.classes, preset=preset, R=0.7, templates=job.templates, engine="eager")
    traces, asked = {}, []
    for i in range(IMAGES):
        try:
            traces[i] = adapter(job.stream.image(i), trace=True).trace
            asked.append(i)
        except ImageError:
            assert "error" in run.rows[i]
    assert len(asked) == IMAGES - 1
    held = adapter._answerer.method.stream.reservoir  # type: ignore[attr-defined]
    expected = {
        (c, asked[int(held.ids[c, m])]): float(held.keys[c, m])
        for c in range(len(held.ids))
        for m in range(held.ids.shape[1])
        if held.ids[c, m] >= 0
    }
    assert {(e.label, e.row["i"]): e.key for e in album.reservoir} == pytest.approx(expected, abs=1e-5)
    assert album.entries == len(expected)
    assert album.notes == ()
    assert len(album.tokens) == len(album.uris) == 12
    for i, tokens in album.tokens.items():
        assert tokens.blocks == traces[i].blocks
        assert list(tokens.left) == traces[i].left[0].tolist()
        for letters, fates in zip(tokens.maps, traces[i].fate[0].tolist(), strict=True):
            gone = [fate in (PRUNED, GONE) for fate in fates]
            assert [letter == "#" for letter in letters] == gone
            assert all(letter not in ".#" for letter, fate in zip(letters, fates, strict=True) if fate == MERGED)
            assert any(fate == KEPT for fate in fates)


def test_pictures_are_of_what_changed_first(runs: dict[str, Finished], albums: dict[str, Album]) -> None:
    rows = [
        {"i": i, "label": 0, "zero_shot": int(z), "prediction": int(p)}
        for i, (z, p) in enumerate(["00", "00", "01", "10", "11", "00", "10", "10"])
    ]
    assert choose_pictured(rows, 4) == [3, 2, 6, 7]  # type: ignore[arg-type]
    assert choose_pictured(rows, 99) == [3, 2, 6, 7, 4, 0, 1, 5]  # type: ignore[arg-type]
    assert choose_pictured([{"i": 0, "error": "broken"}], 4) == []
    zeroshot = albums["zeroshot"]
    assert zeroshot.tokens == {} and zeroshot.reservoir == ()
    assert all(uri.startswith("data:image/jpeg;base64,") for uri in zeroshot.uris.values())


def finished(output: Path, images: int, classes: int, **more: Any) -> Finished:
    folder = write_run(output, images, classes, **more)
    return Finished(folder, read_summary(folder) or {})


def test_the_bins_are_those_of_the_calibration_error(tmp_path: Path) -> None:
    run = finished(tmp_path, 900, 7)
    summary = run.summary
    for name, probability, key in (("prediction", "probability", "ece"), ("zero_shot", "zero_shot_probability", None)):
        bins = detail.confidence_bins(run.rows, name, probability)
        error = float((bins.share * np.abs(bins.accuracy - bins.confidence)).sum())
        assert error == pytest.approx(summary["metrics"][key or "zero_shot_ece"], abs=1e-6)
        assert bins.share.sum() == pytest.approx(1)


def test_thresholds_let_pass_what_is_so_sure(tmp_path: Path) -> None:
    rows = finished(tmp_path, 300, 7).rows
    answered = [row for row in rows if "error" not in row]
    for i, row in enumerate(answered):
        row["confidence"] = min(1.0, row["probability"] + i % 3 / 10)
    found, figure = thresholds.answers_above(rows), thresholds.threshold_figure(rows)
    for kind, (answer, probability) in thresholds.KINDS.items():
        for percent in (0, 7, 29, 57, 70, 99):
            passing = [row for row in answered if row[probability] >= percent / 100]
            right = sum(row[answer] == row["label"] for row in passing)
            assert (found[kind].taken[percent], found[kind].right[percent]) == (len(passing), right)
    assert found["raw"].taken[50] < found["reported"].taken[50] < found["reported"].taken[0] == 299
    half = dict(zip(figure.head, figure.body[0], strict=True))
    taken, right = found["reported"].taken[50], found["reported"].right[50]
    assert (half["at least"], half["reported"]) == ("50 %", f"{100 * taken / 299:.1f} / {100 * right / taken:.1f}")
    assert figure.svg.count("<polyline") == 3
    for row in answered:
        row["confidence"] = 0.1
    last = thresholds.threshold_figure(rows).body[-1]
    assert last[-1] == "0.0 / –"


def test_gains_by_class_and_domain_add_up(tmp_path: Path) -> None:
    run = finished(tmp_path, 400, 40, domains=3)
    found = run.summary["metrics"]
    names = [f"name {c}" for c in range(40)]
    gain, loss = detail.class_figures(run.rows, names)
    for figure in (gain, detail.domain_figure(found["domains"])):
        total = sum(int(n) * float(gain.replace("−", "-")) for _, n, _, _, gain in figure.body)
        assert total / found["n"] == pytest.approx(100 * found["gain"], abs=0.06)
        assert sum(int(line[1]) for line in figure.body) == 399
    gains = [line.points for line in detail.class_gains(run.rows, names)]
    assert gains == sorted(gains, reverse=True)
    assert gain.svg.count('class="good"') == min(15, sum(g > 0 for g in gains)) > 5
    assert loss.svg.count('class="bad"') == sum(g < 0 for g in gains) > 5
    for svg, points in ((gain.svg, gains[0]), (loss.svg, -gains[-1])):
        unit = max(float(width) for width in re.findall(r'width="([\d.]+)"', svg)) / points
        assert unit == pytest.approx((214 - 46) / max(map(abs, gains)), rel=0.01), "both charts have one scale"
    worst = detail.class_gains(run.rows, names)[-1]
    assert loss.svg.index(worst.name) < min(loss.svg.index(g.name) for g in detail.class_gains(run.rows, names)[-4:-1])


def test_running_accuracy_ends_with_the_accuracy(tmp_path: Path) -> None:
    run = finished(tmp_path, 250, 5)
    found = run.summary["metrics"]
    last = detail.over_time_figure(run.rows).body[-1]
    assert last == ("249", f"{100 * found['zero_shot_accuracy']:.1f}", f"{100 * found['accuracy']:.1f}")
    assert len(detail.windows_figure(found["over_time"]).body) == 20
    short = finished(tmp_path, 2, 5, failed=0)
    assert detail.over_time_figure(short.rows).svg


def test_axes_have_round_numbers_around_all_values() -> None:
    axis = charts.round_axis([81.3, 87.9])
    assert (axis.low, axis.high) == (80, 88) and [text for _, text in axis.ticks] == ["80", "82", "84", "86", "88"]
    for values in ([], [0.0], [3.7], [-2.0, 5.0], [0.114, 0.168], [1e-9, 2e-9], [100.0, 100.0]):
        axis = charts.round_axis(values)
        assert axis.low < axis.high
        assert all(axis.low <= v <= axis.high * (1 + 1e-9) for v in values)
    plot = charts.Plot(charts.round_axis([0, 10]), charts.round_axis([0, 10]))
    assert plot.at(10, 10)[0] > plot.at(0, 0)[0] and plot.at(10, 10)[1] < plot.at(0, 0)[1]


def test_lines_are_means_over_seeds(tmp_path: Path) -> None:
    for seed in range(3):
        write_run(tmp_path, 100 + seed, 4, seed=seed)
    write_run(tmp_path, 100, 4, preset="paper")
    runs, _ = find_runs([tmp_path])
    found = overview(runs)
    default, paper = found.lines
    seeds = [run.summary for run in runs if run.summary["spec"]["preset"] == "default"]
    assert [seed for seed, _ in default.runs] == [0, 1, 2] and len(paper.runs) == 1
    assert default.images == (99, 100, 101)
    assert default.gain.value == pytest.approx(100 * np.mean([s["metrics"]["gain"] for s in seeds]))
    assert default.gain.low == pytest.approx(100 * np.mean([s["metrics"]["gain_ci"][0] for s in seeds]))
    assert default.ece == pytest.approx(100 * np.mean([s["metrics"]["ece"] for s in seeds]))


def test_the_scripts_columns_hold_every_row(runs: dict[str, Finished], albums: dict[str, Album]) -> None:
    names = list(runs)
    data = browser.page_data(names, [runs[name].rows for name in names], [albums[name] for name in names])
    assert len(data["ids"]) == IMAGES, "the same images are named once for all runs"
    assert len(data["classes"]) == 1
    for name, run in zip(names, data["runs"], strict=True):
        for i, row in enumerate(runs[name].rows):
            assert data["ids"][run["id"][i]] == row["id"]
            assert run["label"][i] == row["label"]
            assert run["after"][i] == row.get("prediction", -1)
            assert (i in run["errors"]) == ("error" in row)
        assert set(run["pictures"]) == set(albums[name].uris)


class Tags(HTMLParser):
    """All tags with their attributes, and whether everything that opens closes."""

    VOID = ("meta", "link", "img", "br", "input")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.all: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.all.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.all.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_loads_nothing(runs: dict[str, Finished], albums: dict[str, Album]) -> None:
    text = render_report(list(runs.values()), [albums[name] for name in runs], ["half a run (not finished)"])
    tags = Tags(text).all
    addresses = [v or "" for _, attrs in tags for k, v in attrs.items() if k in ("src", "href", "srcset")]
    assert len(addresses) > 10 and all(address.startswith(("data:", "#")) for address in addresses)
    ids = [attrs["id"] for _, attrs in tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert {address[1:] for address in addresses if address.startswith("#")} <= set(ids)
    labelled = {attrs["for"] for tag, attrs in tags if tag == "label"}
    assert {attrs["id"] for tag, attrs in tags if tag in ("select", "input") and "id" in attrs} <= labelled
    assert "half a run (not finished)" in text
    assert all(attrs.get("aria-label") for tag, attrs in tags if tag == "svg" and attrs.get("role") == "img")


def report(*arguments: str | Path) -> int:
    return main(["report", "--quiet", *map(str, arguments)])


def test_the_command(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    run = next((place / "runs").glob("*zeroshot*"))
    assert report(run, "--pictures", 3, "-o", page) == 0
    assert "1 runs, 3 pictures" in capsys.readouterr().out
    assert page.read_text().count("data:image/jpeg") == 3
    unfinished = tmp_path / "runs" / "cut-off"
    shutil.copytree(run, unfinished)
    (unfinished / "summary.json").unlink()
    assert report(run, tmp_path / "runs", "--no-pictures", "-o", page) == 3
    assert "left out cut-off (not finished)" in capsys.readouterr().err
    assert "cut-off (not finished)" in page.read_text()


def test_what_is_missing_is_said_plainly(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, run = tmp_path / "page.html", next((place / "runs").glob("*zeroshot*"))
    copied = tmp_path / "runs" / run.name
    for arguments, told in (
        (("nowhere", "-o", page), "there is no file or folder nowhere"),
        ((tmp_path, "-o", page), "there is no finished run"),
        ((run, "-o", tmp_path / "page.txt"), "does not end in .html"),
        ((run, "--pictures", -1, "-o", page), "--pictures must be 0 or more"),
    ):
        assert report(*arguments) == 1
        assert told in capsys.readouterr().err
    shutil.copytree(run, copied)
    (copied / "samples.jsonl").unlink()
    assert report(copied, "-o", page) == 1
    assert "samples.jsonl cannot be read" in capsys.readouterr().err
    assert not page.exists()


def test_moved_or_changed_data_leave_the_numbers(
    runs: dict[str, Finished], place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, gone = tmp_path / "page.html", write_run(tmp_path / "runs", 40, 5)
    assert report(gone, "-o", page) == 0
    assert "There are no pictures" in capsys.readouterr().err
    assert "class 3" in page.read_text()
    run = runs["zeroshot"]
    other = Finished(run.folder, run.summary)
    other.__dict__["header"] = {**run.header, "identity": {**run.header["identity"], "model": "another"}}
    album = replay_run(other, Library(None, place / "cache"), 5)
    assert "weights" in album.notes[0] and "do the run again" in album.notes[0]
    assert album.classes and not album.uris
    photos = tmp_path / "photos"
    draw_folder(photos, IMAGES, seed=6)
    spec = {**run.header["spec"], "dataset": f"folder:{photos}"}
    other.__dict__["header"] = {**run.header, "spec": {**spec, "unheard_of": 1}}
    assert "another version" in replay_run(other, Library(None, place / "cache"), 5).notes[0]
    other.__dict__["header"] = {**run.header, "spec": spec}
    assert "not those of the run" in replay_run(other, Library(None, place / "cache"), 5).notes[0]


def test_a_large_reservoir_is_shown_in_part(runs: dict[str, Finished], albums: dict[str, Album]) -> None:
    album = albums["default"]
    many = Album(album.classes, reservoir=album.reservoir, entries=ENTRIES + 700)
    assert f"Shown are {len(album.reservoir)} of 1,000 images" in render_report([runs["default"]], [many])
