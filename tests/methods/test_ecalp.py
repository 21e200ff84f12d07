"""ECALP against its definition: a dense matrix of all nodes, made afresh for every image."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from lessmore.errors import ConfigError, StateError
from lessmore.methods.ecalp import Edges, propagate
from tests.methods.feature_streams import C, Row, assert_equal_streams, give, new, stream
from tests.random_towers import make_text


class SlowECALP:
    """Images by number; neighbours as lists of (similarity, number); the graph as one matrix."""

    def __init__(
        self,
        images: int = 8,
        texts: int = 3,
        gamma: float = 10.0,
        rounds: int = 3,
        carry: float = 0.2,
        capacity: int = 4096,
    ) -> None:
        self.text = make_text(C).numpy()
        self.weights = self.text.var(axis=0)
        self.k, self.texts, self.gamma, self.rounds = images, texts, gamma, rounds
        self.carry, self.capacity = carry, capacity
        self.t = 0
        self.features: dict[int, Row] = {}
        self.nearest: dict[int, list[tuple[float, int]]] = {}
        self.beliefs: dict[int, tuple[int, float]] = {}

    def similarity(self, old: Row, new: Row) -> float:
        tilted = self.weights * old
        return float(tilted @ new / np.sqrt(tilted @ tilted))

    def closest(self, found: list[tuple[float, int]]) -> list[tuple[float, int]]:
        return sorted(found, key=lambda pair: -pair[0])[: self.k]

    def __call__(self, f: Row) -> Row:
        now, twin = self.t, self.t + 1
        self.t += 1
        gone = now - self.capacity
        if gone >= 0:
            del self.features[gone], self.nearest[gone], self.beliefs[gone]
            self.nearest = {i: [(s, j) for s, j in row if j != gone] for i, row in self.nearest.items()}
        self.features[now] = f
        near = {i: self.similarity(g, f) for i, g in self.features.items()}
        rows = {i: self.closest([*row, (near[i], now), (near[i], twin)]) for i, row in self.nearest.items()}
        # Ties with the present image go by place in the ring, where a full one starts again at 0.
        by_place = sorted(near, key=lambda i: i % self.capacity)
        mine = self.closest([*((near[i], i) for i in by_place), (near[now], twin)])
        rows |= {now: mine, twin: mine}
        labels = self.labels(rows, {**self.features, twin: f})
        self.beliefs = {i: (int(row.argmax()), self.carry * row.max()) for i, row in labels.items() if i != twin}
        for i, row in self.nearest.items():
            self.nearest[i] = self.closest([*row, (near[i], now)])
        self.nearest[now] = self.closest([(near[i], i) for i in by_place])
        out = labels[twin]
        return out / out.sum()

    def labels(self, rows: dict[int, list[tuple[float, int]]], features: dict[int, Row]) -> dict[int, Row]:
        numbers = sorted(rows)
        node = {i: C + at for at, i in enumerate(numbers)}
        size = C + len(numbers)
        edges = np.zeros((size, size))
        for i in numbers:
            for s, j in rows[i]:
                edges[node[i], node[j]] = max(s, 0) ** self.gamma
            cosines = self.text @ features[i]
            for c in np.argsort(-cosines)[: self.texts]:
                edges[node[i], c] = max(cosines[c], 0) ** self.gamma
        both = edges + edges.T
        scale = 1 / (np.sqrt(both.sum(axis=1)) + 1e-6)
        both = scale[:, None] * both * scale
        now = np.zeros((size, C))
        now[:C] = np.eye(C)
        for i, (label, value) in self.beliefs.items():
            now[node[i], label] = value
        for _ in range(self.rounds):
            now = both @ now
            now[:C] = np.eye(C)
        return {i: now[node[i]] for i in numbers}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"images": 3, "texts": 1},
        {"gamma": 2.0, "rounds": 1},
        {"texts": 9, "carry": 1.0},
        {"capacity": 12},
        {"capacity": 5, "images": 8},
        {"capacity": 1},
    ],
)
def test_scores_equal_the_slow_reference(options: dict[str, Any]) -> None:
    assert_equal_streams(new("ecalp", **options), SlowECALP(**options), stream(90), atol=1e-10)


def test_a_neighbour_with_a_label_decides_between_two_texts() -> None:
    """Image 1 is equally near to both texts and points at image 0, which has the label 1 and no text of its own."""
    graph = Edges(
        nearest=torch.tensor([[0], [0]]),
        weights=torch.tensor([[0.0], [0.5]], dtype=torch.float64),
        text_nearest=torch.tensor([[0, 1], [0, 1]]),
        text_weights=torch.tensor([[0.0, 0.0], [0.3, 0.3]], dtype=torch.float64),
    )
    start = torch.tensor([[0.0, 0.7], [0.0, 0.0]], dtype=torch.float64)
    helped = propagate(graph, start, rounds=1)[1]
    text, image = 0.3 / (1.1 * 0.3) ** 0.5, 0.7 * 0.5 / (1.1 * 0.5) ** 0.5
    torch.testing.assert_close(helped, torch.tensor([text, text + image], dtype=torch.float64), rtol=0, atol=1e-5)
    alone = propagate(graph, torch.zeros_like(start), rounds=1)[1]
    torch.testing.assert_close(alone, torch.full_like(alone, text), rtol=0, atol=1e-5)


def test_a_text_that_many_images_point_at_says_less_to_each() -> None:
    """What D does: image 0 is equally near to both texts, and two others point at text 0 alone."""
    graph = Edges(
        nearest=torch.zeros(3, 1, dtype=torch.int64),
        weights=torch.zeros(3, 1, dtype=torch.float64),
        text_nearest=torch.tensor([[0, 1], [0, 1], [0, 1]]),
        text_weights=torch.tensor([[0.4, 0.4], [0.4, 0.0], [0.4, 0.0]], dtype=torch.float64),
    )
    found = propagate(graph, torch.zeros(3, 2, dtype=torch.float64), rounds=1)[0]
    expected = torch.tensor([0.4 / (0.8 * 1.2) ** 0.5, 0.4 / (0.8 * 0.4) ** 0.5], dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_an_image_that_no_text_is_near_gets_the_answer_of_zero_shot() -> None:
    text = torch.eye(8, dtype=torch.float64)[:2]
    outcome = give(new("ecalp", text), -(text[0] + 2 * text[1]) / 5**0.5)
    torch.testing.assert_close(outcome.scores, outcome.zero_shot)


@pytest.mark.parametrize(
    ("options", "words"),
    [({"images": 0}, "at least 1"), ({"capacity": 0}, "at least 1"), ({"gamma": 0.0}, "gamma"), ({"carry": -1.0}, "c")],
)
def test_bad_options_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        new("ecalp", **options)


@pytest.mark.parametrize(
    ("name", "value"), [("nearest", 10**6), ("text_nearest", C), ("labels", -1), ("labels", C), ("seen", -3)]
)
def test_a_state_that_points_nowhere_is_refused(name: str, value: int) -> None:
    method = new("ecalp")
    state = method.state()
    state[name] = torch.full_like(state[name], value)
    with pytest.raises(StateError, match=name):
        method.restore(state)
