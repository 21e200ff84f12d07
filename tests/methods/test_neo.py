"""NEO against its formula, number by number."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lessmore.errors import ConfigError
from tests.methods.feature_streams import SCALE, C, E, Row, answer, assert_equal_streams, new, softmax, stream
from tests.random_towers import make_text


class SlowNEO:
    """All features in a list; their mean summed up afresh for every image."""

    def __init__(self, momentum: float = 0.0) -> None:
        self.text, self.momentum = make_text(C).numpy(), momentum
        self.seen: list[Row] = []

    def mean(self) -> Row:
        if not self.momentum:
            return np.array([sum(f[e] for f in self.seen) / len(self.seen) for e in range(E)])
        mean = np.zeros(E)
        for i, f in enumerate(self.seen, start=1):
            weight = max(1 / i, self.momentum)
            mean = (1 - weight) * mean + weight * f
        return mean

    def __call__(self, f: Row) -> Row:
        self.seen.append(f)
        rest = f if len(self.seen) == 1 else f - self.mean()
        return softmax(np.array([SCALE * sum(rest * t) for t in self.text]))


@pytest.mark.parametrize("momentum", [0.0, 0.05, 0.5])
def test_scores_equal_the_slow_reference(momentum: float) -> None:
    assert_equal_streams(new("neo", momentum=momentum), SlowNEO(momentum), stream(300), atol=1e-12)


def test_the_first_image_gets_the_answer_of_zero_shot() -> None:
    feature = stream(1)[0]
    torch.testing.assert_close(answer(new("neo"), feature), (SCALE * make_text(C) @ feature).softmax(dim=0))


def test_what_all_images_have_in_common_is_gone() -> None:
    """The mean of the re-centred logits of a whole stream, seen once before, is that of no stream at all."""
    features = stream(200)
    shifted = features + 0.8 * make_text(C)[1]
    shifted = shifted / shifted.norm(dim=1, keepdim=True)
    method = new("neo")
    for feature in shifted:
        answer(method, feature)
    again = torch.stack([answer(method, feature) for feature in shifted])
    plain = (SCALE * shifted @ make_text(C).T).softmax(dim=1)
    assert plain.mean(dim=0)[1] > 0.5
    assert again.mean(dim=0)[1] < 0.3


@pytest.mark.parametrize("momentum", [-0.1, 1.0])
def test_bad_options_are_refused(momentum: float) -> None:
    with pytest.raises(ConfigError, match="momentum"):
        new("neo", momentum=momentum)
