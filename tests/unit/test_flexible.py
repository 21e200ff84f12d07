"""Images of any shape (NaFlex): condensed by their own patch counts, on `eager` and `cpu`, and refused elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from PIL import Image

from lessmore import Adapter, adapt, list_reducers
from lessmore.config import Condensation, Preset, preset
from lessmore.core.condense.registry import resolve_reducer
from lessmore.core.condense.schedule import schedule
from lessmore.core.encoder import encode
from lessmore.core.flexible import grid_positions
from lessmore.engines import build, graph_unusable, list_engines
from lessmore.engines.cpu import pack_tower
from lessmore.engines.fused_tower import cannot_fuse
from lessmore.engines.multi import Multi
from lessmore.engines.together import NextImage, take_turn
from lessmore.errors import ConfigError, ImageError
from lessmore.lab.report.tokens import as_seen, token_strip
from lessmore.methods import Setup
from lessmore.models.preprocess import Preprocess
from lessmore.models.vlm import VLM
from tests.random_towers import FLEXIBLE, make_images, make_mixed, make_text, make_vit, make_vlm

CONDENSATION = Condensation(R=0.7, layers=(1, 2, 3))
CLASSES = ["red square", "blue circle", "green star"]


def make_flexible() -> VLM:
    return replace(make_vlm(shape=FLEXIBLE), preprocess=Preprocess(24, "keep", "bilinear", patch=4))


@pytest.mark.parametrize("name", list_reducers())
def test_batch_and_single_are_equal_and_all_counts_are_the_images_own(name: str) -> None:
    vit, config = make_vit(FLEXIBLE), resolve_reducer(name, CONDENSATION)
    for image in make_mixed(5):
        other = make_images(1, 40, seed=9)[0, :, : image.shape[1], : image.shape[2]]
        single, batch = encode(vit, image[None], config), encode(vit, torch.stack([other, image]), config)
        torch.testing.assert_close(batch.feature[1:], single.feature, rtol=0, atol=1e-10)
        torch.testing.assert_close(batch.tokens[1:], single.tokens, rtol=0, atol=1e-10)
        patches = image.shape[1] * image.shape[2] // 16
        plan = [stage for stage in schedule(patches, len(vit.blocks), config) if stage is not None]
        assert [step.stage.patches for step in single.steps][:1] == [stage.patches for stage in plan][:1]
        if name != "ats":  # it keeps as many as an image needs
            assert [step.stage for step in single.steps] == plan
        packed = encode(pack_tower(vit, torch.float64), image[None], config)
        torch.testing.assert_close(packed.feature, single.feature, rtol=0, atol=1e-10)


def test_positions_of_the_learned_grid_stay_and_a_constant_remains_one() -> None:
    learned = torch.arange(32.0).view(16, 2)
    assert grid_positions(learned, 4, 4) is learned
    flat = grid_positions(torch.full((16, 2), 3.0, dtype=torch.float16), 7, 2)
    assert flat.dtype == torch.float16
    torch.testing.assert_close(flat, torch.full((14, 2), 3.0, dtype=torch.float16))


def test_a_stream_of_several_shapes_answers_on_eager_and_cpu_alike(make_picture: Callable[..., Image.Image]) -> None:
    pictures = [make_picture(40, 30), make_picture(20, 60), make_picture(33, 33), make_picture(90, 10)] * 2
    answers = {}
    for engine in ("eager", "cpu"):
        adapter = adapt(make_flexible(), CLASSES, R=0.7, engine=engine, cache=False)
        answers[engine] = torch.stack([adapter(picture).scores for picture in pictures])
        assert adapter.engine == engine
    torch.testing.assert_close(answers["eager"], answers["cpu"], rtol=0, atol=1e-5)
    assert adapt(make_flexible(), CLASSES, cache=False).engine == "cpu"


def _adapter() -> Adapter:
    return adapt(make_flexible(), CLASSES, R=0.7, engine="eager", cache=False)


def test_streams_share_a_pass_only_where_their_images_have_one_shape() -> None:
    images = make_mixed(6, dtype=torch.float32)
    alone = [_adapter() for _ in images]
    together = [_adapter() for _ in images]
    found = take_turn([NextImage(a.answerer, image[None]) for a, image in zip(together, images, strict=True)])
    for one, adapter, image in zip(found, alone, images, strict=True):
        assert not isinstance(one, Exception)
        torch.testing.assert_close(one.scores, adapter(image).scores, rtol=0, atol=1e-5)


def _setup(condensation: Condensation = CONDENSATION) -> Setup:
    vlm = make_flexible()
    text = make_text(3, FLEXIBLE.embed, dtype=torch.float32)
    chosen = Preset(condensation, preset("default").adaptation)
    return Setup(vlm.vision, text, 5.0, chosen, vlm, tuple(CLASSES))


def test_engines_that_need_one_shape_refuse_by_name() -> None:
    setup = _setup()
    with pytest.raises(ConfigError, match=r"'chunk' needs images of one shape.*engine='eager' or 'cpu'"):
        build("chunk", "tca", setup)
    with pytest.raises(ConfigError, match=r"'multi' needs images of one shape.*an adapter of its own"):
        Multi(setup, 2)
    assert "shape of its own" in str(graph_unusable("tca", setup.vision, CONDENSATION))
    assert cannot_fuse(make_vit(replace(FLEXIBLE, class_token=True, pool="class", norm_then_pool=False)), CONDENSATION)
    assert {"eager", "cpu", "openvino", "graph", "chunk"} < set(list_engines())  # a new one must be decided upon


def test_openvino_refuses_by_name() -> None:
    pytest.importorskip("openvino")
    with pytest.raises(ConfigError, match=r"openvino' cannot be used: .*shape of its own.*engine='cpu' or 'eager'"):
        build("openvino", "zeroshot", _setup(Condensation(R=1.0)))


@pytest.mark.parametrize("method", ["tent", "sar", "deyo"])
def test_methods_that_gather_a_batch_refuse_by_name(method: str) -> None:
    with pytest.raises(ConfigError, match=rf"method '{method}' needs images of one shape.*'tca'"):
        adapt(make_flexible(), CLASSES, method=method, engine="eager", cache=False)


def test_views_have_the_shape_of_the_image(make_picture: Callable[..., Image.Image]) -> None:
    adapter = adapt(make_flexible(), CLASSES, method="mta", views=4, engine="eager", cache=False)
    assert adapter(make_picture(60, 20)).scores.isfinite().all()


def test_pixels_of_other_sizes_are_refused_with_the_sizes_it_takes() -> None:
    vlm = make_flexible()
    assert vlm.encode_image(torch.zeros(1, 3, 8, 20)).shape == (1, 16)
    with pytest.raises(ImageError, match="4·h, 4·w"):
        vlm.encode_image(torch.zeros(1, 3, 8, 21))
    with pytest.raises(ImageError, match="4·h, 4·w"):
        _adapter()(torch.zeros(3, 0, 8))


def test_the_strip_shows_the_image_in_its_own_shape(make_picture: Callable[..., Image.Image]) -> None:
    adapter, picture = _adapter(), make_picture(60, 20)
    seen = as_seen(picture, adapter.vlm)
    trace = adapter(picture, trace=True).trace
    assert trace is not None
    assert seen.width > 2 * seen.height
    assert trace.fate.shape[-1] == seen.width * seen.height // 16
    strip = token_strip(seen, trace)
    assert strip.height < 192


@pytest.mark.parametrize("wrong", [{"patch": None}, {"patch": 0}, {"patch": 32}, {"patch": 4, "patches": 0}])
def test_a_preprocessing_without_patches_is_refused(wrong: dict[str, int | None]) -> None:
    with pytest.raises(ConfigError, match="mode 'keep' needs a patch"):
        Preprocess(24, "keep", **wrong)  # type: ignore[arg-type]
