"""The demo: its numbers, and its page as a parser and as a browser see it."""

from __future__ import annotations

import json
import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lessmore.cli import main
from lessmore.lab import demo
from lessmore.lab.report import demo_summary
from lessmore.lab.report.page import Chart, DemoPage, DemoRow, Estimate, Exhibit, TokenPanel, render_demo
from lessmore.lab.report.tokens import data_uri
from tests.web.chromium import CHROMIUM

EVIL = "<script>alert('x')</script> \"&amp; 'key'"
VOID = {"meta", "link", "img", "line", "polyline", "br"}


class Parsed(HTMLParser):
    """Tags with their attributes, visible text, and whether everything that opens closes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.tags if name == tag]


@pytest.fixture(scope="module")
def page() -> str:
    """A page whose every text tries to be markup."""
    picture = data_uri(summary_picture())
    cells = [Estimate(50.0, 40.0, 60.0), Estimate(-1.5, -3.0, 0.0)]
    rows = [
        DemoRow(EVIL, cells, 0.17, 8.0),
        DemoRow("TCA", cells, 0.15, 9.0),
        DemoRow("TCA gain", cells, -10, 12, gain=True),
    ]
    chart = Chart(EVIL, {"zero-shot": [50.0, 40.0, 45.0], EVIL: [30.0, 31.5, 33.0]}, 20)
    exhibit = Exhibit("fixed", EVIL, EVIL, EVIL, EVIL, EVIL, [TokenPanel(picture, EVIL, EVIL)] * 4)
    facts = {EVIL: EVIL}
    return render_demo(
        DemoPage(EVIL, EVIL, facts, ["method", EVIL, "mean", "GMACs", "ms"], rows, EVIL, [chart], EVIL, [exhibit])
    )


def summary_picture() -> Any:
    from PIL import Image

    return Image.new("RGB", (64, 64), (90, 120, 160))


def test_texts_are_escaped(page: str) -> None:
    assert "<script" not in page
    parsed = Parsed(page)
    assert parsed.text.count("<script>alert('x')</script> \"&amp; 'key'") >= 12
    assert all(attrs["alt"] == EVIL for attrs in parsed.all("img"))


def test_nothing_is_loaded_from_anywhere(page: str) -> None:
    parsed = Parsed(page)
    addresses = [
        v or "" for _, attrs in parsed.tags for k, v in attrs.items() if k in ("src", "href", "srcset", "data")
    ]
    assert len(addresses) >= 4
    assert all(address.startswith("data:") for address in addresses)
    assert not re.search(r"https?:|url\(|@import|//[a-z]", page)
    assert not [name for name, _ in parsed.tags if name in ("script", "iframe", "object", "embed", "form", "base")]


def test_the_table_is_a_table(page: str) -> None:
    parsed = Parsed(page)
    heads = parsed.all("th")
    assert [h["scope"] for h in heads] == ["col"] * 5 + ["row"] * 3
    assert len(parsed.all("td")) == 3 * 4
    assert len(parsed.all("caption")) == 1
    assert "−1.5" in parsed.text
    assert "+50.0" in parsed.text
    assert "-1.5" not in parsed.text


def test_charts_pictures_and_frame(page: str) -> None:
    parsed = Parsed(page)
    images = [svg for svg in parsed.all("svg") if svg.get("role") == "img"]
    assert len(images) == 1
    assert "at the end: zero-shot 45.0 %" in (images[0]["aria-label"] or "")
    curves = parsed.all("polyline")
    assert [len((c["points"] or "").split()) for c in curves] == [3, 3]
    points = np.array([[float(v) for v in p.split(",")] for p in (curves[0]["points"] or "").split()])
    assert (np.diff(points[:, 0]) > 0).all()
    assert points[0, 1] < points[2, 1] < points[1, 1], "higher accuracy is higher up"
    assert parsed.all("html") == [{"lang": "en"}]
    assert any(m.get("name") == "viewport" for m in parsed.all("meta"))
    assert "prefers-color-scheme: dark" in page


def test_a_long_curve_has_few_corners_and_keeps_its_end() -> None:
    chart = Chart("x", {"a": [50.0] * 9_999 + [60.0]}, 1)
    text = render_demo(DemoPage("t", "", {}, [], [], "", [chart], "", []))
    (curve,) = Parsed(text).all("polyline")
    points = (curve["points"] or "").split()
    assert 100 < len(points) < 200
    assert points[-1] != points[-2].split(",")[0] + "," + points[-1].split(",")[1]
    assert float(points[-1].split(",")[1]) < float(points[-2].split(",")[1])


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any], str]:
    """Page, numbers and printed text of a short demo run."""
    from contextlib import redirect_stdout
    from io import StringIO

    folder = tmp_path_factory.mktemp("demo")
    printed = StringIO()
    command = ["demo", "--images", "12", "--workers", "2", "--quiet"]
    with redirect_stdout(printed):
        code = main([*command, "--output", str(folder / "page.html"), "--json", str(folder / "numbers.json")])
    assert code == 0
    return (folder / "page.html").read_text(), json.loads((folder / "numbers.json").read_text()), printed.getvalue()


def test_the_demos_numbers_hang_together(ran: tuple[str, dict[str, Any], str]) -> None:
    page, numbers, printed = ran
    titles = [f"{kind} {severity}" for kind, severity in demo.SHIFTS]
    assert list(numbers["streams"]) == titles
    assert len(numbers["classes"]) >= 40
    for name, line in numbers["methods"].items():
        hits = []
        for title in titles:
            stream = numbers["streams"][title]
            hits.append(np.mean(np.array(stream["answers"][name]) == stream["labels"]))
            assert line["accuracy"][title]["value"] == pytest.approx(100 * hits[-1])
            assert line["accuracy"][title]["low"] <= 100 * hits[-1] <= line["accuracy"][title]["high"]
        assert line["accuracy"]["mean"]["value"] == pytest.approx(100 * np.mean(hits))
        gain = line["accuracy"]["mean"]["value"] - numbers["methods"]["zero-shot"]["accuracy"]["mean"]["value"]
        assert line["gain"]["mean"]["value"] == pytest.approx(gain)
        assert name in printed
        assert f"{line['accuracy']['mean']['value']:.1f}" in printed
        assert line["ms"]["p50"] > 0
    changes = numbers["changes"]
    assert sum(numbers["corrections"].values()) == sum(changes.values()) == 12 * len(titles)
    gain = 100 * (changes["fixed"] - changes["broken"]) / (12 * len(titles))
    assert numbers["methods"][demo.OURS]["gain"]["mean"]["value"] == pytest.approx(gain)
    assert numbers["methods"][demo.OURS]["gmacs"] < numbers["methods"]["zero-shot"]["gmacs"]
    assert numbers["methods"]["zero-shot"]["gain"]["mean"] == {"value": 0, "low": 0, "high": 0}
    parsed = Parsed(page)
    assert len(parsed.all("polyline")) == 3 * len(titles)
    assert parsed.all("article")
    assert all(i["alt"] and (i["src"] or "").startswith("data:image/png") for i in parsed.all("img"))


def test_the_answers_do_not_depend_on_the_number_of_workers(ran: tuple[str, dict[str, Any], str]) -> None:
    stream = demo.run_stream(
        demo.DemoJob("tiny", *demo.SHIFTS[1], 12, demo.SEED + 1), demo.load("tiny"), lambda _: None
    )
    expected = ran[1]["streams"][stream.title]
    assert stream.labels.tolist() == expected["labels"]
    assert {name: a.tolist() for name, a in stream.answers.items()} == expected["answers"]


def test_the_gallery_shows_what_the_stream_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second pass that records the tokens must give the very answers of the first, and leave no trace itself."""
    monkeypatch.setattr(demo, "_WINDOW", 5)
    vlm, job = demo.load("tiny"), demo.DemoJob("tiny", "contrast", 2, 24, 5)
    stream, plain, ours = demo.run_stream(job, vlm, lambda _: None), demo.CONTENDERS[0], demo.CONTENDERS[-1]
    pixels = demo.Comparison(job, vlm).pixels
    before, after = (list(demo._adapter(vlm, contender).stream(pixels)) for contender in (plain, ours))
    assert [p.index for p in after] == stream.answers[demo.OURS].tolist()
    names, kinds = demo.demo_class_names(), []
    for label, b, a in zip(stream.labels, before, after, strict=True):
        kinds.append(demo.answer_verdict(label, np.int64(b.index), np.int64(a.index)))
    assert {e.verdict for e in stream.exhibits} == set(demo.GALLERY) & set(kinds[5:])
    for exhibit in stream.exhibits:
        i = kinds.index(exhibit.verdict, 5)
        assert exhibit.truth == names[stream.labels[i]]
        assert exhibit.before == demo._answer(before[i])
        assert exhibit.after == demo._answer(after[i])
        assert len(exhibit.panels) == 6


