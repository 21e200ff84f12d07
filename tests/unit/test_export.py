"""Exported steps: read back from their files they answer a stream as eager does, and keep the same reservoir."""

from __future__ import annotations

import os
import sys
from itertools import product
from pathlib import Path

import pytest
import torch
from torch import Tensor

import lessmore
from lessmore.adapter import Adapter
from lessmore.assets import world
from lessmore.cli import main
from lessmore.engines import export
from lessmore.errors import ConfigError, StateError
from lessmore.lab.report.tokens import as_picture
from lessmore.methods.tca import TCA
from lessmore.models.to_pixels import to_pixels

CLASSES = world.test_classes(8)
NAMES = world.world_class_names(CLASSES)

# Tracing takes seconds, so each model and each preset is met once; `make soak` takes all of their pairs.
PT2 = [("tiny", "labelfree"), ("tiny-siglip", "paper"), ("tiny", "released")]
ONNX = [("tiny", "camera"), ("tiny", "paper")]
if os.environ.get("LESSMORE_SOAK"):
    PT2 = ONNX = list(product(["tiny", "tiny-siglip"], ["labelfree", "paper", "released", "camera"]))


@pytest.fixture(scope="module")
def images() -> list[Tensor]:
    """A stream long enough to fill classes and evict from them."""
    drawn, _ = world.draw_scene(world.world_sample(50, 7, CLASSES))
    vlm = lessmore.load("tiny")
    return [to_pixels(as_picture(image), vlm) for image in drawn]


def eager(adapter: Adapter) -> TCA:
    return TCA(adapter._setup)


def follow(adapter: Adapter, path: Path, images: list[Tensor]) -> tuple[export.Exported, TCA, float]:
    """Both through the stream; the largest difference of any score. Predictions and ids are compared on the way."""
    export.save_step(adapter, path)
    step, method, worst = export.load_step(path), eager(adapter), 0.0
    assert step.classes == NAMES
    with torch.no_grad():
        for pixels in images:
            (scores, zero_shot), expected = step(pixels), method.predict(pixels)
            worst = max(worst, float((scores - expected.scores).abs().max()))
            worst = max(worst, float((zero_shot - expected.zero_shot).abs().max()))
            assert int(scores.argmax()) == int(expected.scores.argmax())
            assert torch.equal(step.state["ids"], method.stream.reservoir.ids)
    assert int((method.stream.reservoir.counts == adapter.preset.adaptation.M).sum()) > 0
    return step, method, worst


@pytest.mark.parametrize(("model", "preset"), PT2)
def test_pt2_equals_eager_bit_for_bit(model: str, preset: str, images: list[Tensor], tmp_path: Path) -> None:
    step, method, worst = follow(lessmore.adapt(model, NAMES, preset=preset), tmp_path / "step.pt2", images)
    assert worst == 0
    assert all(torch.equal(step.state[name], tensor) for name, tensor in method.stream.named().items())


@pytest.mark.parametrize(("model", "preset"), ONNX)
def test_onnx_equals_eager(model: str, preset: str, images: list[Tensor], tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    _, _, worst = follow(lessmore.adapt(model, NAMES, preset=preset, R=0.7), tmp_path / "step.onnx", images)
    assert worst < 1e-4


def test_reset_starts_again(images: list[Tensor], tmp_path: Path) -> None:
    assert main(["export", "--model", "tiny", "--classes", ",".join(NAMES), "-o", str(tmp_path / "step.pt2")]) == 0
    step = export.load_step(tmp_path / "step.pt2")
    first = [step(pixels)[0] for pixels in images[:5]]
    step.reset()
    assert int(step.state["step"]) == 0
    assert all(torch.equal(a, step(pixels)[0]) for a, pixels in zip(first, images, strict=False))


@pytest.mark.parametrize("descending", [True, False])
def test_order_by_counting_is_a_stable_sort(descending: bool) -> None:
    rows = torch.randint(0, 9, (2, 3, 40), generator=torch.Generator().manual_seed(0)).float()
    rows[0, 0, 5] = torch.inf
    ordered = rows.argsort(dim=-1, descending=descending, stable=True)
    assert torch.equal(export.stable_order(rows, stable=True, descending=descending), ordered)
    across = rows.long().argsort(dim=1, descending=descending, stable=True)
    assert torch.equal(export.stable_order(rows.long(), stable=True, dim=1, descending=descending), across)


def test_what_cannot_be_exported(tmp_path: Path) -> None:
    adapter = lessmore.adapt("tiny", NAMES)
    with pytest.raises(ConfigError, match=r"does not end in \.pt2 or \.onnx"):
        export.save_step(adapter, tmp_path / "step.bin")
    with pytest.raises(ConfigError, match="only method 'tca'"):
        export.save_step(lessmore.adapt("tiny", NAMES, method="zeroshot"), tmp_path / "step.pt2")
    with pytest.raises(ConfigError, match="use tca, evit or none"):
        export.save_step(lessmore.adapt("tiny", NAMES, reducer="tome"), tmp_path / "step.pt2")
    with pytest.raises(StateError, match="there is no file"):
        export.load_step(tmp_path / "step.pt2")
    assert list(tmp_path.glob("step*")) == []


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ConfigError, match=r"lessmore\[export\]"):
        export.save_step(lessmore.adapt("tiny", NAMES), tmp_path / "step.onnx")


def test_a_file_of_someone_elses(tmp_path: Path) -> None:
    program = torch.export.export(torch.nn.ReLU(), (torch.zeros(1),))
    torch.export.save(program, tmp_path / "other.pt2")
    with pytest.raises(StateError, match="not written by lessmore"):
        export.load_step(tmp_path / "other.pt2")
