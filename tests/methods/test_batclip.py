"""BATCLIP's loss against loops, its gradients against finite differences, and AdamW's memory in its state."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lessmore.config import preset
from lessmore.core.encoder import encode
from lessmore.methods import Setup
from lessmore.methods.batclip import BATCLIP, BATCLIPOptions, bimodal_loss
from tests.random_towers import make_images, make_vlm

CLASSES = ("red", "blue", "cat")


def setup(dtype: torch.dtype = torch.float64) -> Setup:
    vlm = make_vlm().to(dtype=dtype)
    text = vlm.classifier(CLASSES, "ab {}.", cache=False)
    return Setup(vlm.vision, text, 6.0, preset("default", R=1.0, layers=(1,)), vlm, CLASSES, ("ab {}.",))


def options(**own: float) -> BATCLIPOptions:
    return BATCLIPOptions(**{"words": "ab", "window": 5, **own})  # type: ignore[arg-type]


def slow_loss(logits: list[list[float]], features: list[Tensor], text: Tensor) -> float:
    """By the formulas, one image and one pair of classes at a time."""
    entropy, members = 0.0, dict[int, list[Tensor]]()
    for z, x in zip(logits, features, strict=True):
        raised = [math.exp(v - max(z)) for v in z]
        p = [r / sum(raised) for r in raised]
        entropy -= sum(v * math.log(v) for v in p if v > 0) / len(logits)
        members.setdefault(z.index(max(z)), []).append(x)
    means = {k: torch.stack(own).mean(dim=0) for k, own in members.items()}
    towards = sum(float(v @ text[k]) for k, v in means.items()) / len(means)
    apart = sum(
        1 - float(F.cosine_similarity(v, w, dim=0)) for k, v in means.items() for j, w in means.items() if j != k
    )
    return entropy - towards - apart


@pytest.mark.parametrize("B", [1, 2, 9])
def test_the_loss_equals_loops(B: int) -> None:
    generator = torch.Generator().manual_seed(B)
    features, text = (torch.randn(n, 6, generator=generator).double() for n in (B, 4))
    logits = torch.randn(B, 4, generator=generator).double() * 3
    found = bimodal_loss(logits, features, F.normalize(text, dim=1))
    assert float(found) == pytest.approx(slow_loss(logits.tolist(), list(features), F.normalize(text, dim=1)))


def whole_loss(method: BATCLIP, pixels: Tensor) -> float:
    """From pixels and token ids on, without the method's own loss."""
    encoded = encode(method.tower, pixels)
    text = F.normalize(method.reader(method.frame.tokens), dim=-1)
    features = encoded.feature * encoded.length[:, None]  # type: ignore[index]
    torch.testing.assert_close(features, method.tower(pixels))
    return slow_loss((6.0 * encoded.feature @ text.T).tolist(), list(features), text)


def test_the_first_step_goes_down_the_loss_by_the_rate_along_every_affine_of_both_towers() -> None:
    """AdamW's first step is the rate, against the sign of the slope, after its weight decay of a hundredth."""
    given, images = setup(), make_images(5)
    method = BATCLIP(given, options(lr=0.64))
    rate = 0.05
    probes = [("norm_pre.weight", 3), ("blocks.1.norm2.bias", 0), ("text.blocks.0.norm1.weight", 2)]
    probes += [("text.norm_post.bias", 1), ("norm_post.weight", 4)]
    slopes = []
    with torch.no_grad():
        for name, i in probes:
            here, ends = float(method.affines[name][i]), []
            for sign in (1, -1):
                method.affines[name].data[i] = here + sign * 1e-6
                ends.append(whole_loss(method, images.flip(0)))
            method.affines[name].data[i] = here
            slopes.append((ends[0] - ends[1]) / 2e-6)
    for image in images.split(1):
        method.predict(image)
    for (name, i), slope in zip(probes, slopes, strict=True):
        start = float(method.start[name][i])
        assert abs(slope) > 1e-5
        first = float(method.optimiser.state[method.affines[name]]["exp_avg"][i])
        assert first == pytest.approx(0.1 * slope, rel=1e-3)
        moved = start * (1 - 0.01 * rate) - rate * math.copysign(1, slope)
        assert float(method.affines[name].data[i]) == pytest.approx(moved, abs=1e-3 * rate)


def test_the_answer_is_that_before_the_step_and_zero_shot_stays_the_models() -> None:
    given, image = setup(), make_images(1)
    method = BATCLIP(given, options(lr=6.4, window=1))
    plain = (6.0 * encode(given.vision, image).feature @ given.text.T)[0].softmax(-1)
    first, second = method.predict(image), method.predict(image)
    torch.testing.assert_close(first.scores, plain)  # its prompts are those of the class embeddings
    torch.testing.assert_close(second.zero_shot, plain)
    assert not torch.allclose(second.scores, plain)


def test_texts_are_embedded_anew_after_a_step_and_only_then() -> None:
    given, images = setup(), make_images(7)
    method = BATCLIP(given, options(lr=0.64, window=3))
    seen = []
    for image in images.split(1):
        method.predict(image)
        seen.append(method.written)
    assert seen[0] is seen[1]
    assert seen[2] is None
    assert seen[3] is seen[4]
    assert not torch.equal(seen[0], seen[3])


@pytest.mark.parametrize("cut", [2, 4, 5])
def test_state_goes_on_exactly(cut: int) -> None:
    given, images = setup(torch.float32), make_images(9, dtype=torch.float32)
    one, other = BATCLIP(given, options(lr=0.3, window=2)), BATCLIP(given, options(lr=0.3, window=2))
    first = [one.predict(image).scores for image in images.split(1)]
    one.reset()
    again = [one.predict(image).scores for image in images[:cut].split(1)]
    kept = copy.deepcopy(one.state())
    one.predict(images[:1])
    assert {name.partition(".")[0] for name in kept} == {"affine", "momentum", "square", "steps", "waiting"}
    other.restore(kept)
    rest = [other.predict(image).scores for image in images[cut:].split(1)]
    assert all(torch.equal(a, b) for a, b in zip(first, again + rest, strict=True))


def test_a_state_that_cannot_be_is_named() -> None:
    method = BATCLIP(setup(), options(window=1))
    method.predict(make_images(1))
    state = method.state()
    assert BATCLIP.state_problem(state) is None
    state["square.norm_post.bias"][0] = -1
    assert BATCLIP.state_problem(state) == "square.norm_post.bias is negative"


def test_the_model_given_is_never_changed() -> None:
    given = setup()
    before = [{k: v.clone() for k, v in tower.state_dict().items()} for tower in (given.model.vision, given.model.text)]
    method = BATCLIP(given, options(lr=64.0, window=1))
    method.predict(make_images(1))
    for tower, weights in zip((given.model.vision, given.model.text), before, strict=True):
        assert all(torch.equal(v, weights[k]) for k, v in tower.state_dict().items())
        assert not any(p.requires_grad for p in tower.parameters())


def test_cost() -> None:
    given = setup()
    forward, backward = given.image_macs(), given.gradient_macs()
    one, four = BATCLIP(given, options(window=1)), BATCLIP(given, options(window=4))
    text, step = one.frame.macs(given), one.frame.gradient_macs(given)
    assert one.macs() == 2 * forward + backward + step
    assert four.macs() == round(2.75 * forward) + backward + round((step + text) / 4)
