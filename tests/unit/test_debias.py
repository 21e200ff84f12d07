"""The stream mean: against loops in float64, and what it must do on streams made for the purpose."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lessmore.config import preset
from lessmore.core import debias
from lessmore.core.class_texts import ClassTexts
from lessmore.core.debias import (
    MEMORY,
    OFTEN,
    RECENT,
    RULES,
    StreamMean,
    centred,
    empty_stream_mean,
    observe,
    trust,
)
from lessmore.methods import Setup, make_method
from lessmore.methods.tca import TCA
from tests.random_towers import make_images, make_text, make_vit
from tests.reference import Centre as SlowMean

C = 8


def texts(seed: int, common: float = 1.0, C: int = C) -> Tensor:
    """Class texts [C, 16] that have a direction in common."""
    random = torch.Generator().manual_seed(seed)
    own, shared = torch.randn(C, 16, generator=random), torch.randn(16, generator=random)
    return F.normalize((own + common * shared).double(), dim=-1)


def stream(labels: Tensor, offset: Tensor, seed: int, noise: float = 1.5) -> Tensor:
    """Logits [T, C] of images of these classes, all of them displaced by the same offset [C]."""
    random, C = torch.Generator().manual_seed(seed), len(offset)
    return 6.0 * F.one_hot(labels, C) + noise * torch.randn(len(labels), C, generator=random) + offset


def labels_of(T: int, seed: int, C: int = C, often: float = 0.0) -> Tensor:
    """Classes [T], all alike but for class 3, which gets a share more."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, C, (T,), generator=random)
    return torch.where(torch.rand(T, generator=random) < often, 3, labels)


def offsets(count: int, size: float, C: int = C) -> Tensor:
    """Displacements of whole domains, [count, C]."""
    return size * torch.randn(count, C, generator=torch.Generator().manual_seed(5))


def plain_texts(text: Tensor) -> ClassTexts:
    """Class texts whose logits are the features themselves, with the cosines of other texts [C, E] to their mean."""
    return ClassTexts.of(text, 1.0)._replace(text=torch.eye(len(text), dtype=text.dtype))


def nothing(C: int, dtype: torch.dtype = torch.float32) -> StreamMean:
    """A stream mean that has seen nothing, for features that are logits of C classes."""
    return empty_stream_mean(C, C, "cpu", dtype)


def follow(
    logits: Iterable[Tensor], text: Tensor, start: StreamMean | None = None, how: str = "careful"
) -> tuple[Tensor, list[StreamMean]]:
    """Answers [T, C], and what is remembered after each image."""
    towards, state = plain_texts(text), start or nothing(len(text))
    answers, states = [], []
    for z in logits:
        answer, state = observe(state, z, z, towards, RULES[how])
        answers.append(answer)
        states.append(state)
    return torch.stack(answers), states


