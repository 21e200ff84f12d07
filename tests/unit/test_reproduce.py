"""The paper's tables as data, our descriptions of them, and how runs become numbers with intervals."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lessmore.config import PRESETS, Adaptation, Condensation
from lessmore.core.condense.registry import list_reducers
from lessmore.data.registry import expand_names
from lessmore.errors import ConfigError
from lessmore.lab.spec import RunSpec
from lessmore.methods import list_methods
from lessmore.paper.measured import PaperCell, estimates, image_means, per_image_means
from lessmore.paper.plan import (
    DatasetCache,
    ReproductionRequest,
    check_rows,
    distinct_runs,
    plan_table,
    run_identity,
)
from lessmore.paper.printed import PaperTable, paper_tables
from lessmore.paper.tables import OWN, TABLES, TableRow, find_table
from tests.small_runs import draw_folder

NAMED = (
    *("cross-dataset", "cross-dataset-l14", "ood", "cifar100c", "siglip", "reservoir-strategy", "reservoir-size"),
    *("components", "budget", "beta", "lambda", "merge-prune", "centres", "tda-plus", "methods", "options", "field"),
)


def follows(table: PaperTable, row: str, average: str) -> float:
    """The average of a row as its cells give it, in the row's own unit."""
    over = table.averages[average]
    values = [table.accuracy(row, column) for column in over]
    relative = table.rows[row].relative_to
    mean = np.mean([value for value in values if value is not None])
    if not relative:
        return float(mean)
    exact = [table.accuracy(relative, c) * (1 + table.rows[row].values[table.columns.index(c)] / 100) for c in over]  # type: ignore[operator]
    return float(100 * (np.mean(exact) / np.mean([table.accuracy(relative, c) for c in over]) - 1))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", sorted(paper_tables()))
def test_averages_of_the_paper_follow_from_its_cells_or_are_marked(name: str) -> None:
    table = paper_tables()[name]
    for row in table.rows.values():
        assert len(row.values) == len(table.columns)
        assert set(row.averages) == set(table.averages)
        for average, printed in row.averages.items():
            off = abs(follows(table, row.name, average) - printed) > 0.0051
            said = [why for why in table.marks_of(row.name, average) if "average to" in why]
            assert off == bool(said), (row.name, average, follows(table, row.name, average), printed)


def test_every_inconsistency_in_an_average_is_known() -> None:
    marked = {(t.name, m.row, m.cell) for t in paper_tables().values() for m in t.marks if "average to" in m.why}
    assert marked == {
        ("cross-dataset", "Diff-TPT", "average"),
        ("ood", "Diff-TPT", "average"),
        ("ood", "Diff-TPT", "OOD average"),
    }


def test_marks_belong_to_rows_and_cells_that_exist() -> None:
    for table in paper_tables().values():
        cells = {"", "gflops", "parameters", *table.columns, *table.averages}
        assert {mark.row for mark in table.marks} <= {"", *table.rows}
        assert {mark.cell for mark in table.marks} <= cells


def test_relative_percentages_become_accuracies() -> None:
    assert paper_tables()["siglip"].accuracy("TCA R=0.9", "eurosat") == pytest.approx(39.86 * 1.2112, abs=0.01)
    assert paper_tables()["siglip"].accuracy("TCA R=0.9", "average") == pytest.approx(73.81 * 1.0221, abs=0.01)
    assert paper_tables()["cifar100c"].accuracy("TCA R=0.9", "cifar100c/contrast/5") == pytest.approx(
        2.69 * 1.1859, abs=0.01
    )
    assert paper_tables()["ood"].accuracy("TCA R=0.95", "OOD average") == 59.57
    assert paper_tables()["ood"].accuracy("TCA R=0.95", "eurosat") is None
    assert paper_tables()["ood"].accuracy("nobody", "imagenet") is None


def test_ablations_agree_with_the_main_table() -> None:
    """The rows that are the setting of the main table print the values of the main table."""
    same = {"reservoir-strategy": "diversity", "components": "both", "merge-prune": "2:1", "centres": "K=2"}
    for name, row in same.items():
        for column in paper_tables()[name].columns:
            assert paper_tables()[name].accuracy(row, column) == paper_tables()["cross-dataset"].accuracy(
                "TCA R=0.9", column
            )


def test_tables_are_those_that_were_promised() -> None:
    assert set(NAMED) <= set(TABLES)
    for table in TABLES.values():
        assert expand_names(table.datasets), table.name
        assert len({row.name for row in table.rows}) == len(table.rows)
        assert table.base in {"", *(row.name for row in table.rows)}
        assert table.name in ("options", "methods", "field") or table.paper is not None


