"""A prediction as people see it: in a prompt, in a notebook, as JSON."""

from __future__ import annotations

import json
from html.parser import HTMLParser

import pytest
import torch

from lessmore import Prediction

SCORES = torch.tensor([0.2, 0.5, 0.3])
BEFORE = torch.tensor([0.6, 0.3, 0.1])
HOSTILE = ("<script>alert(1)</script>", 'a "b" & <i>c</i>', "plain")


def made(classes: tuple[str, ...] = ("cat", "dog", "fox"), **more: object) -> Prediction:
    return Prediction(classes[1], 1, SCORES, SCORES, BEFORE, 0.898, classes=classes, **more)  # type: ignore[arg-type]


class Outline(HTMLParser):
    """The tags and texts of a page, and whether every tag is closed in its place."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open.append(tag)
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_repr_names_the_best_classes_and_what_zero_shot_said() -> None:
    assert repr(made()) == (
        "Prediction('dog' 0.500, 'fox' 0.300, 'cat' 0.200; zero-shot 'cat' 0.600; changed by adaptation)"
    )
    assert "refused" in repr(made(refused=True))
    assert "group 'pets' 0.700" in repr(made(groups=("pets", "pets", "wild")))


def test_top_takes_the_first_of_equal_classes() -> None:
    assert [name for name, _ in made().top(2)] == ["dog", "fox"]
    assert len(made().top(99)) == 3 and made().top(0) == []
    even = Prediction("a", 0, torch.full((3,), 1 / 3), torch.full((3,), 1 / 3), BEFORE, 0.0, classes=("a", "b", "c"))
    assert [name for name, _ in even.top()] == ["a", "b", "c"]


def test_the_dictionary_is_json_and_holds_the_answer() -> None:
    found = json.loads(json.dumps(made(groups=("pets", "pets", "wild")).to_dict(k=2)))
    assert found["label"] == "dog" and found["confidence"] == pytest.approx(0.5)
    assert [one["label"] for one in found["top"]] == ["dog", "fox"]
    assert found["zero_shot"] == {"label": "cat", "score": pytest.approx(0.6)}
    assert found["group"] == "pets" and found["group_scores"]["wild"] == pytest.approx(0.3)
    assert "group" not in made().to_dict()


def test_the_table_is_well_formed_and_names_are_text() -> None:
    page = Outline(made(HOSTILE)._repr_html_())
    assert set(page.tags) == {"table", "caption", "tr", "th", "td", "b", "div", "span"}
    for name in HOSTILE:
        assert name in page.texts
    assert page.tags.count("tr") == 4


def test_bars_are_as_long_as_their_probability() -> None:
    page = made()._repr_html_()
    assert page.index("width:6.0em") < page.index("width:3.6em") < page.index("width:2.4em")
    assert "margin-left:7.2em" in page  # zero-shot's 0.6 of cat
