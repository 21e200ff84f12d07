"""Small things on pages and plots that cost people time in 0.1."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import lessmore
from lessmore.cli import main
from lessmore.lab.report import charts, overview, tokens
from lessmore.lab.report.html import lead_sentence
from lessmore.lab.report.page import Estimate
from lessmore.lab.report.runs import find_runs
from lessmore.paper.figures import plots
from tests.synthetic_runs import write_run


def line(number: int, accuracy: float, gmacs: float, ms: float) -> overview.OverviewLine:
    at = Estimate(accuracy, accuracy - 2, accuracy + 2)
    same = {"runs": ((0, str(number)),), "images": (100,), "zero_shot": at, "gain": Estimate(number, 0, 9), "ece": 4.0}
    return overview.OverviewLine(
        number=number, settings=("m",), stream="s", accuracy=at, zero_shot_ece=3.0, gmacs=gmacs, plain_gmacs=1.0,
        ms=ms, tuned=False, plain=False, **same,  # type: ignore[arg-type]
    )  # fmt: skip


def test_points_that_lie_together_share_a_label() -> None:
    """Labels overprinted."""
    svg = overview.cost_chart(
        [line(1, 80, 0.9, 9), line(2, 80, 0.9, 9), line(3, 90, 0.5, 5)], lambda one: one.gmacs, "x"
    )
    assert re.findall(r'class="note">([^<]+)<', svg) == ["1, 2", "3"]


def test_a_time_axis_does_not_blow_up_noise() -> None:
    """143.5 to 144.5 ms were stretched over the whole width."""
    axis = charts.round_axis(charts.at_least_wide([143.5, 144.5]))
    assert axis.high - axis.low >= 0.2 * 144.5 and axis.low > 0
    assert charts.at_least_wide([10, 100]) == [10, 100]


def test_the_headline_speaks_of_calibration_and_the_page_opens_where_most_happened(tmp_path: Path) -> None:
    write_run(tmp_path, 200, 4, method="tda")
    write_run(tmp_path, 600, 4, method="tca", seed=3)
    runs = find_runs([tmp_path])[0]
    found = overview.overview(runs)
    sure = [run.summary["metrics"]["confidence_ece"] for run in runs]
    assert f"Calibration error on average: {100 * np.mean(sure):.1f} points, zero-shot's" in lead_sentence(found)
    most = max(runs, key=lambda run: abs(run.summary["metrics"]["gain"]))
    assert found.opened == most.summary["key"]
    page = tmp_path / "r.html"
    assert main(["report", str(tmp_path), "-o", str(page), "--no-pictures", "--quiet"]) == 0
    text = page.read_text()
    place = [run.summary["key"] for run in runs].index(most.summary["key"])
    assert f'<option value="{place}" selected>' in text and text.count(" selected>") == 1
    assert "with picture ▣" in text and "border-collapse: separate" in text


def test_a_strip_wraps_and_pruned_patches_are_hatched() -> None:
    """ToMe's strip was one row of 2,660 pixels, and black cannot be seen on dark objects."""
    adapter = lessmore.adapt("tiny", ["red circle", "blue square"], cache=False, R=0.6, layers=(1, 2, 3))
    picture = Image.fromarray(np.zeros((64, 64, 3), dtype=np.uint8))
    prediction = adapter(picture, trace=True)
    strip = tokens.prediction_strip(adapter, picture, prediction)
    many = tokens._mount([picture] * 13, ["caption"] * 13, ["line"])
    assert many.width < 1300 and many.height > 3 * 64
    assert strip.width < 1300
    square = tokens.hatched(24)
    assert square.shape == (24, 24, 3) and set(np.unique(square)) == {0, 120} and 0.1 < (square > 0).mean() < 0.3


def test_plots_draw_zero_shot_once_and_no_empty_panel(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    write_run(tmp_path, 120, 4, method="tca")
    write_run(tmp_path, 121, 4, method="zeroshot", reducer="none")
    lines = plots.lines_of([tmp_path])
    drawn = plots.plot_over_time(lines)
    for ax in drawn.figure.axes:
        assert not [name for name in ax.get_legend_handles_labels()[1] if name.startswith("matched")]
    gains = plots.plot_class_gains(lines)
    bars = [bar.get_width() for ax in gains.figure.axes for bar in ax.patches]
    assert bars and all(bars)
