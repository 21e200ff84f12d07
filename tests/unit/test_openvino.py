"""Engine `openvino`: eager's answers in float32, near ones in bfloat16 and int8, and plain refusals."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import lessmore
from lessmore import cli
from lessmore.assets import world
from lessmore.core.encoder import PLAIN, encode
from lessmore.engines import build, cpu, encoder_key, encoder_on, resolve_engine
from lessmore.engines.answered import Answered
from lessmore.engines.availability import import_without_telemetry
from lessmore.engines.calibration import IMAGES, calibration_pixels
from lessmore.engines.precision import check_precision, precision_key
from lessmore.engines.together import NextImage, take_turn
from lessmore.errors import ConfigError, StateError
from lessmore.lab.job import prepare_job
from lessmore.lab.report.tokens import as_picture
from lessmore.lab.spec import RunSpec
from lessmore.methods import Setup
from lessmore.methods.resolve import resolve
from lessmore.models.to_pixels import to_pixels
from tests.random_towers import make_text, make_vit

needs_openvino = pytest.mark.skipif(importlib.util.find_spec("openvino") is None, reason="openvino is not installed")
CLASSES = world.test_classes(8)
NAMES = world.world_class_names(CLASSES)


def drawn(model: str, count: int) -> list[Tensor]:
    vlm = lessmore.load(model)
    return [to_pixels(as_picture(image), vlm) for image in world.draw_scene(world.world_sample(count, 7, CLASSES))[0]]


@pytest.fixture(scope="module")
def setup_for() -> Callable[[str], Setup]:
    """One setup per model: what is compiled is kept for as long as its tower lives."""
    known: dict[str, Setup] = {}

    def setup(model: str) -> Setup:
        if model not in known:
            vlm = lessmore.load(model)
            chosen = resolve("tca", shape=vlm.vision.shape).preset
            text = vlm.classifier(NAMES, cache=False)
            known[model] = Setup(vlm.vision, text, vlm.logit_scale, chosen, vlm, tuple(NAMES))
        return known[model]

    return setup


@needs_openvino
@pytest.mark.parametrize("model", ["tiny", "tiny-siglip"])
def test_float32_answers_as_eager_does(model: str, setup_for: Callable[[str], Setup]) -> None:
    setup, images = setup_for(model), drawn(model, 50)
    eager, fast, same = build("eager", "tca", setup), build("openvino", "tca", setup), list[bool]()
    for i, pixels in enumerate(images):
        if i == 30:  # a state goes from engine to engine
            fast.restore(eager.state())
        expected, found = eager.predict(pixels), fast.predict(pixels)
        torch.testing.assert_close(found.scores, expected.scores, atol=1e-4, rtol=0)
        assert int(found.scores.argmax()) == int(expected.scores.argmax())
        for ours, theirs in zip(found.steps, expected.steps, strict=True):
            assert (ours.block, ours.stage) == (theirs.block, theirs.stage)
            same.append(torch.equal(ours.target, theirs.target))
    assert sum(same) > 0.95 * len(same)  # rounding may exchange two tokens that score alike
    assert torch.equal(fast.state()["ids"], eager.state()["ids"])
    assert bool((fast.slots().sum(dim=1) == setup.preset.adaptation.M).any())
    assert fast.macs() == eager.macs()


@needs_openvino
def test_many_images_are_encoded_one_after_another(setup_for: Callable[[str], Setup]) -> None:
    setup, pixels = setup_for("tiny"), torch.cat(drawn("tiny", 3))
    condensation = setup.preset.condensation
    expected, found = encode(setup.vision, pixels, condensation), encoder_on("openvino", setup, condensation)(pixels)
    torch.testing.assert_close(found.feature, expected.feature, atol=1e-5, rtol=0)
    torch.testing.assert_close(found.length, expected.length, atol=1e-3, rtol=1e-5)
    torch.testing.assert_close(found.tokens, expected.tokens, atol=1e-4, rtol=1e-4)
    assert all(torch.equal(a.target, b.target) for a, b in zip(found.steps, expected.steps, strict=True))


@needs_openvino
def test_an_adapter_changes_classes_forks_and_tracks(tmp_path: Path, setup_for: Callable[[str], Setup]) -> None:
    vlm = setup_for("tiny").model
    fast, plain = (lessmore.adapt(vlm, NAMES[:6], engine=name, cache=False) for name in ("openvino", "eager"))
    images = [pixels[0] for pixels in drawn("tiny", 24)]
    for adapter in (fast, plain):
        for i, image in enumerate(images[:12]):
            adapter(image, track="one" if i in (3, 4) else None)
        adapter.add_classes(NAMES[6:])
        adapter.remove_classes(NAMES[:1])
    other = fast.fork()
    assert fast.engine == "openvino"
    for image in images[12:]:
        assert fast(image).label == plain(image).label == other(image).label
    ours, theirs = fast.health(), plain.health()
    assert (ours.seen, ours.changed, ours.stored, ours.frames) == (24, theirs.changed, theirs.stored, 1)
    assert ours.strength == pytest.approx(theirs.strength, abs=1e-4)
    fast.save(tmp_path / "state.safetensors")
    plain.restore(tmp_path / "state.safetensors")
    assert plain.health().seen == fast.health().seen


@needs_openvino
@pytest.mark.skipif(not cpu.has_bfloat16(), reason="this processor has no bfloat16 instructions")
def test_bfloat16_is_near_and_keeps_float32(setup_for: Callable[[str], Setup]) -> None:
    setup, images = setup_for("tiny"), drawn("tiny", 20)
    eager, method = build("eager", "tca", setup), build("openvino", "tca", replace(setup, precision="bfloat16"))
    pairs = [(eager.predict(pixels), method.predict(pixels)) for pixels in images]
    assert sum(int(a.scores.argmax()) == int(b.scores.argmax()) for a, b in pairs) >= 18
    assert not any(torch.equal(a.scores, b.scores) for a, b in pairs)
    assert method.state()["anchors"].dtype == torch.float32


@needs_openvino
def test_int8_is_near_calibrated_kept_on_disk_and_of_its_own_state(
    tmp_path: Path, setup_for: Callable[[str], Setup], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("nncf")
    setup, images = setup_for("tiny"), drawn("tiny", 40)
    eight = replace(setup, precision="int8", calibration=torch.cat(images[:8]))
    eager, method = build("eager", "tca", setup), build("openvino", "tca", eight)
    pairs = [(eager.predict(pixels), method.predict(pixels)) for pixels in images]
    assert sum(int(a.scores.argmax()) == int(b.scores.argmax()) for a, b in pairs) >= 36
    assert not any(torch.equal(a.scores, b.scores) for a, b in pairs)
    assert method.state()["anchors"].dtype == torch.float32
    bad = method.predict(images[0] * torch.nan)
    assert bad.scores.isnan().all() and not bool(bad.stored)

    from lessmore.engines import compiled_encoder, quantised

    files = list((tmp_path / "cache" / "quantised").glob("*"))
    assert [file.suffix for file in files] == [".safetensors"]
    monkeypatch.setattr(quantised, "encoder_program", lambda *_: pytest.fail("it is on disk"))
    monkeypatch.setattr(compiled_encoder, "_PROGRAMS", {})
    again = build("openvino", "tca", eight)
    again.restore(method.state())
    assert torch.equal(again.predict(images[3]).scores, method.predict(images[3]).scores)
    files[0].write_bytes(files[0].read_bytes()[:-1])
    assert quantised._read(files[0]) is None and not files[0].exists()


@needs_openvino
@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_streams_that_are_answered_together_keep_engine_and_precision(precision: str) -> None:
    images = drawn("tiny", 6)
    pictures = [as_picture(one) for one in world.draw_scene(world.world_sample(8, 7, CLASSES))[0]]
    more: dict[str, Any] = {"precision": precision, "calibrate": pictures if precision == "int8" else None}
    one = lessmore.adapt("tiny", NAMES, engine="openvino", cache=False, **more)
    streams = [one.fork() for _ in range(3)]
    for image in images:
        alone = one(image[0])
        turn = take_turn([NextImage(stream.answerer, stream.pixels(image[0])) for stream in streams])
        for answered in turn:
            assert isinstance(answered, Answered)
            assert torch.equal(answered.zero_shot, alone.zero_shot_scores)
            assert torch.equal(answered.scores, alone.scores)


def test_runs_say_engine_and_precision(tmp_path: Path, make_picture: Callable[..., object]) -> None:
    for i, name in enumerate(NAMES[:2]):
        (tmp_path / name).mkdir()
        make_picture(40, 40, i).save(tmp_path / name / "a.png")  # type: ignore[attr-defined]
    asked = {"cpu": ("cpu", "float32"), "f32": ("openvino", "float32"), "bf16": ("openvino", "bfloat16")}
    asked |= {"int8": ("auto", "int8")}
    jobs = {
        key: prepare_job(RunSpec("tiny", f"folder:{tmp_path}", engine=engine, precision=precision))
        for key, (engine, precision) in asked.items()
    }
    assert len({job.key for job in jobs.values()}) == len({job.sight["encoder"] for job in jobs.values()}) == 4
    assert jobs["int8"].engine == "openvino" and all(job.vlm.dtype == torch.float32 for job in jobs.values())
    images = jobs["int8"].calibration
    assert images is not None and len(images) == 2 and jobs["f32"].calibration is None
    assert jobs["int8"].sight["encoder"] == f"openvino {precision_key('int8', images)}"
    other = prepare_job(RunSpec("tiny", f"folder:{tmp_path}", precision="int8", calibrate=str(tmp_path / NAMES[0])))
    assert other.key != jobs["int8"].key


def test_states_of_another_precision_are_refused(tmp_path: Path) -> None:
    vlm = lessmore.load("tiny")
    plain = lessmore.adapt(vlm, NAMES, engine="eager", cache=False)
    assert plain.identity()["precision"] == "float32"
    plain.save(tmp_path / "state.safetensors")
    if cpu.has_bfloat16():
        other = lessmore.adapt(vlm, NAMES, engine="cpu", precision="bfloat16", cache=False)
        with pytest.raises(StateError, match="precision"):
            other.restore(tmp_path / "state.safetensors")


def test_what_a_key_says() -> None:
    images = torch.zeros(2, 3, 4, 4)
    assert precision_key("bfloat16", images) == "bfloat16"
    assert precision_key("int8", images) != precision_key("int8", images + 1)
    assert (encoder_key("graph"), encoder_key("cpu"), encoder_key("openvino")) == ("eager", "cpu", "openvino")
    assert encoder_key("openvino", "int8", images).startswith("openvino int8/")


def test_auto_picks_by_a_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    import lessmore.engines as engines

    vit, condensation = make_vit(dtype=torch.float32), PLAIN
    for installed in (True, False):
        monkeypatch.setattr(engines, "has_openvino", lambda installed=installed: installed)
        assert resolve_engine("auto", "tca", vit, condensation) == "cpu"
        assert resolve_engine("auto", "tca", vit, condensation, "float32") == "cpu"
        assert resolve_engine("auto", "tca", vit, condensation, "int8") == "openvino"
        expected = "openvino" if installed else "cpu"
        assert resolve_engine("auto", "tca", vit, condensation, "bfloat16") == expected


def test_a_precision_an_engine_does_not_have_is_refused() -> None:
    with pytest.raises(ConfigError, match="take engine='openvino'"):
        check_precision("cpu", "int8", torch.float32)
    with pytest.raises(ConfigError, match="dtype='bfloat16'"):
        check_precision("eager", "bfloat16", torch.float32)
    with pytest.raises(ConfigError, match="did you mean int8"):
        check_precision("openvino", "int4", torch.float32)
    with pytest.raises(ConfigError, match="not in float16"):
        RunSpec("tiny", "world", engine="openvino", precision="float16")


@needs_openvino
def test_importing_openvino_sends_nothing() -> None:
    utils = import_without_telemetry("openvino.tools.ovc.telemetry_utils")
    assert utils.tm.__name__ == "openvino.tools.ovc.telemetry_stub"


@needs_openvino
@pytest.mark.parametrize(
    ("method", "changes", "message"),
    [
        ("tca", {"preset_name": "paper"}, "guides the encoder by anchors"),
        ("tca", {"reducer": "tome"}, "matches or samples tokens"),
        ("tent", {}, "needs gradients"),
        ("mta", {}, "does not answer from one encoding"),
    ],
)
def test_what_it_cannot_do_is_named(
    method: str, changes: dict[str, str], message: str, setup_for: Callable[[str], Setup]
) -> None:
    setup = setup_for("tiny")
    chosen = resolve(method, shape=setup.vision.shape, **changes).preset
    with pytest.raises(ConfigError, match=f"{message}.*take engine='cpu'"):
        build("openvino", method, replace(setup, preset=chosen))


@needs_openvino
def test_models_and_precisions_that_do_not_go_together(
    setup_for: Callable[[str], Setup], monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = setup_for("tiny")
    wide = Setup(make_vit(), make_text(4), 6.0, setup.preset)
    with pytest.raises(ConfigError, match="load them in float32"):
        build("openvino", "tca", wide)
    with pytest.raises(ConfigError, match="pass calibrate="):
        build("openvino", "tca", replace(setup, precision="int8"))
    monkeypatch.setattr("lessmore.engines.openvino.has_bfloat16", lambda: False)
    with pytest.raises(ConfigError, match="no bfloat16"):
        build("openvino", "tca", replace(setup, precision="bfloat16"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'lessmore\[openvino\]'"):
        build("openvino", "tca", setup)


def test_calibration_skips_what_cannot_be_read(tmp_path: Path, make_picture: Callable[..., object]) -> None:
    vlm = lessmore.load("tiny")
    for i in range(3):
        make_picture(40, 40, i).save(tmp_path / f"{i}.png")  # type: ignore[attr-defined]
    (tmp_path / "1.png").write_bytes(b"no image")
    assert len(calibration_pixels(tmp_path, vlm)) == 2
    assert len(calibration_pixels([make_picture(40, 40)] * (IMAGES + 5), vlm)) == IMAGES
    (tmp_path / "0.png").unlink()
    (tmp_path / "2.png").unlink()
    with pytest.raises(ConfigError, match="none of the images to calibrate on"):
        calibration_pixels(tmp_path, vlm)


def test_threads_sleep_only_in_a_process_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "")  # so that it is put back
    monkeypatch.delenv("OMP_WAIT_POLICY")
    cli._let_threads_sleep()
    assert "OMP_WAIT_POLICY" not in os.environ  # torch is here already
    monkeypatch.delitem(sys.modules, "torch")
    cli._let_threads_sleep()
    assert os.environ["OMP_WAIT_POLICY"] == "passive"
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    cli._let_threads_sleep()
    assert os.environ["OMP_WAIT_POLICY"] == "active"


SIGNALLED = """
import faulthandler, gc, os, signal, sys
faulthandler.enable()  # gives the thread a stack for signals, as pytest does
import openvino, torch
from lessmore.engines.compiled_encoder import compiled_program

def doubled():
    x = openvino.opset8.parameter([1, 4], openvino.Type.f32)
    return openvino.Model([openvino.opset8.add(x, x)], [x])

signal.signal(signal.SIGTERM, lambda number, frame: print("heard", flush=True))
towers = [torch.nn.Identity() for _ in range(3)]
for tower in towers:
    compiled_program(tower, (), doubled, "float32")
while towers:
    del towers[0], tower
    tower = None
    gc.collect()
    os.kill(os.getpid(), signal.SIGTERM)
"""


@needs_openvino
@pytest.mark.skipif(sys.platform == "win32", reason="a process there cannot send itself SIGTERM and live")
def test_signals_are_heard_after_programs_have_gone() -> None:
    """The process died without a word: OpenVINO had taken the memory in which signals are handled."""
    done = subprocess.run([sys.executable, "-c", SIGNALLED], capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()) == (0, ["heard"] * 3), done.stderr
