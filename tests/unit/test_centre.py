"""The domain's centre: against loops in float64, and what it must do on streams made for the purpose."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lessmore.centre import DOUBT, MEMORY, Centre, empty, lean, observe
from lessmore.config import preset
from lessmore.methods import Setup, make
from lessmore.methods.tca import TCA
from tests.random_towers import make_images, make_text, make_vit
from tests.reference import Centre as SlowCentre

C = 8
TURNS, STRENGTH = 2, 5  # their places in the course


def texts(seed: int, common: float = 1.0) -> Tensor:
    """Class texts [C, 16] that have a direction in common."""
    random = torch.Generator().manual_seed(seed)
    own, shared = torch.randn(C, 16, generator=random), torch.randn(16, generator=random)
    return F.normalize((own + common * shared).double(), dim=-1)


def stream(labels: Tensor, offset: Tensor, seed: int, noise: float = 1.5) -> Tensor:
    """Logits [T, C] of images of these classes, all of them displaced by the same offset [C]."""
    random = torch.Generator().manual_seed(seed)
    return 6.0 * F.one_hot(labels, C) + noise * torch.randn(len(labels), C, generator=random) + offset


def labels_of(T: int, seed: int) -> Tensor:
    return torch.randint(0, C, (T,), generator=torch.Generator().manual_seed(seed))


def follow(
    logits: Iterable[Tensor], text: Tensor, start: Centre | None = None, how: str = "careful"
) -> tuple[Tensor, list[Centre]]:
    """Answers [T, C], and what is remembered after each image."""
    towards, state = lean(text), start or empty(C, "cpu")
    answers, states = [], []
    for z in logits:
        answer, state = observe(state, z, towards, DOUBT[how])
        answers.append(answer)
        states.append(state)
    return torch.stack(answers), states


def accuracy(answers: Tensor, labels: Tensor) -> float:
    return float((answers.argmax(dim=1) == labels).float().mean())


@pytest.mark.parametrize("common", [0.0, 1.0, 4.0])
@pytest.mark.parametrize(("seed", "how"), [(0, "careful"), (1, "careful"), (2, "bold")])
def test_equals_loops_in_float64(seed: int, how: str, common: float) -> None:
    text, random = texts(seed, common), torch.Generator().manual_seed(seed)
    offset = 3 * torch.randn(C, generator=random).double()
    logits = stream(labels_of(220, seed), offset, seed).double()
    slow = SlowCentre(text.numpy(), how == "bold")
    start = Centre(*(t.double() for t in empty(C, "cpu")))
    answers, states = follow(logits, text, start, how)
    for z, answer, state in zip(logits, answers, states, strict=True):
        np.testing.assert_allclose(answer, slow.observe(z.numpy()), rtol=0, atol=1e-8)
        assert float(state.course[STRENGTH]) == pytest.approx(slow.w, abs=1e-10)
    assert float(states[-1].course[STRENGTH]) > 0.3
    assert float(states[-1].course[TURNS]) == pytest.approx(MEMORY)  # long enough for some of it to be forgotten
    single, _ = follow(logits.float(), text.float(), how=how)
    torch.testing.assert_close(single.double(), answers, rtol=0, atol=1e-3)


def test_the_first_image_is_answered_as_zero_shot_answers_it() -> None:
    text = texts(0)
    for z in stream(labels_of(20, 3), torch.arange(C).float(), 3):
        answers, (state,) = follow([z], text)
        torch.testing.assert_close(answers[0], z - z.mean())  # softmax knows no constant
        assert float(state.course[STRENGTH]) == 0


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_logits_that_are_not_finite_leave_no_trace(bad: float) -> None:
    text, logits = texts(0), stream(labels_of(30, 0), torch.arange(C).float(), 0)
    _, states = follow(logits, text)
    broken = logits[0].clone()
    broken[3] = bad
    answer, after = observe(states[-1], broken, lean(text), DOUBT["careful"])
    torch.testing.assert_close(answer, broken, rtol=0, atol=0, equal_nan=True)
    assert all(torch.equal(a, b) for a, b in zip(after, states[-1], strict=True))
    _, first = observe(empty(C, "cpu"), broken, lean(text), DOUBT["careful"])
    assert all(not t.any() for t in first)


def test_a_displacement_of_all_images_is_taken_off_in_the_end() -> None:
    labels, offset = labels_of(600, 1), 4 * torch.randn(C, generator=torch.Generator().manual_seed(5))
    logits = stream(labels, offset, 1)
    answers, states = follow(logits, texts(0))
    before, after = accuracy(logits[300:], labels[300:]), accuracy(answers[300:], labels[300:])
    assert before < 0.7
    assert after > 0.95
    assert accuracy(stream(labels, torch.zeros(C), 1), labels) > 0.95  # which is what there was to regain
    assert float(states[-1].course[STRENGTH]) > 0.7


def test_a_new_domain_is_followed() -> None:
    random = torch.Generator().manual_seed(5)
    first, second = 4 * torch.randn(2, C, generator=random)
    labels = labels_of(900, 2)
    logits = torch.cat([stream(labels[:500], first, 2), stream(labels[500:], second, 3)])
    answers, _ = follow(logits, texts(0))
    assert accuracy(logits[-150:], labels[-150:]) < 0.7
    assert accuracy(answers[-150:], labels[-150:]) > 0.9


def test_without_displacement_nothing_is_lost() -> None:
    labels = labels_of(600, 4)
    logits = stream(labels, torch.zeros(C), 4, noise=2.5)
    answers, _ = follow(logits, texts(0))
    assert accuracy(answers, labels) > accuracy(logits, labels) - 0.01


def test_one_class_alone_is_no_domain() -> None:
    labels = torch.full((400,), 3)
    logits = stream(labels, torch.zeros(C), 0, noise=0.7)
    answers, states = follow(logits, texts(0))
    assert max(float(state.course[STRENGTH]) for state in states) < 0.05
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
    labels, offset = labels_of(600, 1), 4 * torch.randn(C, generator=torch.Generator().manual_seed(5))
    careful, bold = (follow(stream(labels, offset, 1), texts(0), how=how)[0][300:] for how in ("careful", "bold"))
    assert accuracy(careful, labels[300:]) > accuracy(bold, labels[300:]) - 0.01


def test_streams_can_be_mapped_over() -> None:
    text = texts(0)
    logits = [stream(labels_of(40, seed), torch.arange(C).float(), seed) for seed in range(3)]
    alone = [follow(each, text)[0] for each in logits]
    states = Centre(*(torch.stack([t] * 3) for t in empty(C, "cpu")))
    for i in range(40):
        answers, states = torch.vmap(observe, in_dims=(0, 0, None, None))(
            states, torch.stack([each[i] for each in logits]), lean(text), DOUBT["careful"]
        )
        torch.testing.assert_close(answers, torch.stack([each[i] for each in alone]))


def tca(**options: object) -> TCA:
    vit = make_vit(dtype=torch.float32)
    text = make_text(4, vit.shape.embed, seed=0, dtype=torch.float32)
    method = make("tca", Setup(vit, text, 20.0, preset("labelfree", layers=(1, 2, 3), **options)))
    assert isinstance(method, TCA)
    return method


def test_tca_goes_on_bit_for_bit_from_a_state() -> None:
    one, other, images = tca(), tca(), make_images(40, dtype=torch.float32)
    for image in images[:20]:
        one.predict(image[None])
    assert one.reservoir.centre.any(dim=1).all()
    other.restore(one.state())
    for image in images[20:]:
        assert torch.equal(one.predict(image[None]).scores, other.predict(image[None]).scores)
    assert all(torch.equal(a, b) for a, b in zip(one.reservoir, other.reservoir, strict=True))
    one.reset()
    assert not one.reservoir.centre.any() and not one.reservoir.course.any()


def test_tca_without_it_remembers_nothing_and_says_zero_shot_the_same() -> None:
    images = make_images(30, dtype=torch.float32)
    on, off = tca(lam=0.0), tca(lam=0.0, centre="off")
    answers = [(on.predict(image[None]), off.predict(image[None])) for image in images]
    assert not off.reservoir.centre.any() and not off.reservoir.course.any()
    assert all(torch.equal(a.zero_shot, b.zero_shot) and torch.equal(a.logits, b.logits) for a, b in answers)
    assert all(torch.equal(b.scores, b.zero_shot) for _, b in answers)
    assert not all(torch.allclose(a.scores, b.scores, atol=1e-3) for a, b in answers)


def test_the_reservoir_holds_what_the_centred_answer_says() -> None:
    images = make_images(30, dtype=torch.float32)
    method = tca(lam=0.0, M=30)
    said = [int(method.predict(image[None]).scores.argmax()) for image in images]
    held = {int(i): c for c, ids in enumerate(method.reservoir.ids) for i in ids if i >= 0}
    assert held == dict(enumerate(said))


def test_the_texts_are_looked_at_once() -> None:
    setup = tca().setup
    assert setup.lean is setup.lean
    wide = setup.text.double()
    torch.testing.assert_close(setup.lean.double(), wide @ wide.mean(dim=0), rtol=0, atol=1e-6)