def test_rows_named_like_the_papers_have_its_settings() -> None:
    for table in TABLES.values():
        printed = {} if table.paper is None else table.paper.rows
        for row in (row for row in table.rows if row.name in printed):
            spec = RunSpec("tiny", "eurosat", **row.run)
            theirs = printed[row.name]
            assert (spec.method, spec.reducer) == (theirs.method, theirs.reducer), (table.name, row.name)
            chosen = spec.settings()
            for name, value in theirs.settings.items():
                part = chosen.condensation if hasattr(chosen.condensation, name) else chosen.adaptation
                ours = getattr(part, name)
                assert (list(ours) if isinstance(ours, tuple) else ours) == value, (table.name, row.name, name)
        compared = {row.in_paper for row in table.rows}
        assert not printed or compared & set(printed), table.name


def test_the_papers_methods_are_methods() -> None:
    for table in paper_tables().values():
        for row in table.rows.values():
            assert row.method in list_methods() and row.reducer in list_reducers(), (table.name, row.name)


def test_drops_of_the_ood_table() -> None:
    budgets = {row.name: row.run.get("R") for row in TABLES["ood"].rows}
    assert budgets["EViT, drop 0.05"] == budgets["ToMe, drop 0.05"] == budgets["TCA R=0.95"] == 0.95
    assert budgets["EViT, drop 0.06"] == budgets["ToMe, drop 0.06"] == 0.94


def test_options_vary_all_that_paper_and_code_do_differently() -> None:
    varied = {name for row in TABLES["options"].rows for name in row.run.get("options", {})}
    tuned = {"R", "rate", "M", "lam", "beta", "sharpness"}
    for part, kind in (("condensation", Condensation), ("adaptation", Adaptation)):
        for field in fields(kind):
            values = {str(getattr(getattr(PRESETS[p], part), field.name)) for p in ("fixed", "paper", "released")}
            if len(values) > 1 and field.name not in tuned:
                assert field.name in varied, field.name
    presets = {row.run.get("preset") for row in TABLES["options"].rows}
    assert {"fixed", "paper", "released", f"released/{OWN}"} <= presets


def test_unknown_names_answer_with_near_ones() -> None:
    with pytest.raises(ConfigError, match="did you mean budget"):
        find_table("budgt")
    with pytest.raises(ConfigError, match="did you mean tokens"):
        find_table("token", ("tokens",))
    with pytest.raises(ConfigError, match="TCA R=0.9"):
        check_rows([TABLES["cross-dataset"]], ["TCA R=9"])


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"folder:{draw_folder(tmp_path_factory.mktemp('photos'), 6)}"


def request(photos: str, **more: Any) -> ReproductionRequest:
    return ReproductionRequest("tiny", (photos,), **{"seeds": (0, 1), **more})


def test_runs_that_tables_share_are_done_once(photos: str) -> None:
    asked = request(photos, corruptions=(None, "contrast:2"), common={"preset": "fixed"})
    plans = [
        plan_table(TABLES[name], asked, DatasetCache(None)) for name in ("lambda", "budget", "centres", "merge-prune")
    ]
    runs = distinct_runs(plans)
    usual = {name for one in plans for name in [one.rows[i].name for i, _ in one.cells]}
    assert {"λ=8", "R=0.9", "K=2", "2:1"} <= usual  # four names of the preset
    assert len(runs) == (7 + 5 + 4 + 3 - 3) * 2 * 2  # rows, streams, orders
    assert run_identity(RunSpec("tiny", photos)) == run_identity(
        RunSpec("tiny", photos, options={"lam": 10.0, "K": 4}, R=0.9)
    )
    assert run_identity(RunSpec("tiny", photos)) != run_identity(RunSpec("tiny", photos, seed=1))


def test_zero_shot_needs_one_order_and_tuned_rows_their_own_data(photos: str) -> None:
    one = plan_table(TABLES["cross-dataset"], request(photos), DatasetCache(None))
    at = {row.name: i for i, row in enumerate(one.rows)}
    assert len(one.cells[at["CLIP"], 0]) == 1 and len(one.cells[at["TCA R=0.9"], 0]) == 2
    assert (at["TDA, tuned"], 0) not in one.cells
    tuned = TableRow("x", {"method": "tda", "options": {"tuned_on": OWN}})
    assert tuned.on("eurosat") == {"method": "tda", "options": {"tuned_on": "eurosat"}}
    whole = TableRow("y", {"method": "tca", "preset": f"released/{OWN}"}).on("dtd")
    assert whole is not None and RunSpec("tiny", "dtd", **whole).settings().tuned_on == "dtd"


