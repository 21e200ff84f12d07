"""Models as people have them: folders with a tokenizer of their own beside them, hub ids, devices and types by name."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import lessmore
from lessmore.errors import ModelError
from lessmore.models.load import load
from lessmore.prompts import canonicalise
from tests.conftest import random_model
from tests.small_tokenizers import gemma_like, xlm_like

open_clip = pytest.importorskip("open_clip")
pytest.importorskip("transformers")
KINDS: dict[str, tuple[Callable[[], Any], dict[str, Any], dict[str, Any]]] = {
    "SigLIP 2": (
        gemma_like,
        {"pool_type": "last", "no_causal_mask": True, "tokenizer_kwargs": {"clean": "canonicalize"}},
        {"init_logit_bias": -10, "custom_text": True},
    ),
    "MetaCLIP 2": (xlm_like, {"pool_type": "eos", "eos_id": 2}, {}),
}
TEXTS = ["СОБАКА, a photo", "قطة"]


def write_open_clip(folder: Path, kind: str) -> Any:
    """A folder as open_clip writes it, with its tokenizer beside the weights; its host model."""
    from safetensors.torch import save_file

    make, text, more = KINDS[kind]
    tokenizer = make()
    words = {"context_length": 32, "vocab_size": len(tokenizer), "width": 32, "heads": 2, "layers": 2, **text}
    words["hf_tokenizer_name"] = "somebody/some-tokenizer"  # a hub id that nobody reads, for the files are here
    vision = {"image_size": 32, "patch_size": 8, "width": 32, "head_width": 16, "layers": 2}
    config = {"embed_dim": 24, "vision_cfg": vision, "text_cfg": words, **more}
    cls = open_clip.CustomTextCLIP if config.get("custom_text") else open_clip.CLIP
    host = random_model(lambda: cls(**{name: value for name, value in config.items() if name != "custom_text"}))
    images = {"mean": [0.5] * 3, "std": [0.5] * 3, "resize_mode": "squash"}
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": config, "preprocess_cfg": images}))
    weights = {name: tensor.contiguous() for name, tensor in host.state_dict().items()}
    save_file(weights, folder / "open_clip_model.safetensors")
    tokenizer.save_pretrained(folder)
    return host


@pytest.mark.parametrize("kind", KINDS)
def test_an_open_clip_folder_brings_its_own_tokenizer(kind: str, tmp_path: Path) -> None:
    host = write_open_clip(tmp_path, kind)
    vlm = load(tmp_path)
    assert vlm.family == ("siglip" if kind == "SigLIP 2" else "clip")
    ids = open_clip.get_tokenizer(f"local-dir:{tmp_path}")([canonicalise(text, vlm.family) for text in TEXTS])
    assert torch.equal(vlm.tokenize(TEXTS), ids) and not torch.equal(ids[0], ids[1])
    pixels = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(vlm.encode_text(ids), host.encode_text(ids), atol=1e-5, rtol=0)
        torch.testing.assert_close(vlm.encode_image(pixels), host.encode_image(pixels), atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_a_folder_is_adapted_on_a_device_and_in_a_type_by_name(dtype: str, tmp_path: Path) -> None:
    write_open_clip(tmp_path, "SigLIP 2")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # float16 on a CPU is slow, and says so
        adapter = lessmore.adapt(tmp_path, ["собака", "قطة"], device="cpu", dtype=dtype, cache=False)
    assert str(adapter.vlm.dtype) == f"torch.{dtype}" and adapter.vlm.device.type == "cpu"
    for colour in ("red", "blue"):
        assert adapter(Image.new("RGB", (48, 40), colour)).label in ("собака", "قطة")


@pytest.fixture
def hub(clip_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A hub id whose files lie in the hub's cache, as after a download."""
    constants = pytest.importorskip("huggingface_hub.constants")
    place = tmp_path / "models--somebody--tiny-clip"
    shutil.copytree(clip_folder, place / "snapshots" / "0123abcd")
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text("0123abcd")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    hub = pytest.importorskip("transformers.utils.hub")
    if hasattr(hub, "TRANSFORMERS_CACHE"):
        monkeypatch.setattr(hub, "TRANSFORMERS_CACHE", str(tmp_path))
    return "somebody/tiny-clip"


@pytest.mark.parametrize("network", [True, False])
def test_a_hub_id_is_read_from_the_hubs_cache(hub: str, network: bool, clip_folder: Path) -> None:
    vlm = load(hub, network=network)
    assert vlm.name == hub and vlm.fingerprint() == load(clip_folder).fingerprint()
    assert load(hub, dtype="bfloat16", device="cpu").dtype == torch.bfloat16
    with pytest.raises(ModelError, match="check the name and the network"):
        load("somebody/another-clip", network=network)
