"""DINOv3.txt: features, what is refused, and what loading knows of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lessmore
from lessmore.core.vit import ViTShape
from lessmore.errors import ModelError
from lessmore.models.preprocess import Preprocess
from lessmore.models.shapes import DINOTXT, SHAPES
from lessmore.models.towers import import_model
from tests.parity.dinotxt_host import SwiGLUFFN, small

SETTINGS: dict[str, dict[str, Any]] = {
    "published": {},
    "no-blocks-behind": {"blocks": 0},
    "projected": {"projected": True},
    "gated-backbone": {"mlp": SwiGLUFFN},
    "class-token": {"parts": "class"},
    "mean-without-registers": {"parts": "patches", "registers": 0},
}


def _difference(ours: Tensor, theirs: Tensor) -> float:
    return float((F.normalize(ours, dim=-1) - F.normalize(theirs, dim=-1)).abs().max())


@pytest.mark.parametrize("name", SETTINGS)
def test_features_equal_the_definition(name: str) -> None:
    model = small(**SETTINGS[name])
    towers = import_model(model)
    pixels, tokens = torch.randn(2, 3, 40, 40), torch.randint(1, 62, (3, 16))
    for row, end in enumerate((2, 9, 15)):
        tokens[row, end:] = torch.tensor([63] + [0] * (15 - end))
    with torch.no_grad():
        image, text = model.encode_image(pixels), model.encode_text(tokens)
        assert _difference(image[:1], image[1:]) > 0.01
        assert _difference(towers.vision(pixels), image) <= 1e-5
        assert _difference(torch.cat([towers.vision(one[None]) for one in pixels]), image) <= 1e-5
        assert _difference(towers.text(tokens), text) <= 1e-5
        assert _difference(torch.cat([towers.text(towers.text.trim(row[None])) for row in tokens]), text) <= 1e-5
    assert towers.logit_scale == pytest.approx(model.logit_scale.exp().item())


def test_periods_are_read_and_not_made_anew() -> None:
    model: Any = small()
    model.visual_model.backbone.rope_embed.periods.copy_(torch.tensor([1.0, 3.5, 9.0, 77.0]))
    pixels = torch.randn(1, 3, 40, 40)
    with torch.no_grad():
        assert _difference(import_model(model).vision(pixels), model.encode_image(pixels)) <= 1e-5


def test_weights_of_training_alone_are_left_out() -> None:
    model: Any = small()
    model.visual_model.backbone.local_cls_norm = torch.nn.LayerNorm(48)
    import_model(model)
    model.visual_model.backbone.another = torch.nn.LayerNorm(48)
    with pytest.raises(ModelError, match=r"extra weights such as 'visual_model\.backbone\.another\.bias'"):
        import_model(model)


@pytest.mark.parametrize(
    ("part", "name", "value", "what"),
    [
        ("visual_model.backbone", "untie_cls_and_patch_norms", True, "an untied norm of its class token"),
        ("visual_model.backbone.rope_embed", "dtype", torch.bfloat16, "rotary positions in half precision"),
        ("visual_model", "patch_token_layer", 2, "patches from an earlier block"),
        ("visual_model", "patch_tokens_pooler_type", "max", "patches pooled by 'max'"),
        ("text_model.head", "num_blocks", 1, "blocks behind its text backbone"),
        ("text_model", "tokens_pooler_type", "first", "texts pooled by 'first'"),
        ("visual_model", "backbone", torch.nn.Linear(2, 2), "a Linear backbone"),
    ],
)
def test_other_settings_are_refused_by_name(part: str, name: str, value: Any, what: str) -> None:
    model = small()
    setattr(model.get_submodule(part), name, value)
    with pytest.raises(ModelError, match=f"a DINOv3.txt model with {what} cannot be imported"):
        import_model(model)


def test_loading_knows_its_preprocessing() -> None:
    def tokenizer(texts: list[str]) -> Tensor:
        return torch.tensor([[*(1 + len(text) % 60 for _ in range(3)), 63] for text in texts])

    vlm = lessmore.load(small(), tokenizer=tokenizer)
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    assert vlm.preprocess == Preprocess(40, mean=mean, std=std, short_side=45)
    vlm = lessmore.load(small(), tokenizer=tokenizer, preprocess=Preprocess(40))
    assert vlm.preprocess == Preprocess(40)


def test_the_shape_by_name_has_the_parts_of_an_imported_tower() -> None:
    ours, theirs = SHAPES[DINOTXT][0], import_model(small()).vision.shape

    def parts(shape: ViTShape) -> ViTShape:
        assert shape.head is not None
        head = replace(shape.head, width=0, heads=0, mlp=0)
        blocks = replace(shape.blocks, width=0, depth=0, heads=0, mlp=0)
        return replace(shape, blocks=blocks, head=head, image_size=0, patch=1, embed=0, rope=None)

    assert parts(ours) == parts(theirs)
    assert ours.tokens == 201
