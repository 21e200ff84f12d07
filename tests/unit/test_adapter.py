"""The object people hold: answers, state on disk, many streams, bad input, nothing disturbed."""

from __future__ import annotations

import io
import random
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open

from lessmore import Adapter, Prediction, adapt
from lessmore.core.stream import NAMES
from lessmore.errors import ConfigError, ImageError, NonFiniteError, StateError
from lessmore.models.vlm import VLM
from tests.random_towers import MAP, make_images, make_vlm

CLASSES = ["red_star", "blue square", "cat", "dog"]
SMALL = {"layers": (1, 2, 3), "cache": False}


@pytest.fixture
def vlm() -> VLM:
    return make_vlm()


def make(vlm: VLM, **options: object) -> Adapter:
    return adapt(vlm, CLASSES, **{**SMALL, **options})  # type: ignore[arg-type]


def images(count: int, seed: int = 1) -> Iterator[torch.Tensor]:
    yield from make_images(count, seed=seed, dtype=torch.float32)


def same(a: Prediction, b: Prediction) -> bool:
    return (
        a.index == b.index and torch.equal(a.scores, b.scores) and torch.equal(a.zero_shot_scores, b.zero_shot_scores)
    )


@pytest.mark.parametrize("method", ["zeroshot", "tca", "tda", "mta", "zero"])
@pytest.mark.parametrize("preset", ["default", "fixed", "bold", "paper", "released"])
def test_predictions_are_distributions_with_a_label(vlm: VLM, method: str, preset: str) -> None:
    adapter = make(vlm, method=method, preset=preset)
    for image in images(8):
        p = adapter(image)
        assert p.label == CLASSES[p.index]
        for scores in (p.scores, p.zero_shot_scores):
            assert scores.shape == (4,)
            assert scores.sum() == pytest.approx(1, abs=1e-5)
            assert scores.min() >= 0
        assert p.index == int(p.scores.argmax())
        assert 0 <= p.entropy <= np.log(4) + 1e-6
        assert p.trace is None


def test_image_kinds_give_the_same_answer(vlm: VLM, tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (30, 40, 3), dtype=np.uint8)
    file = tmp_path / "image.png"
    Image.fromarray(pixels).save(file)
    tensor = torch.from_numpy(pixels).permute(2, 0, 1)
    ready = vlm.preprocess(Image.fromarray(pixels))
    kinds = [file, str(file), file.read_bytes(), Image.fromarray(pixels), pixels, tensor, ready, ready[None]]
    answers = [make(vlm)(kind) for kind in kinds]
    assert all(same(answers[0], answer) for answer in answers)


def test_trace_on_request(vlm: VLM) -> None:
    trace = make(vlm)(next(images(1)), trace=True).trace
    assert trace is not None
    assert trace.blocks == (1, 2, 3)
    assert trace.fate.shape == (1, 3, 36)
    assert make(vlm, R=1.0)(next(images(1)), trace=True).trace is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("preset", ["default", "fixed", "bold", "paper", "released"])
def test_save_and_restore_continue_bit_for_bit(dtype: torch.dtype, preset: str, tmp_path: Path) -> None:
    vlm = make_vlm(dtype=dtype)
    straight, first, second = (make(vlm, preset=preset) for _ in range(3))
    stream = list(images(30))
    expected = [straight(image) for image in stream]
    for image in stream[:17]:
        first(image)
    first.save(tmp_path / "deep" / "state.safetensors")
    second.restore(tmp_path / "deep" / "state.safetensors")
    assert second.health() == first.health()
    assert all(same(second(image), want) for image, want in zip(stream[17:], expected[17:], strict=True))
    for a, b in zip(straight._answerer.method.state().values(), second._answerer.method.state().values(), strict=True):
        assert torch.equal(a, b)


