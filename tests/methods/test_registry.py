"""What every method owes, whichever it is: the suite runs over the registry, so that a new one is covered by itself."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

import lessmore
from lessmore import Adapter, adapt, list_methods, list_reducers
from lessmore.assets import MODELS, shifts, world
from lessmore.config import preset
from lessmore.core.text import TextTower
from lessmore.core.vit import ViT
from lessmore.errors import ConfigError
from lessmore.lab.report.tokens import as_picture
from lessmore.methods import FromEncoded, FromViews, Setup, make_method
from lessmore.methods.cocoop import new_network
from lessmore.methods.context import frame_prompts, write_context
from lessmore.methods.difftpt import image_key
from lessmore.methods.feature_stream import FeatureStream
from lessmore.methods.registry import find_method, method_options, split_options
from lessmore.methods.tent import TentOptions
from lessmore.models.shapes import SHAPES
from lessmore.models.vlm import VLM
from tests.random_towers import CLASS, MAP, make_vlm

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
CLASSES = world.test_classes(6, seed=3)
NAMES = world.world_class_names(CLASSES)
IMAGES, VIEWS = 6, 5


@functools.cache
def model(name: str, device: str) -> VLM:
    return lessmore.load(name).to(device)


@functools.cache
def pictures(stream: str) -> list[Image.Image]:
    scene = world.world_sample(IMAGES, 5, CLASSES)
    pixels, _ = shifts.draw_shifted(scene, *(("background", 5) if stream == "shifted" else ("clean", 0)))
    order = scene.index.argsort(stable=True) if stream == "sorted" else torch.arange(IMAGES)
    return [as_picture(pixels[i]) for i in order]


def small_options(method: str, vlm: VLM, folder: Path, words: str = "a photo of a") -> dict[str, Any]:
    """Few views, no filter, and the files that some methods cannot do without."""
    kind = find_method(method).options
    names = {f.name for f in fields(kind)} if kind else set()
    options: dict[str, Any] = {"views": VIEWS} if "views" in names else {}
    if "words" in names:
        options["words"] = words
    if "margin" in names:
        options["margin"] = 1.0  # every sample is reliable, so that what there is to do is done
    if "difference" in names:
        options["difference"] = -1.0  # and none loses too little
    if kind is not None and issubclass(kind, TentOptions):
        options["window"] = 1
    if "context" in names:
        options["context"] = str(_context(method, vlm, folder / f"{method}.safetensors", words))
    if "variations" in names:
        options.update(variations=2, folder=str(folder))
        for image in (image for stream in ("iid", "shifted") for image in pictures(stream)):
            (folder / image_key(image)).mkdir(exist_ok=True)
            for i in range(2):
                image.transpose(Image.Transpose(i)).save(folder / image_key(image) / f"{i}.png")
    return options


def _context(method: str, vlm: VLM, file: Path, words: str) -> Path:
    start = frame_prompts(vlm, ["x"], words).start.cpu()
    noise = torch.randn(start.shape, generator=torch.Generator().manual_seed(0))
    learned = {"context": start + 0.1 * start.std() * noise}
    if method == "cocoop":
        learned |= new_network(vlm.vision.shape.embed, start.shape[1], torch.Generator().manual_seed(1))
    write_context(file, vlm, learned, {"method": method, "words": words})
    return file


@pytest.fixture(params=[(name, device) for name in MODELS for device in DEVICES], ids="-".join)
def vlm(request: pytest.FixtureRequest) -> VLM:
    return model(*request.param)


@pytest.fixture
def build(vlm: VLM, tmp_path: Path) -> Callable[..., Adapter]:
    def new(method: str, **options: Any) -> Adapter:
        options = {"reducer": "none", "engine": "eager", **small_options(method, vlm, tmp_path), **options}
        return adapt(vlm, NAMES, method=method, cache=False, **options)

    return new


class NoGradients(TorchFunctionMode):
    """Fails at the first operation under which gradients could be recorded."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert not torch.is_grad_enabled()
        return func(*args, **(kwargs or {}))


