"""`load`: objects, names and folders, and one helpful error for everything else."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import lessmore
from lessmore.core.text import TextTower
from lessmore.errors import ConfigError, ImageError, ModelError
from lessmore.models import weights_alone
from lessmore.models.load import load
from lessmore.models.preprocess import Preprocess
from lessmore.models.vlm import VLM

pytest.importorskip("transformers")
open_clip = pytest.importorskip("open_clip")

TEXTS = ["a photo of a dog", "the big red fox"]


def _copy(folder: Path, target: Path) -> Path:
    shutil.copytree(folder, target, dirs_exist_ok=True)
    return target


def _features(output: Any) -> Tensor:
    return output if isinstance(output, Tensor) else output.pooler_output


def _small_open_clip(**config: Any) -> Any:
    vision = {"image_size": 32, "patch_size": 8, "width": 32, "head_width": 16, "layers": 2}
    text = {"context_length": 12, "vocab_size": 64, "width": 32, "heads": 2, "layers": 2}
    return open_clip.CLIP(**{"embed_dim": 24, "vision_cfg": vision, "text_cfg": text, **config})


@pytest.mark.parametrize("family", ["clip", "siglip"])
def test_folder(
    family: str, request: pytest.FixtureRequest, make_picture: Callable[..., Image.Image], tmp_path: Path
) -> None:
    folder, host = request.getfixturevalue(f"{family}_folder"), request.getfixturevalue(f"tiny_{family}")
    tokenizer = request.getfixturevalue(f"{family}_tokenizer")
    vlm = load(folder)
    assert (vlm.family, vlm.name, vlm.dtype) == (family, str(folder), torch.float32)
    assert isinstance(vlm.preprocess, Preprocess)
    assert vlm.preprocess.size == 32
    ids = tokenizer(TEXTS, padding="max_length", max_length=24, return_tensors="pt")["input_ids"]
    assert torch.equal(vlm.tokenize(TEXTS), ids)
    pixels = vlm.preprocess(make_picture(50, 40))[None]
    with torch.no_grad():
        image, text = host.get_image_features(pixel_values=pixels), host.get_text_features(input_ids=ids)
    torch.testing.assert_close(vlm.encode_image(pixels), _features(image), atol=1e-5, rtol=0)
    torch.testing.assert_close(vlm.encode_text(ids), _features(text), atol=1e-5, rtol=0)
    assert vlm.fingerprint() == load(str(folder)).fingerprint()
    assert vlm.classifier(["dog", "cat"]).shape == (2, vlm.vision.shape.embed)


def test_float16_checkpoints_are_computed_in_float32(clip_folder: Path, tiny_clip: Any, tmp_path: Path) -> None:
    folder = _copy(clip_folder, tmp_path / "half")
    type(tiny_clip).from_pretrained(clip_folder).half().save_pretrained(folder)
    assert load(folder).dtype == torch.float32


def test_object_without_parts_asks_for_them(tiny_clip: Any, clip_tokenizer: Any) -> None:
    with pytest.raises(ModelError, match="pass tokenizer="):
        load(tiny_clip, preprocess=Preprocess(32))
    with pytest.raises(ModelError, match="pass preprocess="):
        load(tiny_clip, clip_tokenizer)


def test_object_remembers_the_folder_it_came_from(clip_folder: Path, tiny_clip: Any) -> None:
    vlm = load(type(tiny_clip).from_pretrained(clip_folder))
    assert vlm.fingerprint() == load(clip_folder).fingerprint()
    assert torch.equal(vlm.tokenize(TEXTS), load(clip_folder).tokenize(TEXTS))


def test_processors_serve_as_tokenizer_and_preprocess(tiny_clip: Any, clip_tokenizer: Any) -> None:
    from transformers import CLIPImageProcessor, CLIPProcessor

    images = CLIPImageProcessor(size={"shortest_edge": 40}, crop_size={"height": 32, "width": 32})
    expected = Preprocess(32, short_side=40, centre="floor")
    assert load(tiny_clip, clip_tokenizer, images).preprocess == expected
    try:
        processor = CLIPProcessor(images, clip_tokenizer)
    except TypeError:
        pytest.skip("this transformers wants its own tokenizer class in a CLIPProcessor")
    assert load(tiny_clip, processor).preprocess == expected


def test_functions_are_used_as_they_are(tiny_clip: Any) -> None:
    vlm = load(
        tiny_clip, lambda texts: torch.ones(len(texts), 12, dtype=torch.int32), lambda image: torch.zeros(3, 32, 32)
    )
    assert vlm.tokenize(["a", "b"]).dtype == torch.int64
    assert vlm.preprocess(Image.new("RGB", (4, 4))).shape == (3, 32, 32)


@pytest.mark.parametrize(
    "ids", [torch.ones(1, 25, dtype=torch.int64), torch.full((1, 12), 9999), torch.ones(1, 12), [[1]]]
)
def test_a_foreign_tokenizer_is_noticed(tiny_clip: Any, ids: Any) -> None:
    vlm = load(tiny_clip, lambda texts: ids, Preprocess(32))
    with pytest.raises(ModelError, match="belongs to the model"):
        vlm.tokenize(["a"])


def test_preprocess_of_another_size_is_refused(tiny_clip: Any, clip_tokenizer: Any) -> None:
    with pytest.raises(ConfigError, match="224 pixels, the model takes 32"):
        load(tiny_clip, clip_tokenizer, Preprocess(224))


def test_open_clip_object(make_picture: Callable[..., Image.Image]) -> None:
    model = open_clip.create_model("ViT-B-32", force_image_size=64)
    vlm = load(model)
    assert vlm.preprocess == Preprocess(64)
    assert torch.equal(vlm.tokenize(TEXTS), open_clip.get_tokenizer("ViT-B-32")(TEXTS))
    assert vlm.logit_scale == pytest.approx(1 / 0.07, rel=1e-5)


def test_open_clip_object_asks_for_what_it_does_not_carry() -> None:
    model = _small_open_clip()
    with pytest.raises(ModelError, match="pass tokenizer="):
        load(model, preprocess=Preprocess(32))
    with pytest.raises(ModelError, match="pass preprocess="):
        load(model, lambda texts: torch.ones(len(texts), 12, dtype=torch.int64))


def test_open_clip_folder(tmp_path: Path, make_picture: Callable[..., Image.Image]) -> None:
    from safetensors.torch import save_file

    text = {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 2}
    vision = {"image_size": 32, "patch_size": 8, "width": 32, "head_width": 16, "layers": 2}
    config = {"embed_dim": 24, "quick_gelu": True, "vision_cfg": vision, "text_cfg": text}
    model = open_clip.CLIP(**config).eval()
    preprocess = {"mean": [0.5] * 3, "std": [0.5] * 3, "resize_mode": "squash"}
    (tmp_path / "open_clip_config.json").write_text(json.dumps({"model_cfg": config, "preprocess_cfg": preprocess}))
    save_file({k: v.contiguous() for k, v in model.state_dict().items()}, tmp_path / "open_clip_model.safetensors")
    for name in (str(tmp_path), f"open_clip:local-dir:{tmp_path}"):
        vlm = load(name)
        assert vlm.preprocess == Preprocess(32, "squash", mean=(0.5,) * 3, std=(0.5,) * 3)
        pixels = vlm.preprocess(make_picture(40, 50))[None]
        with torch.no_grad():
            torch.testing.assert_close(vlm.encode_image(pixels), model.encode_image(pixels), atol=1e-5, rtol=0)
        assert vlm.tokenize(TEXTS).shape == (2, 77)


def test_quick_gelu_follows_the_tag(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def create(name: str, **options: Any) -> nn.Module:
        asked.update(options, name=name)
        raise RuntimeError("no network")

    monkeypatch.setattr(open_clip, "create_model", create)
    for name, quick in (("ViT-B-16/openai", True), ("ViT-B/16/openai", True), ("ViT-B-16/laion2b_s34b_b88k", False)):
        with pytest.raises(ModelError, match="check the name and the network"):
            load(f"open_clip:{name}")
        assert (asked["name"], asked["force_quick_gelu"], asked["require_pretrained"]) == ("ViT-B-16", quick, True)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("open_clip:RN50/openai", "ModifiedResNet"),
        ("open_clip:convnext_base/laion400m_s13b_b51k", "ConvNeXt"),
        ("open_clip:coca_ViT-B-32/laion2b_s13b_b90k", "CoCa"),
        ("open_clip:MobileCLIP-B/datacompdr", "a timm hybrid, whose patches leave a stack of convolutions"),
        ("open_clip:roberta-ViT-B-32/laion2b_s12b_b32k", "transformers text tower"),
        ("open_clip:ViT-B-16", "add a tag, one of openai"),
        ("open_clip:ViT-B-16/opnai", "did you mean openai"),
        ("open_clip:ViT-B-17/openai", "did you mean ViT-B-16"),
        ("open_clip:local-dir:/nowhere", "could not be read"),
        ("ViT-B-16", "write 'open_clip:ViT-B-16/openai'"),
        ("/no/such/folder", "neither a folder nor a model name"),
        ("openai/clip-vit-base-patch16", "check the name and the network"),
    ],
)
def test_names_that_cannot_be_loaded(name: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if "network" not in message:
        monkeypatch.setattr(open_clip, "create_model", lambda *a, **k: pytest.fail("weights were fetched"))
    with pytest.raises(ModelError) as error:
        load(name)
    assert message in str(error.value)


@pytest.mark.parametrize("thing", [3, None, object(), nn.Linear(2, 2)])
def test_other_things_are_refused(thing: Any) -> None:
    with pytest.raises(ModelError, match="supported are plain vision transformers"):
        load(thing)


def _edit_config(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: _edit_config(f, model_type="blip"), "a transformers model of type 'blip', cannot be imported"),
        (lambda f: _edit_config(f, model_type="dinov3_vit"), "DINOv3, which has no text tower, cannot be imported"),
        (lambda f: _edit_config(f, model_type="aimv2"), "AIMv2, whose blocks have RMSNorm, cannot be imported"),
        (lambda f: _edit_config(f, model_type="tipsv2"), "TIPSv2, whose text tower masks its padding"),
        (lambda f: _edit_config(f, architectures=["CLIPForImageClassification"]), "CLIPForImageClassification"),
        (lambda f: (f / "config.json").unlink(), "holds no config.json"),
        (lambda f: (f / "config.json").write_text("{"), "could not be read"),
        (lambda f: (f / "model.safetensors").unlink(), "save_pretrained"),
        (lambda f: (f / "model.safetensors").write_bytes(b"junk"), "could not be read"),
        (lambda f: (f / "tokenizer.json").unlink(), "pass tokenizer="),
        (lambda f: [p.unlink() for p in f.glob("*processor_config.json")], "pass preprocess="),
    ],
)
def test_broken_folders(change: Callable[[Path], Any], message: str, clip_folder: Path, tmp_path: Path) -> None:
    folder = _copy(clip_folder, tmp_path / "broken")
    change(folder)
    with pytest.raises(ModelError) as error:
        load(folder)
    assert message in str(error.value)


def test_incomplete_weights_are_refused(clip_folder: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = _copy(clip_folder, tmp_path / "incomplete")
    weights = load_file(folder / "model.safetensors")
    weights.pop("visual_projection.weight")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"lacks the weight 'visual_projection\.weight'"):
        load(folder)


def test_siglip_without_its_head_is_refused(siglip_tokenizer: Any) -> None:
    from transformers import SiglipConfig, SiglipModel

    tower = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    vision = tower | {"image_size": 32, "patch_size": 8, "vision_use_head": False}
    text = tower | {"vocab_size": len(siglip_tokenizer), "bos_token_id": 0, "eos_token_id": 1}
    with pytest.raises(ModelError, match="pooling head"):
        load(SiglipModel(SiglipConfig(text_config=text, vision_config=vision)), siglip_tokenizer, Preprocess(32))


def test_a_model_without_weights_is_refused(clip_tokenizer: Any, tiny_clip: Any) -> None:
    with torch.device("meta"):
        model = type(tiny_clip)(tiny_clip.config)
    with pytest.raises(ModelError, match="no weights yet"):
        load(model, clip_tokenizer, Preprocess(32))


def test_a_vlm_is_itself(clip_folder: Path) -> None:
    vlm = load(clip_folder)
    assert load(vlm) is vlm


def test_to_leaves_the_original_alone(clip_folder: Path) -> None:
    vlm = load(clip_folder)
    same, half = vlm.to(), vlm.to(dtype=torch.bfloat16)
    assert same.vision.positions.data_ptr() == vlm.vision.positions.data_ptr()
    assert (vlm.dtype, half.dtype, half.device) == (torch.float32, torch.bfloat16, vlm.device)
    assert half.encode_image(torch.zeros(1, 3, 32, 32)).dtype == torch.bfloat16
    assert same.fingerprint() == vlm.fingerprint() != half.fingerprint()
    assert not any(p.requires_grad for p in half.vision.parameters())
    assert not half.vision.training


def test_fingerprint_sees_every_weight_and_the_scale(clip_folder: Path) -> None:
    from dataclasses import replace

    prints = {load(clip_folder).fingerprint()}
    for tower in ("vision", "text"):
        vlm = load(clip_folder)
        getattr(vlm, tower).norm_post.bias[-1] += 1e-3
        prints.add(vlm.fingerprint())
    prints.add(replace(load(clip_folder), logit_scale=1.0).fingerprint())
    assert len(prints) == 4


def test_wrong_pixels_are_named(clip_folder: Path) -> None:
    vlm = load(clip_folder)
    for shape in ((3, 32, 32), (1, 3, 16, 16), (1, 1, 32, 32)):
        with pytest.raises(ImageError, match=r"\[B, 3, 32, 32\]"):
            vlm.encode_image(torch.zeros(shape))


def test_normalised_features_have_length_one(clip_folder: Path) -> None:
    vlm = load(clip_folder)
    image = vlm.encode_image(torch.randn(2, 3, 32, 32), normalize=True)
    text = vlm.encode_text(vlm.tokenize(TEXTS), normalize=True)
    np.testing.assert_allclose(torch.cat([image, text]).norm(dim=-1), 1, atol=1e-6)


def test_importing_needs_no_host_library() -> None:
    code = (
        "import sys, lessmore.models.load, lessmore.models.towers, lessmore.prompts, lessmore.data.images;"
        "print(sorted({'open_clip', 'timm', 'transformers', 'torchvision'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_prompt_embeddings_can_be_fed_in(clip_folder: Path) -> None:
    vlm: VLM = load(clip_folder)
    tokens = vlm.tokenize(TEXTS)
    prompt = vlm.text.embed(tokens).requires_grad_()
    features = vlm.text.encode_embeddings(prompt, tokens)
    torch.testing.assert_close(features, vlm.encode_text(tokens))
    features.sum().backward()
    assert prompt.grad is not None
    assert bool((prompt.grad[:, 1].abs().sum(-1) > 0).all())


def test_device_and_dtype_by_name(clip_folder: Path) -> None:
    for name, dtype in (("bfloat16", torch.bfloat16), (torch.float16, torch.float16), ("float32", torch.float32)):
        vlm = load(clip_folder, device="cpu", dtype=name)
        assert (vlm.dtype, vlm.text.positions.dtype, vlm.device.type) == (dtype, dtype, "cpu")
    adapter = lessmore.adapt("tiny", ["a circle", "a star"], device="auto", dtype="bfloat16", cache=False)
    assert adapter.vlm.dtype == torch.bfloat16
    for wrong in ("int8", torch.float64):
        with pytest.raises(ConfigError, match="take float32, float16, bfloat16"):
            load(clip_folder, dtype=wrong)
    with pytest.raises(ConfigError, match="device 'nowhere' cannot be used"):
        load(clip_folder, device="nowhere")


@pytest.fixture
def small_architecture(tmp_path: Path) -> Iterator[str]:
    """An architecture that open_clip knows by name, for as long as the test runs."""
    config = {
        "embed_dim": 24,
        "vision_cfg": {"image_size": 32, "patch_size": 8, "width": 32, "head_width": 16, "layers": 2},
        "text_cfg": {"context_length": 12, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 2},
    }
    (tmp_path / "small-for-tests.json").write_text(json.dumps(config))
    open_clip.add_model_config(tmp_path / "small-for-tests.json")
    yield "small-for-tests"
    open_clip.factory._MODEL_CONFIGS.pop("small-for-tests")


@pytest.mark.parametrize("way", ["dictionary", "file", "half"])
def test_weights_alone_with_the_name_of_their_architecture(way: str, small_architecture: str, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    host = open_clip.create_model(small_architecture).eval()
    weights: Any = {name: tensor.contiguous() for name, tensor in host.state_dict().items()}
    if way == "half":
        weights = {name: tensor.half() for name, tensor in weights.items()}
    if way != "dictionary":
        save_file(weights, tmp_path / "model.safetensors")
        weights = tmp_path / "model.safetensors"
    vlm = load(weights, preprocess=Preprocess(32), architecture=small_architecture)
    assert (vlm.name, vlm.dtype) == (small_architecture, torch.float32)
    pixels = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(vlm.encode_image(pixels), host.encode_image(pixels), atol=2e-3, rtol=0)
    assert vlm.tokenize(["a dog"]).shape == (1, 12)


def test_weights_of_something_else_are_refused(small_architecture: str, tmp_path: Path) -> None:
    weights = open_clip.create_model(small_architecture).state_dict()
    with pytest.raises(ModelError, match="pass architecture="):
        load(dict(weights))
    with pytest.raises(ModelError, match="not those of ViT-B-32: they"):
        load(weights, architecture="ViT-B-32")
    with pytest.raises(ModelError, match="did you mean"):
        load(weights, architecture="ViT-B-61")
    with pytest.raises(ModelError, match="convolution|ModifiedResNet"):
        load(weights, architecture="RN50")
    (tmp_path / "broken.safetensors").write_bytes(b"no weights")
    with pytest.raises(ModelError, match="cannot be read as safetensors"):
        load(tmp_path / "broken.safetensors", architecture=small_architecture)
    with pytest.raises(ModelError, match="state dict of tensors"):
        load({"a": 1}, architecture=small_architecture)


def test_images_are_prepared_as_all_published_weights_of_an_architecture_agree() -> None:
    with torch.device("meta"):
        host = open_clip.CustomTextCLIP(**_settings("ViT-B-16-SigLIP"))
    weights_alone._describe_images(open_clip, host, "ViT-B-16-SigLIP")
    assert Preprocess.from_open_clip(host.visual.preprocess_cfg) == Preprocess(
        224, "squash", mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)
    )


def _settings(name: str) -> dict[str, Any]:
    config: dict[str, Any] = open_clip.get_model_config(name)
    config.pop("custom_text", None)
    return config


def test_a_prompt_that_is_cut_is_said(clip_folder: Path, siglip_folder: Path) -> None:
    for folder in (clip_folder, siglip_folder):
        vlm = load(folder)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            vlm.tokenize(["a photo of a dog", "a " * 18])
        with pytest.warns(UserWarning, match="1 of 2 prompts are longer than the model's 24 tokens"):
            vlm.tokenize(["a dog", "a " * 40])
    bpe = load(_small_open_clip(), open_clip.get_tokenizer("ViT-B-16", context_length=12), Preprocess(32))
    bpe = replace(bpe, text=TextTower(replace(bpe.text.shape, vocab=49408)))
    with pytest.warns(UserWarning, match="1 of 1 prompts are longer than the model's 12 tokens"):
        bpe.tokenize(["a photo of a very large dog that is running after a ball"])


def test_metaclip_2_loads_from_its_folder(clip_tokenizer: Any, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    if not hasattr(transformers, "MetaClip2Model"):
        pytest.skip("this transformers has no MetaCLIP 2")
    tower = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    text = tower | {"vocab_size": len(clip_tokenizer), "eos_token_id": 2, "max_position_embeddings": 24}
    vision = tower | {"image_size": 32, "patch_size": 8}
    config = transformers.MetaClip2Config(text_config=text, vision_config=vision, projection_dim=24)
    images = transformers.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    for part in (transformers.MetaClip2Model(config), clip_tokenizer, images):
        part.save_pretrained(tmp_path)
    vlm = load(tmp_path)
    assert (vlm.family, vlm.text.shape.pool, vlm.text.shape.eos_id) == ("clip", "eos_id", 2)
    assert vlm.encode_image(torch.zeros(1, 3, 32, 32)).shape == (1, 24)