def test_intervals() -> None:
    known = demo_summary.wilson(np.array([1.0] * 8 + [0.0] * 2))
    assert (known.low, known.value, known.high) == pytest.approx((49.02, 80.0, 94.33), abs=0.01)
    assert demo_summary.wilson(np.ones(10)).high == pytest.approx(100)
    rng = np.random.default_rng(1)
    differences = [rng.choice([-1.0, 0.0, 1.0], size=400, p=[0.05, 0.8, 0.15]) for _ in range(4)]
    state = np.random.get_state()[1].copy()
    gain = demo_summary.paired_gain(differences)
    assert (np.random.get_state()[1] == state).all()
    assert gain == demo_summary.paired_gain(differences)
    assert gain.value == pytest.approx(100 * np.mean(differences))
    spread = 100 * np.std(differences) / np.sqrt(1600)
    assert gain.high - gain.low == pytest.approx(2 * 1.96 * spread, rel=0.1)


def browse(page: Path, folder: Path) -> tuple[str, list[str]]:
    """The page as Chromium builds it, and what it wrote to the console."""
    assert CHROMIUM is not None
    quiet = ["gpu", "quic", "background-networking", "component-update", "sync"]
    flags = ["--headless", "--no-sandbox", "--no-first-run", *(f"--disable-{name}" for name in quiet)]
    flags += ["--enable-logging=stderr", "--window-size=500,900", "--dump-dom"]
    done = subprocess.run(
        [CHROMIUM, *flags, f"--user-data-dir={folder / 'profile'}", page.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.stdout, [line for line in done.stderr.splitlines() if ":CONSOLE" in line]


@pytest.mark.browser
def test_in_chromium(ran: tuple[str, dict[str, Any], str], page: str, tmp_path: Path) -> None:
    # Before the page's own rule against scripts.
    size = "document.title = `${document.documentElement.scrollWidth} of ${innerWidth}`"
    measure = f"<head><script>addEventListener('load', () => {{ {size} }})</script>"
    for name, text in (("demo", ran[0]), ("evil", page)):
        file = tmp_path / f"{name}.html"
        file.write_text(text.replace("<head>", measure), encoding="utf-8")
        dom, console = browse(file, tmp_path)
        assert console == []
        wide, window = (int(n) for n in re.findall(r"<title>(\d+) of (\d+)</title>", dom)[0])
        assert wide <= window, "the page is wider than a small window"
        assert dom.count("<tr>") == text.count("<tr>")


@pytest.mark.browser
def test_the_console_is_really_heard(tmp_path: Path) -> None:
    file = tmp_path / "loud.html"
    file.write_text("<!DOCTYPE html><title>x</title><script>console.error('heard')</script>")
    assert any("heard" in line for line in browse(file, tmp_path)[1])