def side_by_side(logits: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Of S streams [T, C]: answers [S, T, C], domain changes [S, T], and the mean logits that each ends with [S, C]."""
    rows = torch.stack(logits)
    S, T, C = rows.shape
    towards, state = plain_texts(texts(0, C=C).float()), StreamMean(*(torch.stack([t] * S) for t in nothing(C)))
    observe_each = torch.vmap(observe, in_dims=(0, 0, 0, None, None))
    answers, changes = [], []
    for i in range(T):
        answer, state = observe_each(state, rows[:, i], rows[:, i], towards, RULES["careful"])
        answers.append(answer)
        changes.append(state.domain_changes)
    mean = centred(state.feature_sum / state.images.unsqueeze(1))
    return torch.stack(answers, dim=1), torch.stack(changes, dim=1), mean


def accuracy(answers: Tensor, labels: Tensor) -> float:
    return float((answers.argmax(dim=-1) == labels).float().mean())


KINDS = {
    "many classes": (labels_of(220, 0), 1.0),
    "texts alike": (labels_of(220, 1), 4.0),
    "a frequent class": (labels_of(220, 2, 16, often=0.4), 0.0),
    "runs": (labels_of(22, 3).repeat_interleave(10), 1.0),
    "sorted": (labels_of(220, 4).sort().values, 1.0),
}


@pytest.mark.parametrize("how", ["careful", "bold", "camera"])
@pytest.mark.parametrize("moves", [False, True])
@pytest.mark.parametrize("kind", list(KINDS))
def test_equals_loops_in_float64(kind: str, moves: bool, how: str) -> None:
    labels, common = KINDS[kind]
    classes = 16 if kind == "a frequent class" else C
    text, (first, second) = texts(0, common, classes), offsets(2, 2.0, classes).double()
    logits = stream(labels, first, 1).double()
    if moves:
        logits[120:] += second - first
    slow, start = SlowMean(text.numpy(), how), nothing(classes, torch.float64)
    answers, states = follow(logits, text, start, how)
    for z, answer, state in zip(logits, answers, states, strict=True):
        np.testing.assert_allclose(answer, slow.observe(z.numpy(), z.numpy()), rtol=0, atol=1e-8)
        assert float(state.strength) == pytest.approx(slow.w, abs=1e-10)
        assert int(state.domain_changes) == slow.changes
    single, _ = follow(logits.float(), text.float(), how=how)
    torch.testing.assert_close(single.double(), answers, rtol=0, atol=1e-3)
    # The comparison is worth something only if the streams reach what is special about them.
    last = states[-1]
    if kind == "many classes":
        assert float(last.strength) > 0.3
        assert (float(last.effective_samples) == pytest.approx(MEMORY)) != moves  # some of it was forgotten
        assert int(last.domain_changes) == moves
    if kind == "a frequent class":
        assert float(last.standout_counts.max() / last.standout_counts.sum()) > OFTEN / classes


def test_the_first_image_gets_zero_shots_answer() -> None:
    text = texts(0)
    for z in stream(labels_of(20, 3), torch.arange(C).float(), 3):
        answers, (state,) = follow([z], text)
        torch.testing.assert_close(answers[0], z - z.mean())  # softmax knows no constant
        assert float(state.strength) == 0


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_logits_that_are_not_finite_leave_no_trace(bad: float) -> None:
    text, logits = texts(0), stream(labels_of(30, 0), torch.arange(C).float(), 0)
    _, states = follow(logits, text)
    broken = logits[0].clone()
    broken[3] = bad
    answer, after = observe(states[-1], broken, broken, plain_texts(text), RULES["careful"])
    torch.testing.assert_close(answer, broken, rtol=0, atol=0, equal_nan=True)
    assert all(torch.equal(a, b) for a, b in zip(after, states[-1], strict=True))
    _, first = observe(nothing(C), broken, broken, plain_texts(text), RULES["careful"])
    assert all(not t.any() for t in first)


def test_a_displacement_of_all_images_is_removed_in_the_end() -> None:
    labels, offset = labels_of(600, 1), offsets(1, 4.0)[0]
    logits = stream(labels, offset, 1)
    answers, states = follow(logits, texts(0))
    before, after = accuracy(logits[300:], labels[300:]), accuracy(answers[300:], labels[300:])
    assert before < 0.7
    assert after > 0.95
    assert accuracy(stream(labels, torch.zeros(C), 1), labels) > 0.95  # which is what there was to regain
    assert float(states[-1].strength) > 0.7


@pytest.mark.parametrize(("classes", "size"), [(8, 2.0), (8, 4.0), (40, 1.5)])
def test_a_new_domain_is_noticed_and_the_mean_starts_again(
    classes: int, size: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = offsets(2, size, classes)
    labels = [labels_of(400, seed, classes) for seed in range(6)]
    logits = [
        torch.cat([stream(y[:300], first, seed), stream(y[300:], second, seed + 50)]) for seed, y in enumerate(labels)
    ]
    answers, changes, means = side_by_side(logits)
    assert not changes[:, 299].any()
    assert (changes[:, 359] >= 1).all()
    assert (changes[:, -1] <= 2).all()  # the first may come before all of the last images are new
    apart = (second - second.mean()) - (first - first.mean())
    assert ((means - (second - second.mean())).norm(dim=1) < 0.3 * apart.norm()).all()
    new = torch.stack(labels)[:, 300:]
    monkeypatch.setattr(debias, "ALARM", float("inf"))
    blind, ignored, _ = side_by_side(logits)
    assert not ignored.any()
    assert accuracy(answers[:, 300:], new) > accuracy(blind[:, 300:], new) + 0.01
    assert accuracy(answers[:, 300:], new) > accuracy(torch.stack(logits)[:, 300:], new) + 0.03


def test_at_a_change_the_past_counts_as_much_as_the_last_images() -> None:
    first, second = offsets(2, 4.0)
    logits = torch.cat([stream(labels_of(150, 0), first, 0), stream(labels_of(60, 9), second, 9)])
    _, states = follow(logits, texts(0))
    at = next(i for i, state in enumerate(states) if state.domain_changes > 0)
    before, after = states[at - 1], states[at]
    assert float(before.images) > 3 * RECENT
    assert float(after.images) == pytest.approx(RECENT)
    assert float(after.answer_counts.sum()) == float(after.standout_counts.sum()) == pytest.approx(RECENT, rel=1e-5)
    torch.testing.assert_close(after.feature_sum / after.images, after.recent_feature)


@pytest.mark.parametrize("size", [0.0, 3.0])
def test_a_stream_of_many_classes_is_one_domain(size: float) -> None:
    offset = offsets(1, size, 40)[0]
    _, changes, _ = side_by_side([stream(labels_of(2000, seed, 40), offset, seed) for seed in range(5)])
    assert not changes[:, -1].any()


@pytest.mark.parametrize("order", ["sorted", "runs of 20"])
def test_runs_of_a_class_are_hardly_ever_taken_for_domains(order: str) -> None:
    """Of images that zero-shot would tell apart, were they not displaced."""
    drawn = [labels_of(2000 if order == "sorted" else 100, seed) for seed in range(5)]
    labels = [y.sort().values if order == "sorted" else y.repeat_interleave(20) for y in drawn]
    _, changes, _ = side_by_side([stream(y, offsets(1, 3.0)[0], seed) for seed, y in enumerate(labels)])
    assert not changes[:, 999].any()
    assert (changes[:, -1] <= 1).all()


@pytest.mark.parametrize(("size", "noise"), [(0.0, 1.5), (1.5, 2.5)])
def test_a_frequent_class_keeps_its_answers(size: float, noise: float, monkeypatch: pytest.MonkeyPatch) -> None:
    offset, labels = offsets(1, size, 20)[0], [labels_of(600, seed, 20, often=0.4) for seed in range(6)]
    logits = [stream(y, offset, seed, noise) for seed, y in enumerate(labels)]
    truth, frequent = torch.stack(labels), torch.stack(labels) == 3
    lifted = side_by_side(logits)[0]
    monkeypatch.setattr(debias, "LIFT", 0.0)
    plain, zero_shot = side_by_side(logits)[0], torch.stack(logits)
    assert accuracy(lifted[frequent], truth[frequent]) > accuracy(plain[frequent], truth[frequent]) + 0.003
    assert accuracy(lifted, truth) > accuracy(plain, truth)
    assert accuracy(lifted, truth) > accuracy(zero_shot, truth) - 0.002


def test_without_displacement_nothing_is_lost() -> None:
    labels = labels_of(600, 4)
    logits = stream(labels, torch.zeros(C), 4, noise=2.5)
    answers, _ = follow(logits, texts(0))
    assert accuracy(answers, labels) > accuracy(logits, labels) - 0.01


def test_one_class_alone_is_no_domain() -> None:
    labels = torch.full((400,), 3)
    logits = stream(labels, torch.zeros(C), 0, noise=0.7)
    answers, states = follow(logits, texts(0))
    assert max(float(state.strength) for state in states) < 0.05
    assert torch.equal(answers.argmax(dim=1), logits.argmax(dim=1))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_one_class_on_which_zero_shot_often_errs_is_left_alone_with_care(seed: int) -> None:
    """Zero-shot's wrong answers are spread over the classes: only the shape of the rest shows that there is one."""
    labels = torch.full((600,), 3)
    logits = stream(labels, torch.zeros(C), seed, noise=2.5)
    careful, bold = (accuracy(follow(logits, texts(0), how=how)[0], labels) for how in ("careful", "bold"))
    assert 0.75 < accuracy(logits, labels) < 0.9
    assert careful > accuracy(logits, labels) - 0.01
    assert bold < careful - 0.2  # that is what it is called bold for


def test_care_costs_nothing_in_the_end_where_classes_are_many() -> None:
    labels, offset = labels_of(600, 1), offsets(1, 4.0)[0]
    careful, bold = (follow(stream(labels, offset, 1), texts(0), how=how)[0][300:] for how in ("careful", "bold"))
    assert accuracy(careful, labels[300:]) > accuracy(bold, labels[300:]) - 0.01


def test_streams_can_be_mapped_over() -> None:
    text = texts(0)
    logits = [stream(labels_of(40, seed), torch.arange(C).float(), seed) for seed in range(3)]
    alone = [follow(each, text)[0] for each in logits]
    states = StreamMean(*(torch.stack([t] * 3) for t in nothing(C)))
    observe_each = torch.vmap(observe, in_dims=(0, 0, 0, None, None))
    for i in range(40):
        rows = torch.stack([each[i] for each in logits])
        answers, states = observe_each(states, rows, rows, plain_texts(text), RULES["careful"])
        torch.testing.assert_close(answers, torch.stack([each[i] for each in alone]))


def tca(**options: object) -> TCA:
    vit = make_vit(dtype=torch.float32)
    text = make_text(4, vit.shape.embed, seed=0, dtype=torch.float32)
    method = make_method("tca", Setup(vit, text, 20.0, preset("labelfree", layers=(1, 2, 3), **options)))
    assert isinstance(method, TCA)
    return method


def statistics(method: TCA) -> list[Tensor]:
    """What debiasing remembers."""
    return [*method.stream.stream_mean, method.stream.token_mean]


def test_tca_goes_on_bit_for_bit_from_a_state() -> None:
    one, other, images = tca(), tca(), make_images(40, dtype=torch.float32)
    for image in images[:20]:
        one.predict(image[None])
    mean, tokens = one.stream.stream_mean, one.stream.token_mean
    assert mean.feature_sum.any() and mean.answer_counts.any() and mean.effective_samples > 0
    assert tokens.any(dim=1).all()
    other.restore(one.state())
    for image in images[20:]:
        assert torch.equal(one.predict(image[None]).scores, other.predict(image[None]).scores)
    assert all(torch.equal(a, b) for a, b in zip(one.stream.tensors(), other.stream.tensors(), strict=True))
    one.reset()
    assert not any(part.any() for part in statistics(one))


def test_tca_without_it_remembers_nothing_and_says_zero_shot_the_same() -> None:
    images = make_images(30, dtype=torch.float32)
    on, off = tca(lam=0.0), tca(lam=0.0, debias="off")
    answers = [(on.predict(image[None]), off.predict(image[None])) for image in images]
    assert not any(part.any() for part in statistics(off))
    assert all(torch.equal(a.zero_shot, b.zero_shot) and torch.equal(a.logits, b.logits) for a, b in answers)
    assert all(torch.equal(b.scores, b.zero_shot) for _, b in answers)
    assert not all(torch.allclose(a.scores, b.scores, atol=1e-3) for a, b in answers)


def test_the_reservoir_holds_what_the_debiased_answer_says() -> None:
    images = make_images(30, dtype=torch.float32)
    method = tca(lam=0.0, M=30)
    said = [int(method.predict(image[None]).scores.argmax()) for image in images]
    held = {int(i): c for c, ids in enumerate(method.stream.reservoir.ids) for i in ids if i >= 0}
    assert held == dict(enumerate(said))


def test_the_texts_are_looked_at_once() -> None:
    setup = tca().setup
    assert setup.class_texts is setup.class_texts
    wide = setup.text.double()
    torch.testing.assert_close(setup.class_texts.bias.double(), wide @ wide.mean(dim=0), rtol=0, atol=1e-6)


def test_what_is_stored_is_trusted_as_far_as_stream_and_class_were_seen() -> None:
    tops, turns = torch.tensor([0.0, 1.0, 9.0]), torch.tensor([0.0, 20.0, 1e9])
    found = torch.stack([trust(nothing(3)._replace(standout_counts=tops, effective_samples=n)) for n in turns])
    assert found[0].eq(0).all() and found[:, 0].eq(0).all() and found.lt(1 + 1e-6).all()
    torch.testing.assert_close(found[2], tops / (tops + 0.5), rtol=0, atol=1e-6)
    torch.testing.assert_close(found[1], found[2] / 2, rtol=0, atol=1e-6)


def test_tca_begins_as_zero_shot_whatever_lambda_is() -> None:
    first = tca(lam=100.0).predict(make_images(1, dtype=torch.float32))
    torch.testing.assert_close(first.scores, first.zero_shot, rtol=0, atol=1e-6)
