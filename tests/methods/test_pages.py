"""The pages about methods: every method is listed, and the costs they print are those of `lessmore flops`."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from lessmore.lab.weightless import BlankVLM, blank_method, blank_model, made_up_files
from lessmore.methods import Method
from lessmore.methods.registry import METHODS
from lessmore.methods.resolve import resolve

DOCS = Path(__file__).parents[2] / "docs"
NAMES = {"zero-shot": "zeroshot"}


@cache
def model() -> BlankVLM:
    return blank_model("ViT-B-16")


def counted(name: str, classes: int) -> Method:
    with made_up_files(name, model()) as files:
        settings = resolve(name, options=files, shape=model().vision.shape)
    return blank_method(name, model(), settings.preset, ["x"] * classes, {})


def table(page: str, head: str) -> list[list[str]]:
    """Cells of the table of a page whose head begins like that."""
    lines = (DOCS / page).read_text(encoding="utf-8").splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(head))
    rows = [line for line in lines[start + 2 :] if not line.startswith("|---")]
    end = next(i for i, line in enumerate(rows) if not line.startswith("|"))
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[:end]]


LISTED = table("methods/README.md", "| method | name |")


def test_every_method_is_listed_and_has_a_page() -> None:
    listed = [name.strip("`") for _, name, *_ in LISTED]
    assert sorted(listed) == sorted(set(METHODS.names()) - set(METHODS.installed()))
    for link, name, *_ in LISTED:
        page = DOCS / "methods" / link.split("(")[1].rstrip(")")
        assert page.read_text(encoding="utf-8").splitlines()[0].endswith(f"({name})"), page


@pytest.mark.parametrize("row", LISTED, ids=[row[1].strip("`") for row in LISTED])
def test_the_list_states_facts_and_costs(row: list[str]) -> None:
    _, name, _, _, views, _, learns, cost = row
    method = counted(name.strip("`"), 100)
    assert (str(method.facts.views), learns.replace("–", "0")) == (views, f"{method.facts.learnable_parameters:,}")
    printed = [float(number.replace(",", "")) for number in re.findall(r"\d[\d,]*\.?\d*", cost.split("R =")[0])]
    if not printed:
        return  # as another method
    encoding = method.facts.views * counted("zeroshot", 100).macs("paper") / 1e9
    assert printed[0] == pytest.approx(encoding, abs=0.05 if encoding < 100 else 0.5)
    if "gradient" in cost:
        assert printed[1] == pytest.approx(method.macs() / 1e9, abs=0.05)


@pytest.mark.parametrize("row", table("measuring.md", "| | `paper`, 10 |"), ids=lambda row: row[0])
def test_the_table_of_costs_is_what_flops_prints(row: list[str]) -> None:
    for title in re.sub(r" (at|without) .*", "", row[0]).split(", "):
        methods = [counted(NAMES.get(title, title.lower()), classes) for classes in (10, 1000)]
        costs = [method.macs(accounting) / 1e9 for method in methods for accounting in ("paper", "matmul")]
        for printed, cost in zip(row[1:], costs, strict=True):
            digits = len(printed.partition(".")[2])
            assert f"{cost:,.{digits}f}" == printed, title