def test_a_state_of_another_model_class_list_or_setting_is_refused_with_the_reason(vlm: VLM, tmp_path: Path) -> None:
    file = tmp_path / "state.safetensors"
    adapter = make(vlm)
    adapter(next(images(1)))
    adapter.save(file)
    refused = {
        "another model": make(make_vlm(seed=1)),
        "another class list.*new here: .'bird'": adapt(vlm, [*CLASSES, "bird"], **SMALL),  # type: ignore[arg-type]
        "same names in another order": adapt(vlm, CLASSES[::-1], **SMALL),  # type: ignore[arg-type]
        "other prompt templates": make(vlm, templates=["a {}"]),
        "M=3.*M=2": make(vlm, M=2),
        "proportional=True.*False": make(vlm, preset="paper"),
        "R=0.9.*R=0.7": make(vlm, R=0.7),
        "method='tca'": make(vlm, method="zeroshot"),
    }
    for reason, other in refused.items():
        with pytest.raises(StateError, match=reason):
            other.restore(file)
    with pytest.raises(StateError, match="does not exist"):
        adapter.restore(tmp_path / "nothing")
    (tmp_path / "older").write_bytes(file.read_bytes().replace(b"lessmore.state/7", b"lessmore.state/6"))
    with pytest.raises(StateError, match=r"another version of lessmore \(lessmore.state/6, this one reads"):
        adapter.restore(tmp_path / "older")
    (tmp_path / "torn").write_bytes(file.read_bytes()[:100])
    with pytest.raises(StateError, match="not a readable file of the form lessmore.state/7"):
        adapter.restore(tmp_path / "torn")
    with pytest.raises(StateError, match="cannot write"):
        adapter.save(file / "below-a-file")


def test_the_file_is_plain_tensors_and_facts(vlm: VLM, tmp_path: Path) -> None:
    adapter = make(vlm)
    for image in images(5):
        adapter(image)
    adapter.save(tmp_path / "s")
    with safe_open(tmp_path / "s", framework="pt") as file:
        assert set(file.keys()) == set(NAMES) - {"means"}
        assert file.metadata()["schema"] == "lessmore.state/7"
    assert [f.name for f in tmp_path.iterdir()] == ["s"]  # nothing temporary stays


def test_reset_forgets_everything(vlm: VLM) -> None:
    adapter, fresh = make(vlm), make(vlm)
    for image in images(9, seed=5):
        adapter(image)
    adapter.reset()
    assert adapter.health() == fresh.health()
    assert all(same(adapter(image), fresh(image)) for image in images(9))


def test_a_fork_is_independent(vlm: VLM) -> None:
    adapter, twin = make(vlm), make(vlm)
    for image in images(9):
        adapter(image), twin(image)
    fork = adapter.fork()
    for image in images(9, seed=7):
        fork(image)
    assert fork.health().seen == 18
    assert adapter.health().seen == 9
    assert all(same(adapter(image), twin(image)) for image in images(9, seed=8))


@pytest.mark.parametrize("shape", ["class", "map"])
def test_16_interleaved_streams_equal_16_separate_runs(shape: str) -> None:
    vlm = make_vlm() if shape == "class" else make_vlm(shape=MAP)
    streams = [list(images(8, seed=s)) for s in range(16)]
    separate = []
    for stream in streams:
        adapter = make(vlm)
        separate.append([adapter(image) for image in stream])
    adapters = [make(vlm) for _ in streams]
    for t in range(8):
        for s, adapter in enumerate(adapters):
            assert same(adapter(streams[s][t]), separate[s][t])


def test_health_counts(vlm: VLM, tmp_path: Path) -> None:
    adapter = make(vlm, preset="released", lam=30.0)
    stream: list[object] = [*images(20), tmp_path / "missing.png"]
    answers = list(adapter.stream(stream, on_error="yield"))  # type: ignore[arg-type]
    assert isinstance(answers[-1], ImageError)
    health = adapter.health()
    assert (health.seen, health.refused) == (20, 1)
    changed = sum(a.changed for a in answers if isinstance(a, Prediction))
    assert health.changed == changed
    assert health.agreement == pytest.approx(1 - changed / 20)
    assert 0 < health.fill <= 1
    assert 0 <= health.empty_classes < 4
    with pytest.raises(ImageError, match="missing.png"):
        list(adapter.stream([tmp_path / "missing.png"]))


