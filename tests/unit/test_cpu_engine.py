"""The CPU engine: the packed tower answers as the plain one does, with every method, reducer and kind of tower."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn

import lessmore
from lessmore.assets import world
from lessmore.config import preset
from lessmore.core.condense.registry import resolve_reducer
from lessmore.core.encoder import PLAIN, encode
from lessmore.core.vit import ACTIVATIONS, BlockShape, ViT, ViTShape
from lessmore.engines import cores, cpu
from lessmore.errors import ConfigError
from lessmore.lab.report.tokens import as_picture
from lessmore.methods import Facts, Setup, make_method, register_method
from lessmore.methods.registry import METHODS
from lessmore.methods.tca import TCA
from lessmore.methods.zeroshot import ZeroShot
from lessmore.models.to_pixels import to_pixels
from tests.random_towers import SHAPES, make_images, make_text, make_vit

packs = pytest.mark.skipif(not cpu.can_pack(torch.float32), reason="torch was built without oneDNN")
CLASSES = world.test_classes(12)


def linear_layers(vit: ViT) -> list[nn.Module]:
    return [m for m in vit.modules() if isinstance(m, nn.Linear)]


@packs
@pytest.mark.parametrize("shape", list(SHAPES))
def test_features_and_summaries_equal_to_rounding(shape: str) -> None:
    vit = make_vit(SHAPES[shape], dtype=torch.float32, spread=0.2)
    packed, pixels = cpu.pack_tower(vit, torch.float32), make_images(3, dtype=torch.float32)
    assert linear_layers(packed) == [] and linear_layers(vit)
    expected, found = encode(vit, pixels, PLAIN), encode(packed, pixels, PLAIN)
    torch.testing.assert_close(found.feature, expected.feature, atol=2e-5, rtol=0)
    torch.testing.assert_close(found.tokens, expected.tokens, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(packed(pixels), vit(pixels), atol=1e-4, rtol=1e-4)


@packs
@pytest.mark.parametrize("activation", list(ACTIVATIONS))
def test_every_activation_is_fused(activation: str) -> None:
    shape = ViTShape(BlockShape(16, 2, 2, 24, activation), image_size=24, patch=4, embed=8)
    vit = make_vit(shape, dtype=torch.float32)
    pixels = make_images(2, dtype=torch.float32)
    torch.testing.assert_close(cpu.pack_tower(vit, torch.float32)(pixels), vit(pixels), atol=1e-4, rtol=1e-4)


def test_other_types_stay_as_they_are_and_exact() -> None:
    vit = make_vit()
    packed, pixels = cpu.pack_tower(vit, torch.float64), make_images(2)
    assert len(linear_layers(packed)) == len(linear_layers(vit))
    expected, found = encode(vit, pixels), encode(packed, pixels)
    torch.testing.assert_close(found.feature, expected.feature, atol=1e-12, rtol=0)
    torch.testing.assert_close(found.tokens, expected.tokens, atol=1e-11, rtol=0)


def test_the_tower_given_is_not_touched() -> None:
    vit = make_vit(dtype=torch.float32)
    before = {name: tensor.clone() for name, tensor in vit.state_dict().items()}
    modules = [id(m) for m in vit.modules()]
    packed = cpu.pack_tower(vit, torch.float32)
    assert [id(m) for m in vit.modules()] == modules
    assert all(torch.equal(before[name], tensor) for name, tensor in vit.state_dict().items())
    assert packed.positions.data_ptr() == vit.positions.data_ptr()


def test_setups_on_one_tower_share_what_is_packed() -> None:
    vit = make_vit(dtype=torch.float32)
    one, other = (cpu.packed_setup(Setup(vit, make_text(C), 6.0, preset("default"))) for C in (3, 4))
    assert one.vision is other.vision is not vit
    packed = weakref.ref(one.vision)
    del one, other, vit
    gc.collect()
    assert packed() is None


@pytest.mark.parametrize("last", [True, False])
def test_a_last_block_that_condenses_computes_all_its_tokens(last: bool) -> None:
    vit = make_vit()
    chosen = preset("paper", R=0.8, layers=(1, 4) if last else (1, 2))
    setup = Setup(vit, make_text(4), 6.0, chosen)
    plain, packed = make_method("tca", setup), cpu.build_cpu("tca", setup)
    for image in make_images(12):
        expected, found = plain.predict(image[None]), packed.predict(image[None])
        assert [s.block for s in found.steps] == list(chosen.condensation.layers)
        for theirs, ours in zip(expected.steps, found.steps, strict=True):
            assert torch.equal(ours.target, theirs.target)
            assert torch.equal(ours.anchor, theirs.anchor)
        torch.testing.assert_close(found.scores, expected.scores, atol=1e-10, rtol=0)
    assert torch.equal(packed.state()["ids"], plain.state()["ids"])


@packs
@pytest.mark.parametrize("model", ["tiny", "tiny-siglip"])
@pytest.mark.parametrize(("method", "reduce", "name"), [("tca", "tca", "default"), ("tca", "evit", "released")])
def test_embedded_streams_get_the_same_answers(model: str, method: str, reduce: str, name: str) -> None:
    vlm = lessmore.load(model)
    text = vlm.classifier(world.world_class_names(CLASSES), cache=False)
    chosen = preset(name)
    setup = Setup(
        vlm.vision, text, vlm.logit_scale, chosen._replace(condensation=resolve_reducer(reduce, chosen.condensation))
    )
    eager, fast = make_method(method, setup), cpu.build_cpu(method, setup)
    drawn, _ = world.draw_scene(world.world_sample(60, 11, CLASSES))
    for image in drawn:
        pixels = to_pixels(as_picture(image), vlm)
        expected, found = eager.predict(pixels), fast.predict(pixels)
        best, second = expected.scores.topk(2).values
        assert int(found.scores.argmax()) == int(expected.scores.argmax()), f"margin {best - second}"
        torch.testing.assert_close(found.scores, expected.scores, atol=2e-3, rtol=0)
    assert torch.equal(fast.state()["ids"], eager.state()["ids"])


def test_state_goes_from_engine_to_engine() -> None:
    setup = Setup(make_vit(), make_text(4), 6.0, preset("default", R=0.8, layers=(1, 2)))
    eager, fast = make_method("tca", setup), cpu.build_cpu("tca", setup)
    for image in make_images(6):
        eager.predict(image[None])
    fast.restore(eager.state())
    image = make_images(1, seed=5)
    torch.testing.assert_close(fast.predict(image).scores, eager.predict(image).scores, atol=1e-10, rtol=0)


@packs
@pytest.mark.skipif(not cpu.has_bfloat16(), reason="this processor has no bfloat16 instructions")
def test_bfloat16_is_near_and_keeps_state_in_float32() -> None:
    vlm = lessmore.load("tiny")
    setup = Setup(
        vlm.vision, vlm.classifier(world.world_class_names(CLASSES), cache=False), vlm.logit_scale, preset("default")
    )
    method = cpu.build_cpu("tca", setup, bfloat16=True)
    pixels = to_pixels(as_picture(world.draw_scene(world.world_sample(1, 11, CLASSES))[0][0]), vlm)
    feature = encode(cpu.packed_setup(setup, bfloat16=True).vision, pixels).feature
    assert float((feature * encode(vlm.vision, pixels).feature).sum()) > 0.999
    method.predict(pixels)
    assert method.state()["anchors"].dtype == torch.float32


def test_bfloat16_is_refused_where_it_would_be_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "has_bfloat16", lambda: False)
    with pytest.raises(ConfigError, match="no bfloat16"):
        cpu.packed_setup(Setup(make_vit(), make_text(4), 6.0, preset("default")), bfloat16=True)


def test_a_model_elsewhere_is_refused() -> None:
    with pytest.raises(ConfigError, match="move it"):
        cpu.packed_setup(Setup(make_vit().to("meta"), make_text(4), 6.0, preset("default")))


def test_methods_that_need_gradients_get_the_plain_tower(monkeypatch: pytest.MonkeyPatch) -> None:
    class Trains(ZeroShot):
        facts = Facts(training_free=False, kind="episodic", needs_gradients=True)

    monkeypatch.setattr(METHODS, "_own", {})
    register_method("trains")(Trains)
    vit = make_vit(dtype=torch.float32)
    built = cpu.build_cpu("trains", Setup(vit, make_text(4, dtype=torch.float32), 6.0, preset("default", R=1.0)))
    assert isinstance(built, Trains) and built.setup.vision is vit


def fake_system(folder: Path, siblings: dict[int, str], quota: str | None) -> Path:
    for number, shared in siblings.items():
        place = folder / "devices" / "system" / "cpu" / f"cpu{number}" / "topology"
        place.mkdir(parents=True)
        (place / "thread_siblings_list").write_text(f"{shared}\n")
    group = folder / "fs" / "cgroup"
    group.mkdir(parents=True)
    if quota is not None:
        (group / "cpu.max").write_text(f"{quota}\n")
    return folder


@pytest.mark.parametrize(
    ("siblings", "quota", "expected"),
    [
        ({0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3"}, "max 100000", 2),
        ({0: "0", 1: "1", 2: "2", 3: "3"}, None, 4),
        ({0: "0", 1: "1", 2: "2", 3: "3"}, "250000 100000", 2),
        ({0: "0", 1: "1", 2: "2", 3: "3"}, "50000 100000", 1),
        ({}, "nonsense", 4),
    ],
)
def test_cores_are_physical_and_within_the_quota(
    siblings: dict[int, str], quota: str | None, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 2, 3}, raising=False)
    assert cores.usable_cores(fake_system(tmp_path, siblings, quota)) == expected


def test_older_control_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)), raising=False)
    group = fake_system(tmp_path, {}, None) / "fs" / "cgroup" / "cpu"
    group.mkdir()
    (group / "cpu.cfs_quota_us").write_text("300000\n")
    (group / "cpu.cfs_period_us").write_text("100000\n")
    assert cores.usable_cores(tmp_path) == 3
    (group / "cpu.cfs_quota_us").write_text("-1\n")
    assert cores.usable_cores(tmp_path) == 8


def test_threads_are_lowered_but_never_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    try:
        monkeypatch.setattr(cores, "usable_cores", lambda: 2)
        torch.set_num_threads(3)
        cores.limit_threads()
        assert torch.get_num_threads() == 2
        torch.set_num_threads(1)
        cores.limit_threads()
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_the_method_built_is_the_one_asked_for() -> None:
    setup = Setup(make_vit(), make_text(4), 6.0, preset("default", R=1.0))
    assert isinstance(cpu.build_cpu("tca", setup), TCA)
    with pytest.raises(ConfigError, match="did you mean tca"):
        cpu.build_cpu("tcx", setup)
