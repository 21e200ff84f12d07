"""Our towers against their hosts: real architectures, random weights, float32, every family."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lessmore.errors import ModelError
from lessmore.models.towers import Towers, import_model
from tests.parity.eva_towers import EVA

pytest.importorskip("open_clip")
pytest.importorskip("transformers")

TOLERANCE = 1e-5
SMALL_TEXT = {"context_length": 16, "vocab_size": 64, "width": 32, "heads": 2, "layers": 2}
SMALL_VISION = {"image_size": 32, "patch_size": 8, "width": 48, "head_width": 16, "layers": 3, "mlp_ratio": 3.0}

SMALL_OPEN_CLIP: dict[str, dict[str, Any]] = {
    "layer-scale": {
        "vision_cfg": SMALL_VISION | {"ls_init_value": 0.5},
        "text_cfg": SMALL_TEXT | {"ls_init_value": 0.5},
    },
    "no-pre-norm": {"vision_cfg": SMALL_VISION | {"no_ln_pre": True}},
    "mean-of-normed": {"vision_cfg": SMALL_VISION | {"pool_type": "avg"}},
    "normed-mean": {"vision_cfg": SMALL_VISION | {"pool_type": "avg", "final_ln_after_pool": True}},
    "sin-cos": {"vision_cfg": SMALL_VISION | {"pos_embed_type": "sin_cos_2d"}, "quick_gelu": True},
    "custom-block": {"vision_cfg": SMALL_VISION | {"block_type": "custom"}},
    "eps-and-tanh": {
        "vision_cfg": SMALL_VISION | {"norm_kwargs": {"eps": 1e-3}, "act_kwargs": {"approximate": "tanh"}},
    },
    "text-both-ways-last": {"text_cfg": SMALL_TEXT | {"no_causal_mask": True, "pool_type": "last", "proj_bias": True}},
    "text-eos-id": {"text_cfg": SMALL_TEXT | {"pool_type": "eos", "eos_id": 63}, "custom_text": True},
    "text-unprojected": {"text_cfg": SMALL_TEXT | {"proj_type": "none"}, "custom_text": True, "embed_dim": 32},
    "timm-class-token": {
        "vision_cfg": {
            "timm_model_name": "vit_tiny_patch16_224",
            "timm_pool": "token",
            "timm_proj": "",
            "image_size": 224,
        },
    },
    "timm-registers": {
        "vision_cfg": {
            "timm_model_name": "vit_small_patch14_reg4_dinov2",
            "timm_pool": "token",
            "timm_proj": "linear",
            "image_size": 518,
        },
    },
    "timm-no-query-bias": {
        "vision_cfg": {
            "timm_model_name": "vit_medium_patch16_gap_256",
            "timm_pool": "avg",
            "timm_proj": "linear",
            "image_size": 256,
        },
    },
    "timm-mean": {
        "vision_cfg": {
            "timm_model_name": "vit_tiny_patch16_224",
            "timm_pool": "avg",
            "timm_proj": "linear",
            "timm_proj_bias": True,
            "image_size": 224,
        },
    },
}


def _small_open_clip(name: str) -> nn.Module:
    import open_clip

    config = {"embed_dim": 24, "vision_cfg": SMALL_VISION, "text_cfg": SMALL_TEXT} | SMALL_OPEN_CLIP[name]
    custom = config.pop("custom_text", False)
    model: nn.Module = (open_clip.CustomTextCLIP if custom else open_clip.CLIP)(**config)
    return model


def _open_clip(name: str) -> nn.Module:
    import open_clip

    model: nn.Module = open_clip.create_model(name)
    return model


def _siglip2_open_clip() -> nn.Module:
    """ViT-B-16-SigLIP2 with 32,000 instead of 256,000 words: 172 M numbers less, nothing else differs."""
    import open_clip

    config = open_clip.get_model_config("ViT-B-16-SigLIP2")
    config["text_cfg"]["vocab_size"] = 32_000
    config.pop("custom_text")
    model: nn.Module = open_clip.CustomTextCLIP(**config)
    return model


def _clip(width: int, layers: int, patch: int, text: int, embed: int) -> nn.Module:
    from transformers import CLIPConfig, CLIPModel

    vision = {"hidden_size": width, "intermediate_size": 4 * width, "num_hidden_layers": layers, "patch_size": patch}
    vision["num_attention_heads"] = width // 64
    words = {"hidden_size": text, "intermediate_size": 4 * text, "num_attention_heads": text // 64}
    words["eos_token_id"] = 49407
    model: nn.Module = CLIPModel(CLIPConfig(vision_config=vision, text_config=words, projection_dim=embed))
    return model


def _legacy_clip() -> nn.Module:
    """The end mark 2 of old configuration files, which means: pool at the largest id; and an epsilon of its own."""
    from transformers import CLIPConfig, CLIPModel

    tower = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "layer_norm_eps": 1e-3,
    }
    text, vision = (
        tower | {"vocab_size": 64, "eos_token_id": 2, "hidden_act": "gelu"},
        tower | {"image_size": 32, "patch_size": 8},
    )
    model: nn.Module = CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=24))
    return model


def _metaclip2() -> nn.Module:
    """Pooled at the end mark 2, which is not the largest id."""
    transformers = pytest.importorskip("transformers")
    if not hasattr(transformers, "MetaClip2Model"):
        pytest.skip("this transformers has no MetaCLIP 2")
    tower = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    text = tower | {"vocab_size": 64, "eos_token_id": 2, "hidden_act": "quick_gelu"}
    vision = tower | {"image_size": 42, "patch_size": 14, "hidden_act": "quick_gelu"}
    config = transformers.MetaClip2Config(text_config=text, vision_config=vision, projection_dim=24)
    model: nn.Module = transformers.MetaClip2Model(config)
    return model


def _siglip(vocab: int, **vision: Any) -> nn.Module:
    from transformers import SiglipConfig, SiglipModel

    text = {"vocab_size": vocab, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
    model: nn.Module = SiglipModel(SiglipConfig(text_config=text, vision_config={"image_size": 224, **vision}))
    return model


def _two_blocks(width: int, heads: int, mlp: int, image_size: int, patch: int) -> nn.Module:
    """The real widths of a larger SigLIP's vision tower at its real resolution, two blocks deep; a small text tower."""
    from transformers import SiglipConfig, SiglipModel

    tower = {"num_hidden_layers": 2, "hidden_size": width, "intermediate_size": mlp, "num_attention_heads": heads}
    text = {"vocab_size": 64, "num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 64}
    text |= {"num_attention_heads": 2, "projection_size": width, "max_position_embeddings": 16, "pad_token_id": 1}
    vision = tower | {"image_size": image_size, "patch_size": patch}
    model: nn.Module = SiglipModel(SiglipConfig(text_config=text, vision_config=vision))
    return model


LARGER: dict[str, tuple[int, int, int, int, int]] = {
    "L-16-512": (1024, 16, 4096, 512, 16),
    "SO400M-14-224": (1152, 16, 4304, 224, 14),
    "SO400M-14-384": (1152, 16, 4304, 384, 14),
    "SO400M-16-512": (1152, 16, 4304, 512, 16),
    "gopt-16-384": (1536, 16, 6144, 384, 16),
}

MODELS: dict[str, Callable[[], nn.Module]] = {
    **EVA,
    **{f"open_clip/small/{name}": lambda name=name: _small_open_clip(name) for name in SMALL_OPEN_CLIP},
    **{f"open_clip/{n}": lambda n=n: _open_clip(n) for n in ("ViT-B-32", "ViT-B-16", "ViT-B-16-quickgelu", "ViT-L-14")},
    "open_clip/ViT-B-16-SigLIP": lambda: _open_clip("ViT-B-16-SigLIP"),
    "open_clip/ViT-B-16-SigLIP2": _siglip2_open_clip,
    "transformers/CLIP-B-32": lambda: _clip(768, 12, 32, 512, 512),
    "transformers/CLIP-B-16": lambda: _clip(768, 12, 16, 512, 512),
    "transformers/CLIP-L-14": lambda: _clip(1024, 24, 14, 768, 768),
    "transformers/CLIP-legacy": _legacy_clip,
    "transformers/MetaCLIP-2": _metaclip2,
    "transformers/SigLIP-B-16": lambda: _siglip(32_000),
    **{f"transformers/SigLIP-{name}": lambda sizes=sizes: _two_blocks(*sizes) for name, sizes in LARGER.items()},
}

WHOLE = {
    *(f"open_clip/{name}" for name in ("ViT-B-32", "ViT-B-16", "ViT-L-14", "ViT-B-16-SigLIP")),
    *("transformers/CLIP-B-32", "transformers/CLIP-L-14"),
    *(f"transformers/SigLIP-{name}" for name in LARGER if name != "SO400M-14-384"),
}
"""Models that differ from another one here in size alone; they take seconds each."""


def _tokens(towers: Towers) -> Tensor:
    """Three texts whose end mark, mostly the largest id, stands at different places, with padding after it."""
    shape = towers.text.shape
    tokens = torch.randint(3, shape.vocab - 1, (3, shape.context), generator=torch.Generator().manual_seed(1))
    for row, end in enumerate((2, 5, shape.context - 1)):
        tokens[row, end] = shape.eos_id if shape.pool == "eos_id" else shape.vocab - 1
        tokens[row, end + 1 :] = 0
    return tokens


def _host_features(model: Any, pixels: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    if hasattr(model, "encode_image"):
        return model.encode_image(pixels), model.encode_text(tokens)
    features = model.get_image_features(pixel_values=pixels), model.get_text_features(input_ids=tokens)
    image, text = (f if isinstance(f, Tensor) else f.pooler_output for f in features)
    return image, text


def _difference(ours: Tensor, theirs: Tensor) -> float:
    return float((F.normalize(ours, dim=-1) - F.normalize(theirs, dim=-1)).abs().max())


def _facts(model: nn.Module) -> dict[str, Any]:
    """Everything importing must leave alone, module by module."""
    return {
        name: (
            sorted(module.__dict__),
            module.training,
            len(module._forward_hooks) + len(module._forward_pre_hooks) + len(module._backward_hooks),
            [(key, p.data_ptr(), p._version, p.requires_grad) for key, p in module.named_parameters(recurse=False)],
        )
        for name, module in model.named_modules()
    }


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.soak] if n in WHOLE else []) for n in MODELS])
def test_features_equal_the_hosts(
    name: str, randomly: Callable[[Callable[[], nn.Module]], nn.Module], record_property: Callable[[str, Any], None]
) -> None:
    torch.manual_seed(0)
    model = randomly(MODELS[name])
    before = _facts(model)
    towers = import_model(model)
    assert _facts(model) == before
    pixels = torch.randn(2, 3, *[towers.vision.shape.image_size] * 2)
    tokens = _tokens(towers)
    with torch.no_grad():
        image, text = _host_features(model, pixels, tokens)
        batch, single = towers.vision(pixels), torch.cat([towers.vision(one[None]) for one in pixels])
        differences = _difference(batch, image), _difference(single, image), _difference(towers.text(tokens), text)
        trimmed = _difference(torch.cat([towers.text(towers.text.trim(row[None])) for row in tokens]), text)
    record_property("difference", max(*differences, trimmed))
    print(f"\n{name}: image {differences[0]:.1e}, text {differences[2]:.1e}, trimmed text {trimmed:.1e}")
    assert max(*differences, trimmed) <= TOLERANCE
    _check_storage(model, towers)