def test_health_of_the_stream_mean(vlm: VLM, tmp_path: Path) -> None:
    adapter, other = make(vlm, preset="bold"), make(vlm, preset="bold")
    list(adapter.stream(images(40)))
    strength = adapter.health().strength
    assert 0 < strength <= 1
    assert strength == float(adapter._answerer.method.state()["strength"])
    assert adapter.health().domain_changes == 0
    state = adapter._answerer.method.state()
    state["domain_changes"].fill_(2)
    adapter._answerer.method.restore(state)
    assert adapter.health().domain_changes == adapter.health().domain_changes == 2  # looking does not count
    adapter.save(tmp_path / "s")
    other.restore(tmp_path / "s")
    assert other.health() == adapter.health() == adapter.fork().health()
    adapter.reset()
    assert (adapter.health().strength, adapter.health().domain_changes) == (0, 0)


@pytest.mark.parametrize("options", [{"preset": "fixed"}, {"method": "zeroshot"}, {"method": "tda"}])
def test_without_debiasing_there_is_no_strength(vlm: VLM, options: dict[str, object]) -> None:
    adapter = make(vlm, **options)
    list(adapter.stream(images(30)))
    assert (adapter.health().strength, adapter.health().domain_changes) == (0, 0)


@pytest.mark.parametrize("engine", ["eager", "chunk"])
def test_every_engine_reports_the_strength(vlm: VLM, engine: str) -> None:
    adapter = make(vlm, preset="bold", engine=engine)
    list(adapter.stream(images(40)))
    assert adapter.health().strength > 0


def test_one_class_works(vlm: VLM) -> None:
    adapter = adapt(vlm, ["only"], **SMALL)  # type: ignore[arg-type]
    for image in images(6):
        p = adapter(image)
        assert (p.label, p.index, p.entropy) == ("only", 0, 0)


@pytest.mark.parametrize(
    ("classes", "options", "message"),
    [
        ([], {}, "no classes"),
        (["cat", " "], {}, "empty"),
        (["cat", "dog", "cat"], {}, "'cat' appears more than once"),
        (["sea_lion", "sea lion"], {}, "'sea lion' reads like 'sea_lion'"),
        (["cat"], {"templates": ["a photo"]}, "'a photo' has no {}"),
        (["cat"], {"templates": []}, "no templates"),
        (["cat"], {"preset": "defualt"}, "did you mean default"),
        (["cat"], {"method": "tda2"}, "unknown method 'tda2'"),
        (["cat"], {"reducer": "evitt"}, "did you mean evit"),
        (["cat"], {"lamda": 2}, "did you mean lam"),
        (["cat"], {"engine": "eagre"}, "did you mean eager"),
        (["cat"], {"R": 0}, "R must lie in"),
        (["cat"], {"R": 1.5}, "R must lie in"),
        (["cat"], {"K": -1}, "K must be"),
        (["cat"], {"M": 0}, "M must be"),
        (["cat"], {"beta": 0}, "beta must be"),
        (["cat"], {"score": "max"}, "'max' is not one of rank, mean"),
        (["cat"], {"layers": (1, 99)}, "tower has 5 blocks"),
        (["cat"], {"preset": "released", "M": 1}, "M must be ≥ 2"),
    ],
)
def test_wrong_settings_are_named(vlm: VLM, classes: list[str], options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("{}", r"\{\}")):
        adapt(vlm, classes, **{**SMALL, **options})  # type: ignore[arg-type]


def encoded(image: Image.Image, format: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format, **options)  # type: ignore[arg-type]
    return buffer.getvalue()


@pytest.mark.parametrize(
    "image",
    [
        torch.full((3, 24, 24), float("nan")),
        torch.full((3, 24, 24), float("inf")),
        torch.zeros(3, 25, 24),
        torch.zeros(1, 24, 24),
        torch.zeros(2, 3, 24, 24),
        torch.zeros(24, 24, 3),
        torch.zeros(3, 24, 24, dtype=torch.int64),
        np.zeros((4, 4, 7), dtype=np.uint8),
        b"not an image",
        b"",
        encoded(Image.effect_noise((64, 64), 50), "PNG")[:600],
        encoded(Image.effect_noise((64, 64), 50), "JPEG")[:700],
        encoded(Image.new("1", (9000, 9000)), "PNG"),
        "no/such/file.png",
        ".",
        None,
        3,
    ],
)
def test_bad_images_are_refused_by_type_and_leave_no_trace(vlm: VLM, image: object) -> None:
    adapter, clean = make(vlm), make(vlm)
    first, *rest = images(6)
    adapter(first), clean(first)
    with pytest.raises(ImageError):
        adapter(image)  # type: ignore[arg-type]
    assert adapter.health().refused == 1
    assert all(same(adapter(image), clean(image)) for image in rest)