def test_the_field_has_streams_of_its_own_unless_others_are_named(photos: str) -> None:
    one = plan_table(TABLES["field"], request(photos), DatasetCache(None))
    assert len(one.columns) == 4 * 7
    assert [c.order for c in one.columns[::7]] == ["iid", "sorted", "few", "camera"]
    at = {row.name: i for i, row in enumerate(one.rows)}
    seeds = {c.order: len(one.cells[at["zero-shot"], j]) for j, c in enumerate(one.columns)}
    assert seeds == {"iid": 1, "sorted": 1, "few": 2, "camera": 2}  # the seed chooses what the last two see
    few = plan_table(TABLES["field"], request(photos, orders=("iid", "few"), corruptions=(None,)), DatasetCache(None))
    assert [(c.corruption, c.order) for c in few.columns] == [(None, "iid"), (None, "few")]
    other = plan_table(TABLES["beta"], request(photos, orders=("sorted",)), DatasetCache(None))
    assert {spec.order for specs in other.cells.values() for spec in specs} == {"sorted"}


def test_every_method_that_needs_no_file_is_in_the_field() -> None:
    methods = {row.run["method"] for row in TABLES["field"].rows}
    assert set(list_methods()) - methods == {"coop", "cocoop", "diff-tpt"}


def test_rows_that_need_more_are_run_when_named(photos: str) -> None:
    table = TABLES["cross-dataset"]
    assert "TPT" in {row.name for row in plan_table(table, request(photos), DatasetCache(None)).left_out}
    named = plan_table(table, request(photos, rows=("tpt", "TCA*")), DatasetCache(None))
    assert [row.name for row in named.rows] == ["TPT", "TCA R=0.9", "TCA R=0.7"]


def test_missing_data_are_named_with_a_way_to_get_them(tmp_path: Path) -> None:
    one = plan_table(
        TABLES["beta"], ReproductionRequest("tiny", common={"root": str(tmp_path)}), DatasetCache(tmp_path)
    )
    assert not one.columns and not one.cells
    assert "robots.ox.ac.uk" in one.missing["oxford_pets"]
    assert plan_table(TABLES["beta"], ReproductionRequest("tiny"), DatasetCache(None), absent=True).cells
    with pytest.raises(ConfigError, match="EuroSAT"):
        plan_table(TABLES["beta"], ReproductionRequest("tiny", ("eurosat",)), DatasetCache(tmp_path))


def test_a_list_without_images_is_no_data_set(tmp_path: Path) -> None:
    listed = tmp_path / "list.csv"
    listed.write_text("path,label\nnowhere.png,cat\nnever.png,dog\n")
    assert "never.png" in str(DatasetCache(None)(f"manifest:{listed}"))


def cell(right: np.ndarray, plain: np.ndarray, data: str = "a") -> PaperCell:
    """One visit per image."""
    images = np.array([f"{data}{i:04}" for i in range(len(right))])
    values = 100 * np.stack([right, plain], axis=1).astype(float)
    return PaperCell(({"dataset": {"fingerprint": data}},), per_image_means(images, values))


def test_an_average_over_streams_of_different_images_lies_in_its_interval() -> None:
    """Few images on which much is lost beside many on which nothing is: each stream counts once, not each image."""
    generator = np.random.default_rng(2)
    plain = generator.random(300) < 0.7
    many, few = cell(plain, plain), cell(np.zeros(20, dtype=bool), np.ones(20, dtype=bool))
    value, low, high = estimates([many, few])["gain"]
    assert value == -50.0
    assert low <= value <= high


def test_more_orders_of_the_same_answers_leave_the_interval_as_it_is() -> None:
    generator = np.random.default_rng(1)
    right, plain = generator.random(200) < 0.7, generator.random(200) < 0.6
    once = cell(right, plain)
    images = np.concatenate([once.values.images] * 3)
    thrice = PaperCell(once.summaries, per_image_means(images, np.concatenate([once.values.means] * 3)))
    assert estimates([once]) == estimates([thrice])
    assert estimates([once])["gain"][0] == pytest.approx(100 * (right.mean() - plain.mean()), abs=1e-3)


def test_corruptions_of_the_same_photographs_are_not_more_photographs() -> None:
    generator = np.random.default_rng(2)
    right, plain = generator.random((2, 300)) < 0.7, generator.random((2, 300)) < 0.5
    first, other = cell(right[0], plain[0]), cell(right[0], plain[0], data="b")
    alone, again, both = estimates([first]), estimates([first, first]), estimates([first, other])
    assert alone == again
    width = {name: e["gain"][2] - e["gain"][1] for name, e in (("alone", alone), ("both", both))}
    assert width["both"] == pytest.approx(width["alone"] / np.sqrt(2), rel=0.1)


def test_resampling_is_the_bootstrap() -> None:
    generator = np.random.default_rng(3)
    values = generator.integers(0, 4, size=(80, 2)) * 100 / 3
    found = image_means(values, np.random.default_rng(0))
    drawn = values[generator.integers(80, size=(10_000, 80))].mean(axis=1)
    assert found.mean(axis=0) == pytest.approx(values.mean(axis=0), rel=0.01)
    assert np.quantile(found, (0.025, 0.975), axis=0) == pytest.approx(
        np.quantile(drawn, (0.025, 0.975), axis=0), rel=0.03
    )
