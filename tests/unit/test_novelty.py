"""`stream="camera"`: what the caller says, how new a frame is, and that few classes and garbage do no harm."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lessmore
from lessmore.adapter import Adapter
from lessmore.config import PRESETS
from lessmore.core import debias, stream, stream_check
from lessmore.core.class_texts import ClassTexts
from lessmore.core.debias import RULES, StreamMean, empty_stream_mean, observe
from lessmore.core.novelty import RING
from lessmore.errors import ConfigError
from lessmore.methods import Setup
from lessmore.methods.resolve import resolve
from lessmore.methods.tca import TCA
from lessmore.models.vlm import VLM
from tests.random_towers import make_images, make_text, make_vit
from tests.reference import Centre

CLASSES, WIDTH, SCALE = 12, 32, 30.0
NAMES = ["red circle", "blue square", "green star", "black ring"]


@pytest.fixture(scope="module")
def tiny() -> VLM:
    return lessmore.load("tiny")


def camera(vlm: VLM, **more: object) -> Adapter:
    return lessmore.adapt(vlm, NAMES, cache=False, stream="camera", **more)  # type: ignore[arg-type]


def frames(vlm: VLM, count: int, seed: int = 0) -> list[Tensor]:
    """Pixels, every fourth of them a repeat of the one before."""
    side = vlm.vision.shape.image_size
    found = list(torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(seed)))
    return [found[i - 1] if i % 4 == 3 else image for i, image in enumerate(found)]


def test_what_the_stream_is_like_chooses_the_preset(tiny: VLM) -> None:
    for words, name in (("camera", "camera"), ("mixed", "mixed"), (None, "default")):
        assert lessmore.adapt(tiny, NAMES, cache=False, stream=words).preset.adaptation == PRESETS[name].adaptation
    assert resolve("tca", "camera", stream="camera").preset.adaptation.debias == "camera"
    assert resolve("tca", "default", 0.7, options={"lam": 1.0}, stream="mixed").preset.adaptation.lam == 1.0


@pytest.mark.parametrize(
    ("method", "preset", "words", "match"),
    [
        ("tca", "default", "kamera", "unknown kind of stream 'kamera'"),
        ("tca", "paper", "camera", "give one of the two"),
        ("neo", "default", "camera", "leave it out"),
    ],
)
def test_what_does_not_go_together_is_refused(method: str, preset: str, words: str, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        resolve(method, preset, stream=words)


@pytest.mark.parametrize("engine", ["eager", "cpu", "chunk"])
def test_every_engine_goes_on_bit_for_bit_from_a_file(tiny: VLM, engine: str, tmp_path: Path) -> None:
    images, one, other = frames(tiny, 30), camera(tiny, engine=engine), camera(tiny, engine=engine)
    for image in images[:20]:
        one(image)
    one.save(tmp_path / "state.safetensors")
    other.restore(tmp_path / "state.safetensors")
    third = one.fork()
    for image in images[20:]:
        answers = [adapter(image).raw_scores for adapter in (one, other, third)]
        assert all(np.array_equal(answers[0], answer) for answer in answers[1:])
    assert one.health() == other.health()
    assert one.health().mean_images < one.health().seen  # of the repeats, none counted


def test_what_an_image_did_can_be_done_again() -> None:
    vit = make_vit(dtype=torch.float32)
    text = make_text(4, vit.shape.embed, seed=0, dtype=torch.float32)
    setup = Setup(vit, text, 20.0, resolve("tca", "camera", options={"layers": (1, 2, 3)}).preset)
    one, other, images = TCA(setup), TCA(setup), make_images(24, dtype=torch.float32)
    images[7], images[9:12], images[15, 0, 0] = images[5], images[8], torch.nan
    for image in images:
        one.predict(image[None])
        delta = one.delta()
        assert len(delta["last_frames"]) == 1
        other.redo(delta)
        assert all(torch.equal(a, b) for a, b in zip(one.stream.tensors(), other.stream.tensors(), strict=True))
    assert one.stream.stream_mean.last_frames.any(dim=1).all()


def test_the_answer_is_the_debiased_one(tiny: VLM) -> None:
    adapter, plain = camera(tiny), lessmore.adapt(tiny, NAMES, cache=False, method="zeroshot", reducer="tca", R=0.9)
    images = frames(tiny, 3)
    np.testing.assert_allclose(adapter(images[0]).raw_scores, plain(images[0]).scores, atol=1e-6)
    assert adapter.health().strength == 0


def world(labels: Tensor, seed: int, shift: float, noise: float = 1.0) -> tuple[Tensor, Tensor, ClassTexts]:
    """Features and labels of images around the texts of their classes, all displaced alike, and the texts."""
    dice = torch.Generator().manual_seed(seed)
    texts = F.normalize(torch.randn(CLASSES, WIDTH, generator=torch.Generator().manual_seed(9)), dim=1)
    own = texts[labels] + noise * torch.randn(len(labels), WIDTH, generator=dice) / WIDTH**0.5
    moved = own + shift * F.normalize(torch.randn(WIDTH, generator=torch.Generator().manual_seed(1)), dim=0)
    return F.normalize(moved, dim=1), labels, ClassTexts.of(texts, SCALE)


def answered(features: Tensor, texts: ClassTexts, how: str) -> tuple[Tensor, list[StreamMean]]:
    """The answers [T], and what is remembered after each image."""
    state, found, states = empty_stream_mean(WIDTH, CLASSES, "cpu", features.dtype), [], []
    for feature in features:
        answer, state = observe(state, texts.logits(feature), feature, texts, RULES[how])
        found.append(answer.argmax())
        states.append(state)
    return torch.stack(found), states


def accuracy(answers: Tensor, labels: Tensor) -> float:
    return float((answers == labels).float().mean())


def many(count: int, seed: int) -> Tensor:
    return torch.randint(0, CLASSES, (count,), generator=torch.Generator().manual_seed(seed))


def test_looks_and_repeats_equal_loops_in_float64() -> None:
    """Runs of views of one thing, exact repeats and two black frames, past the length of the ring."""
    features, _, texts = world(many(160, 2).sort().values, 2, 0.8)
    features = features.double()
    features[40:60] = F.normalize(features[40] + 0.03 * features[40:60], dim=1)
    features[70:75], features[80], features[95] = features[69], features[77], features[77]
    wide = ClassTexts.of(F.normalize(texts.text.double(), dim=1), SCALE)
    slow, state = Centre(wide.text.numpy(), "camera"), empty_stream_mean(WIDTH, CLASSES, "cpu", torch.float64)
    least, strength = 1.0, 0.0
    for feature in features:
        logits, before = wide.logits(feature), state.images
        answer, state = observe(state, logits, feature, wide, RULES["camera"])
        np.testing.assert_allclose(answer, slow.observe(logits.numpy(), feature.numpy()), rtol=0, atol=1e-8)
        assert float(state.strength) == pytest.approx(slow.w, abs=1e-10)
        least, strength = min(least, float(state.images - before)), max(strength, slow.w)
    assert strength > 0.2 and least < 0.05 and float(state.images) < 150


def test_a_repeated_frame_teaches_nothing() -> None:
    features, _, texts = world(many(30, 0), 0, 0.5)
    _, before = answered(features, texts, "camera")
    _, after = answered(torch.cat([features, features[-1:].repeat(40, 1)]), texts, "camera")
    kept = ("feature_sum", "images", "power", "rise", "span", "answer_counts", "standout_counts", "last_frames")
    for name in kept:
        torch.testing.assert_close(getattr(after[-1], name), getattr(before[-1], name))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_one_class_on_which_zero_shot_often_errs_is_left_alone(seed: int) -> None:
    labels = torch.full((300,), 3)
    features, _, texts = world(labels, seed, 0.8, noise=1.6)
    plain = accuracy(texts.logits(features).argmax(dim=1), labels)
    assert 0.5 < plain < 0.95
    found, states = answered(features, texts, "camera")
    assert accuracy(found, labels) > plain - 0.01
    assert max(float(state.strength) for state in states) < 0.3


def test_black_frames_take_little_of_the_gain() -> None:
    """Half of the stream shows nothing; the rest is scored."""
    gains: dict[str, list[float]] = {"careful": [], "camera": []}
    for seed in range(3):
        features, labels, texts = world(many(250, seed), seed, 0.9)
        dice = torch.Generator().manual_seed(seed + 50)
        black = F.normalize(texts.text[0] + 0.05 * torch.randn(250, WIDTH, generator=dice) / WIDTH**0.5, dim=1)
        both = torch.stack([features, black], dim=1).flatten(0, 1)
        plain = accuracy(texts.logits(features).argmax(dim=1), labels)
        for how, found in gains.items():
            found.append(accuracy(answered(both, texts, how)[0][::2], labels) - plain)
    assert np.mean(gains["camera"]) > 0.02
    assert np.mean(gains["camera"]) > np.mean(gains["careful"])


@pytest.mark.parametrize("dark", [True, False], ids=["covered lens", "standing still"])
def test_frames_that_repeat_have_a_capped_share(tiny: VLM, dark: bool) -> None:
    """With the noise of a sensor, so that no two are equal: of `camera` they are one frame, however many they are."""
    side, dice = tiny.vision.shape.image_size, torch.Generator().manual_seed(1)
    one, usual, new = camera(tiny), lessmore.adapt(tiny, NAMES, cache=False), frames(tiny, 8, seed=3)
    scene = torch.full((3, side, side), -1.8) if dark else new[0]
    for image in new:
        one(image), usual(image)
    before, held = one.health().mean_images, usual._answerer.method.state()["counts"].clone()
    for _ in range(12):
        frame = scene + 0.02 * torch.randn(3, side, side, generator=dice)
        one(frame), usual(frame)
    assert one.health().mean_images - before < 1.5
    assert one.preset.adaptation.lam == 0, "memory does not vote"
    # What holds of `default` is less: its memory is capped by the places of a class, its statistics not at all.
    assert usual.health().mean_images == 20
    taken = usual._answerer.method.state()["counts"] - held
    assert int(taken.sum()) <= usual.preset.adaptation.M


def test_a_shift_of_many_classes_is_still_removed() -> None:
    features, labels, texts = world(many(400, 5), 5, 0.9)
    plain = accuracy(texts.logits(features).argmax(dim=1), labels)
    assert accuracy(answered(features, texts, "camera")[0], labels) > plain + 0.03


@pytest.mark.parametrize(
    ("name", "value", "match"),
    [
        ("last_frames", torch.full((RING, WIDTH), 3.0), "no feature"),
        ("last_frames", torch.eye(RING, WIDTH) * (torch.arange(RING) < 4)[:, None], "from the end"),
        ("distances", torch.tensor(500.0), "distances"),
        ("distance_sum", torch.tensor(-1.0), "distance_sum"),
    ],
)
def test_a_state_that_cannot_be_is_refused(name: str, value: Tensor, match: str) -> None:
    state = stream.saved(stream.empty(CLASSES, 1, 1, 4, WIDTH, torch.float32, "cpu"))
    assert stream_check.problem(state) is None
    found = stream_check.problem({**state, name: value})
    assert found is not None and match in found


def test_the_other_rules_know_nothing_of_it() -> None:
    features, _, texts = world(many(40, 0), 0, 0.5)
    for how in ("careful", "bold"):
        assert debias.RULES[how].new == 0
        assert not any(part.any() for part in answered(features, texts, how)[1][-1].novelty)