def _check_storage(model: nn.Module, towers: Towers) -> None:
    theirs = {p.untyped_storage().data_ptr() for p in model.state_dict().values()}
    for tower in (towers.vision, towers.text):
        copied = [n for n, p in tower.named_parameters() if p.untyped_storage().data_ptr() not in theirs]
        assert all(".attn.qkv." in n or (n == "positions" and _unplaced(towers)) for n in copied), copied
        assert not any(p.requires_grad for p in tower.parameters())
        assert not any(m.training for m in tower.modules())


def _unplaced(towers: Towers) -> bool:
    """Whether the host gives its class token and registers no position; ours is then a copy with zeros."""
    first = towers.vision.shape.first
    return first > 0 and not bool(towers.vision.positions[:first].any())


def test_training_mode_of_the_host_stays(tiny_clip: Any) -> None:
    tiny_clip.train()
    try:
        towers = import_model(tiny_clip)
        assert tiny_clip.training
        assert not towers.vision.training
        assert all(p.requires_grad for p in tiny_clip.parameters())
    finally:
        tiny_clip.eval()


def test_scale_and_bias(tiny_clip: Any, tiny_siglip: Any) -> None:
    clip, siglip = import_model(tiny_clip), import_model(tiny_siglip)
    assert clip.logit_scale == pytest.approx(tiny_clip.logit_scale.exp().item(), rel=1e-6)
    assert clip.logit_bias == 0
    assert clip.family == "clip"
    assert siglip.logit_bias == pytest.approx(tiny_siglip.logit_bias.item(), rel=1e-6)
    assert siglip.family == "siglip"


