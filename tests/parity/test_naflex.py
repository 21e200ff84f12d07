"""SigLIP 2 NaFlex against its hosts, which pad a batch of several shapes and mask the padding; ours does neither."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from lessmore.errors import ModelError
from lessmore.models.load import load
from lessmore.models.preprocess import Preprocess, largest_grid
from lessmore.models.shapes import SHAPES
from lessmore.models.towers import Towers, import_model

transformers = pytest.importorskip("transformers")
open_clip = pytest.importorskip("open_clip")
pytest.importorskip("timm.models.naflexvit")

GRIDS = ((4, 4), (2, 7), (3, 5), (1, 16), (9, 2))
"""Rows and columns of patches; four by four are learned."""
PADDED = 20
SIZES = [(224, 224), (640, 427), (427, 640), (333, 250), (50, 31), (1, 1), (3, 7), (900, 40), (4, 2000), (4000, 3999)]
TEXT = {"context_length": 16, "vocab_size": 64, "width": 32, "heads": 2, "layers": 2}


def _transformers() -> nn.Module:
    tower = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    marks = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
    text = tower | marks | {"vocab_size": 64, "max_position_embeddings": 16, "projection_size": 32}
    vision = tower | {"num_patches": 16, "patch_size": 8}
    model: nn.Module = transformers.Siglip2Model(transformers.Siglip2Config(text_config=text, vision_config=vision))
    return model


def _open_clip(**changed: Any) -> nn.Module:
    from timm.models.naflexvit import NaFlexVit, NaFlexVitCfg

    config: dict[str, Any] = {"patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4, "act_layer": "gelu_tanh"}
    config |= {"global_pool": "map", "pos_embed_interp_mode": "bilinear", "pos_embed_grid_size": (4, 4)} | changed
    vision = {"timm_model_name": "vit_tiny_patch16_224", "timm_pool": "token", "timm_proj": None, "image_size": 224}
    model: nn.Module = open_clip.CustomTextCLIP(embed_dim=32, vision_cfg=vision, text_cfg=TEXT)
    model.visual.trunk = NaFlexVit(NaFlexVitCfg(**config), num_classes=0)
    return model


def _patches(pixels: Tensor) -> Tensor:
    """[3, 8h, 8w] → [h · w, 8 · 8 · 3]"""
    h, w = (length // 8 for length in pixels.shape[1:])
    return pixels.unflatten(2, (w, 8)).unflatten(1, (h, 8)).permute(1, 3, 2, 4, 0).flatten(2).flatten(0, 1)


def _padded(images: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Patches with garbage behind them, and where they are patches."""
    rows = [_patches(image) for image in images]
    there = torch.stack([torch.arange(PADDED) < len(row) for row in rows])
    return torch.stack([F.pad(row, (0, 0, 0, PADDED - len(row)), value=5.0) for row in rows]), there


def _transformers_features(model: Any, images: list[Tensor]) -> Tensor:
    patches, there = _padded(images)
    found = model.get_image_features(
        pixel_values=patches, pixel_attention_mask=there.int(), spatial_shapes=torch.tensor(GRIDS)
    )
    features: Tensor = found if isinstance(found, Tensor) else found.pooler_output
    return features


def _timm_features(model: Any, images: list[Tensor]) -> Tensor:
    patches, there = _padded(images)
    places = [torch.cartesian_prod(torch.arange(h), torch.arange(w)) for h, w in GRIDS]
    coordinates = torch.stack([F.pad(place, (0, 0, 0, PADDED - len(place))) for place in places])
    features: Tensor = model.visual.trunk({"patches": patches, "patch_coord": coordinates, "patch_valid": there})
    return features


@pytest.mark.parametrize(("make", "ask"), [(_transformers, _transformers_features), (_open_clip, _timm_features)])
def test_every_shape_equals_the_host_that_pads_and_masks(
    make: Callable[[], nn.Module],
    ask: Callable[[Any, list[Tensor]], Tensor],
    randomly: Callable[[Callable[[], nn.Module]], nn.Module],
) -> None:
    model = randomly(make)
    towers = import_model(model)
    generator = torch.Generator().manual_seed(0)
    images = [torch.randn(3, 8 * h, 8 * w, generator=generator) for h, w in GRIDS]
    with torch.no_grad():
        theirs = F.normalize(ask(model, images), dim=-1)
        single = F.normalize(torch.cat([towers.vision(image[None]) for image in images]), dim=-1)
        batch = F.normalize(towers.vision(torch.stack([images[1]] * 3)), dim=-1)
    difference = max(float((single - theirs).abs().max()), float((batch - theirs[1]).abs().max()))
    print(f"\n{make.__name__}: {difference:.1e}")
    assert difference <= 1e-5
    assert towers.vision.patch_embed.weight.untyped_storage().data_ptr() in {
        parameter.untyped_storage().data_ptr() for parameter in model.parameters()
    }