@pytest.mark.parametrize(
    "image",
    [
        Image.new("P", (20, 30)),
        Image.new("CMYK", (20, 30)),
        Image.new("I;16", (20, 30)),
        Image.new("LA", (20, 30)),
        Image.new("1", (20, 30)),
        Image.new("F", (20, 30)),
        Image.new("RGB", (1, 1)),
        encoded(Image.new("P", (8, 8)), "GIF", save_all=True, append_images=[Image.new("P", (8, 8), 3)]),
        encoded(Image.new("P", (8, 8)), "PNG", transparency=0),
        np.zeros((5, 6), dtype=np.uint8),
        np.zeros((5, 6, 4), dtype=np.uint8),
        np.zeros((5, 6), dtype=np.uint16),
        np.zeros((5, 6, 3), dtype=np.float32),
    ],
)
def test_odd_images_are_handled(vlm: VLM, image: object) -> None:
    assert make(vlm)(image).label  # type: ignore[arg-type]


def test_a_sample_that_overflows_is_answered_by_the_plain_model_and_not_stored(
    vlm: VLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the condensed path fails here: NaN enters where tokens are merged."""
    adapter, plain = make(vlm, merge_prune=(2, 1), pruned="fuse"), make(vlm, method="zeroshot", R=1.0)
    stream = list(images(12))
    for image in stream[:5]:
        adapter(image)
    before = adapter._answerer.method.state()
    with monkeypatch.context() as patch:
        patch.setattr("lessmore.core.condense.coreset.fuse", lambda x, attention: x[:, :1] * float("nan"))
        answer = adapter(stream[5])
    assert answer.refused
    torch.testing.assert_close(answer.scores, plain(stream[5]).scores)
    after = adapter._answerer.method.state()
    assert int(after.pop("step")) == int(before.pop("step")) + 1
    assert all(torch.equal(after[name], before[name]) for name in before)
    health = adapter.health()
    assert (health.seen, health.refused) == (6, 1)
    assert not adapter(stream[6]).refused


def test_a_model_that_answers_nan_is_called_by_its_name(vlm: VLM) -> None:
    broken = replace(vlm, vision=make_vlm().vision)
    with torch.no_grad():
        broken.vision.positions.fill_(float("nan"))
    adapter = make(broken)
    with pytest.raises(NonFiniteError, match="load it in float32"):
        adapter(next(images(1)))
    assert (adapter.health().fill, adapter.health().refused) == (0, 1)


def test_random_states_are_untouched(vlm: VLM, tmp_path: Path) -> None:
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # type: ignore[index]
    adapter = make(vlm)
    for image in images(3):
        adapter(image, trace=True)
    adapter.save(tmp_path / "s")
    adapter.fork().restore(tmp_path / "s")
    assert torch.equal(states[0], torch.get_rng_state())
    assert np.array_equal(states[1], np.random.get_state()[1])  # type: ignore[index]
    assert states[2] == random.getstate()


def test_no_gradients_are_recorded_and_the_mode_is_left_alone(vlm: VLM) -> None:
    assert torch.is_grad_enabled()
    assert not make(vlm)(next(images(1))).scores.requires_grad
    assert torch.is_grad_enabled()


def test_import_opens_no_socket_and_pulls_in_no_extra() -> None:
    code = """
import socket, sys
def refuse(*a, **k): raise AssertionError("a socket was opened")
socket.socket.connect = refuse
socket.create_connection = refuse
socket.getaddrinfo = refuse
import lessmore, lessmore.cli
extras = {"open_clip", "timm", "transformers", "torchvision", "datasets", "matplotlib", "jinja2", "torchmetrics",
          "scipy", "ray", "onnx", "onnxruntime", "huggingface_hub", "imagecorruptions_imaug"}
print(sorted(extras & set(sys.modules)))
"""
    assert hasattr(socket, "getaddrinfo")
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