UNSUPPORTED: dict[str, dict[str, Any]] = {
    "query-key-norm": {"vision_cfg": SMALL_VISION | {"qk_norm": True}},
    "scaled-heads": {"text_cfg": SMALL_TEXT | {"scale_heads": True}},
    "attentional-pool": {"vision_cfg": SMALL_VISION | {"attentional_pool": True, "attn_pooler_heads": 2}},
    "resnet": {"vision_cfg": {"layers": [1, 1, 1, 1], "width": 16, "image_size": 32}},
    "text-class-token": {"text_cfg": SMALL_TEXT | {"embed_cls": True}, "custom_text": True},
    "not-square": {"vision_cfg": SMALL_VISION | {"image_size": (32, 48)}},
    "timm-hybrid": {"vision_cfg": {"timm_model_name": "convnext_atto", "timm_pool": "avg", "image_size": 32}},
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_other_architectures_are_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SMALL_OPEN_CLIP, name, UNSUPPORTED[name])
    with pytest.raises(ModelError, match="supported are plain vision transformers"):
        import_model(_small_open_clip(name))


@pytest.mark.parametrize(
    ("name", "what"), [("DINOv3ViTModel", "DINOv3, which has no text tower"), ("CoCa", "several queries")]
)
def test_models_that_people_ask_for_are_refused_by_name(name: str, what: str) -> None:
    with pytest.raises(ModelError, match=f"{what}.* cannot be imported; supported are"):
        import_model(type(name, (nn.Module,), {})())


def test_other_modules_are_refused() -> None:
    with pytest.raises(ModelError, match="Linear cannot be imported; supported are"):
        import_model(nn.Linear(2, 2))
