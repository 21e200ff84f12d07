"""Which TCA is meant: no table, page or figure says TCA without its preset, and only `paper` is the paper's."""

from __future__ import annotations

import json
import re
from pathlib import Path

from lessmore.config import PRESETS
from lessmore.lab import demo
from lessmore.lab.labels import method_label, preset_label, preset_note
from lessmore.lab.report.tables import result_page, result_table
from lessmore.paper.show import table_page
from tests.unit.test_tables import summary

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "reproduce"


def test_every_preset_says_what_it_is_and_only_one_is_the_papers() -> None:
    told = {name: preset_label(name) for name in PRESETS}
    assert len({preset_label(name) for name in PRESETS if "/" not in name}) == len([n for n in PRESETS if "/" not in n])
    assert [name for name, label in told.items() if "as the paper" in label] == ["paper"]
    assert all("test labels" in label for name, label in told.items() if "/" in name)


def test_tables_of_runs_say_which_presets_they_hold() -> None:
    notes = " ".join(
        result_page(result_table([summary(), summary(preset="fixed"), summary(method="tda", preset="bold")])).notes
    )
    assert f"default: {preset_label('default')}; fixed: {preset_label('fixed')}. Only preset paper" in notes
    assert "bold:" not in notes, "a method without TCA's settings has no preset to explain"
    assert preset_note([]) == ""


def test_stored_tables_name_the_preset_of_every_row_of_tca() -> None:
    files = sorted(RESULTS.glob("*/*.json"))
    assert len(files) > 10
    for file in files:
        shown = table_page(json.loads(file.read_text(encoding="utf-8")))
        ours = [line[0].text for grid in shown.grids[:1] for line in grid.lines]
        assert not [name for name in ours if re.match(r"TCA(?! \()", name)], file
        assert sum("Only preset paper is the paper's TCA" in note for note in shown.notes) == 1, file


def test_the_demo_and_the_figures_name_their_preset() -> None:
    assert demo.OURS == "TCA (default)"
    assert method_label("TCA", "tca", "fixed") == "TCA (fixed)" and method_label("TDA", "tda", "fixed") == "TDA"