def snapshot() -> list[Any]:
    return [torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()]  # type: ignore[index,union-attr]


def parameters(vlm: VLM) -> list[torch.nn.Parameter]:
    return [*vlm.vision.parameters(), *vlm.text.parameters()]


def answers(adapter: Adapter, images: list[Image.Image]) -> list[list[float]]:
    """The method's own scores; the reported ones also follow the stream's temperature."""
    return [adapter(image).raw_scores.tolist() for image in images]


@pytest.mark.parametrize("stream", ["iid", "sorted", "shifted"])
@pytest.mark.parametrize("method", list_methods())
def test_a_stream_is_answered_and_nothing_else_is_touched(
    build: Callable[..., Adapter], vlm: VLM, method: str, stream: str
) -> None:
    adapter, before = build(method), snapshot()
    weights = [weight.clone() for weight in parameters(vlm)]
    with torch.no_grad(), nullcontext() if adapter._answerer.method.facts.needs_gradients else NoGradients():
        found = [adapter(image) for image in pictures(stream)]
        adapter.reset()
    for one in found:
        for scores in (one.scores, one.zero_shot_scores):
            assert scores.shape == (len(NAMES),)
            assert scores.isfinite().all()
            assert scores.min() >= 0
            assert scores.sum() == pytest.approx(1, abs=1e-5)
            assert not scores.requires_grad
        assert not one.refused
    assert snapshot() == before
    for weight, old in zip(parameters(vlm), weights, strict=True):
        assert torch.equal(weight, old)
        assert not weight.requires_grad


@pytest.mark.parametrize("method", list_methods())
def test_reset_restores_and_states_go_on_exactly(build: Callable[..., Adapter], tmp_path: Path, method: str) -> None:
    images, half = pictures("shifted"), IMAGES // 2
    adapter, other = build(method), build(method)
    straight = answers(adapter, images)
    adapter.reset()
    assert answers(adapter, images[:half]) == straight[:half]
    adapter.save(tmp_path / "state.safetensors")
    fork = adapter.fork()
    assert answers(adapter, images[half:]) == straight[half:]
    assert answers(fork, images[half:]) == straight[half:]  # what the other did is none of its business
    other.restore(tmp_path / "state.safetensors")
    assert answers(other, images[half:]) == straight[half:]


@pytest.mark.parametrize("method", list_methods())
def test_facts_are_facts(build: Callable[..., Adapter], method: str) -> None:
    adapter = build(method)
    facts, one = adapter._answerer.method.facts, adapter._answerer.method
    assert not (facts.training_free and (facts.needs_gradients or facts.learnable_parameters))
    assert isinstance(one, FromViews) == (facts.views > 1)
    assert not (isinstance(one, FromViews) and isinstance(one, FromEncoded))
    images = pictures("iid")
    if isinstance(one, FromViews):
        assert len(adapter.try_pixels(images[0])) == facts.views
    forward = answers(adapter, images[:3])
    adapter.reset()
    backward = answers(adapter, images[2::-1])[::-1]
    if facts.kind == "episodic":
        assert forward == backward
        assert adapter._answerer.method.state() == {}
    else:
        assert adapter._answerer.method.state()


@pytest.mark.parametrize("method", list_methods())
def test_costs_are_what_torch_counts(build: Callable[..., Adapter], method: str) -> None:
    adapter = build(method, **({"margin": 1.0} if method == "sar" else {}))  # it spends less on samples it leaves out
    images = pictures("shifted")
    with sdpa_kernel(SDPBackend.MATH):
        answers(adapter, images[:2])
        pixels = adapter.try_pixels(images[2])
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            adapter._answerer.method.predict(pixels)
    one = adapter._answerer.method
    solved = one.solver_macs() if isinstance(one, FeatureStream) else 0
    counted = counter.get_total_flops() / 2 + solved  # factorisations and sparse products are not in torch's count
    assert counted == pytest.approx(adapter._answerer.method.macs(), rel=0.01)
    assert adapter._answerer.method.macs("paper") > 0