def test_text_equals_the_hosts(randomly: Callable[[Callable[[], nn.Module]], nn.Module]) -> None:
    model: Any = randomly(_transformers)
    tokens = torch.randint(3, 63, (3, 16), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        found = model.get_text_features(input_ids=tokens)
        theirs, ours = found if isinstance(found, Tensor) else found.pooler_output, import_model(model).text(tokens)
    assert float((F.normalize(ours, dim=-1) - F.normalize(theirs, dim=-1)).abs().max()) <= 1e-5


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"class_token": True}, "class or register tokens"),
        ({"pos_embed": "factorized"}, "factorized positions"),
        ({"pos_embed_interp_mode": "bicubic"}, "interpolated as bicubic"),
        ({"global_pool": "avg"}, "pooling by 'avg'"),
    ],
)
def test_other_kinds_are_refused_by_name(changed: dict[str, Any], what: str) -> None:
    with torch.device("meta"):
        model = _open_clip(**changed)
    with pytest.raises(ModelError, match=what):
        import_model(model)


@pytest.mark.parametrize(("name", "timm_name"), [("B", "base"), ("SO400M", "so400m")])
def test_the_known_shapes_are_those_of_timm(name: str, timm_name: str) -> None:
    vision = {"timm_model_name": f"naflexvit_{timm_name}_patch16_siglip", "timm_pool": "map", "timm_proj": "none"}
    shape = SHAPES[f"ViT-{name}-16-SigLIP2-naflex"][0]
    with torch.device("meta"):
        model = open_clip.CustomTextCLIP(
            embed_dim=shape.embed, vision_cfg=vision | {"image_size": 256}, text_cfg=TEXT | {"proj_type": "linear"}
        )
    towers: Towers = import_model(model)
    assert towers.vision.shape == shape


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("options", [{}, {"max_num_patches": 49, "patch_size": 14, "resample": 3}])
def test_preprocessing(
    width: int, height: int, options: dict[str, Any], make_picture: Callable[..., Image.Image]
) -> None:
    kind = getattr(transformers, "Siglip2ImageProcessorPil", None) or transformers.Siglip2ImageProcessor
    processor = kind(**options)
    image = make_picture(width, height)
    ours = Preprocess.from_hf(processor.to_dict())
    batch = processor(image, return_tensors="np", input_data_format="channels_last")
    rows, columns = (int(n) for n in batch["spatial_shapes"][0])
    pixels, patch = ours(image), ours.patch or 0
    assert pixels.shape == (3, rows * patch, columns * patch)
    patches = pixels.unflatten(2, (columns, patch)).unflatten(1, (rows, patch)).permute(1, 3, 2, 4, 0)
    theirs = np.asarray(batch["pixel_values"][0])[: rows * columns]
    assert np.abs(patches.reshape(rows * columns, -1).numpy() - theirs).max() <= 1e-6


def test_a_grid_holds_as_many_patches_as_fit() -> None:
    assert largest_grid(512, 512, 16, 256) == (16, 16)
    assert largest_grid(1, 10_000, 16, 256) == (1, 256)
    for height, width in ((480, 640), (333, 250), (31, 977)):
        rows, columns = largest_grid(height, width, 16, 256)
        assert rows * columns <= 256
        assert (rows + 1) * (columns + 1) > 256


def test_a_folder_loads_in_one_call(
    siglip_tokenizer: Any, randomly: Callable[[Callable[[], nn.Module]], nn.Module], tmp_path: Any
) -> None:
    model: Any = randomly(_transformers)
    processor = transformers.Siglip2ImageProcessor(patch_size=8, max_num_patches=20)
    for part in (model, siglip_tokenizer, processor):
        part.save_pretrained(tmp_path)
    vlm = load(tmp_path)
    assert isinstance(vlm.preprocess, Preprocess)
    assert (vlm.preprocess.mode, vlm.preprocess.most_patches, vlm.family) == ("keep", 20, "siglip")
    assert vlm.preprocess(Image.new("RGB", (60, 30))).shape == (3, 24, 48)


def test_an_open_clip_model_keeps_the_shape_of_images() -> None:
    config = {"size": (256, 256), "mean": (0.5,) * 3, "std": (0.5,) * 3, "interpolation": "bicubic"}
    kept = Preprocess.from_open_clip(config, patch=16)
    assert kept == Preprocess(256, "keep", "bilinear", (0.5,) * 3, (0.5,) * 3, patch=16)  # type: ignore[arg-type]
    assert kept(Image.new("RGB", (640, 160))).shape == (3, 128, 512)