@pytest.mark.parametrize("shape", [CLASS, MAP], ids=["class", "map"])
@pytest.mark.parametrize("reducer", list_reducers())
@pytest.mark.parametrize("method", list_methods())
def test_every_method_runs_with_every_reducer(method: str, reducer: str, shape: Any, tmp_path: Path) -> None:
    vlm = make_vlm(shape=shape)
    options = small_options(method, vlm, tmp_path, words="ab")
    adapter = adapt(
        vlm, ["red", "blue", "cat"], method=method, reducer=reducer, R=0.7, layers=(1, 2, 3), cache=False, **options
    )
    for image in pictures("iid")[:2]:
        found = adapter(image, trace=True)
        assert found.scores.sum() == pytest.approx(1, abs=1e-5)
        assert not found.refused
        assert (found.trace is None) == (reducer == "none")
        assert found.trace is None or len(found.trace.fate) == 1


@pytest.fixture(scope="module")
def b16() -> VLM:
    """A model of ViT-B/16's shapes, without any weights."""
    vision, text = SHAPES["ViT-B-16"]
    with torch.device("meta"):
        towers = ViT(vision).requires_grad_(False), TextTower(text).requires_grad_(False)

    def tokenizer(texts: list[str]) -> torch.Tensor:
        rows = [[49406, *(sum(map(ord, word)) for word in text.replace(".", " .").split()), 49407] for text in texts]
        return torch.tensor([row + [0] * (77 - len(row)) for row in rows])

    return VLM(*towers, 100.0, 0.0, tokenizer, lambda image: torch.zeros(3, 224, 224), "clip", "b16")


@pytest.mark.parametrize(
    ("method", "expected"),
    [("tent", 40_960), ("sar", 31_744), ("deyo", 31_744), ("batclip", 65_536), ("tpt", 2_048), ("ctpt", 2_048)],
)
def test_learnable_parameters_of_b16(b16: VLM, method: str, expected: int) -> None:
    name = {"ctpt": "c-tpt"}.get(method, method)
    text = torch.empty(10, 512, device="meta")
    setup = Setup(b16.vision, text, 100.0, preset("default"), b16, tuple("abcdefghij"))
    assert make_method(name, setup).facts.learnable_parameters == expected


def test_learnable_parameters_of_cocoop() -> None:
    network = new_network(512, 512, torch.Generator())
    assert 4 * 512 + sum(v.numel() for k, v in network.items() if k.endswith("weight")) == 34_816


def test_options_go_to_their_owner() -> None:
    own, shared = split_options("tda", {"alpha": 1.0, "beta": 2.0, "K": 3})
    assert own == {"alpha": 1.0, "beta": 2.0}
    assert shared == {"K": 3}
    assert split_options("tca", {"beta": 2.0}) == ({}, {"beta": 2.0})
    assert method_options("tca", {}) is None
    with pytest.raises(ConfigError, match="did you mean alpha"):
        split_options("tda", {"alphas": 1.0})
    with pytest.raises(ConfigError, match="unknown method 'tdaa'; did you mean tda"):
        split_options("tdaa", {})


def test_a_method_that_needs_the_whole_model_says_so() -> None:
    vlm = make_vlm()
    method = make_method("mta", Setup(vlm.vision, torch.eye(8)[:3], 10.0, preset("default", layers=(1,))))
    assert isinstance(method, FromViews)
    with pytest.raises(ConfigError, match="whole model"):
        method.views(pictures("iid")[0], 0)


def test_a_state_of_other_options_is_refused(build: Callable[..., Adapter], tmp_path: Path) -> None:
    build("tda").save(tmp_path / "state.safetensors")
    with pytest.raises(lessmore.errors.StateError, match="'capacity': 3.*'capacity': 2"):
        build("tda", capacity=2).restore(tmp_path / "state.safetensors")
