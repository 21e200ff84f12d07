"""The embedded models as a `VLM`, read with the base install alone.

Their folders are ordinary transformers checkpoints; the few facts needed of `config.json` are read here directly.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from lessmore.assets import model_folder
from lessmore.assets.words import Words
from lessmore.core.text import TextShape
from lessmore.core.vit import BlockShape, ViTShape
from lessmore.models.preprocess import Preprocess
from lessmore.models.towers.hf_clip import clip_towers
from lessmore.models.towers.hf_siglip import siglip_text_shape, siglip_towers, siglip_vision_shape
from lessmore.models.towers.registry import Towers
from lessmore.models.towers.weights import Weights
from lessmore.models.vlm import VLM

_ACTIVATIONS = {"quick_gelu": "quick_gelu", "gelu_pytorch_tanh": "gelu_tanh"}


def load_embedded(name: str) -> VLM:
    """`tiny` or `tiny-siglip`, in float32."""
    folder = model_folder(name)
    towers = _towers(_json(folder / "config.json"), folder)
    preprocess = Preprocess.from_hf(_json(folder / "preprocessor_config.json"))
    return VLM(
        towers.vision,
        towers.text,
        towers.logit_scale,
        towers.logit_bias,
        Words.load(folder),
        preprocess,
        towers.family,
        name,
    )


def _towers(config: dict[str, Any], folder: Path) -> Towers:
    weights = Weights({k: v.float() for k, v in load_file(folder / "model.safetensors").items()})
    vision, text = config["vision_config"], config["text_config"]
    image, patch = vision["image_size"], vision["patch_size"]
    vocab, context = text["vocab_size"], text["max_position_embeddings"]
    if config["model_type"] == "siglip":
        seen = siglip_vision_shape(_blocks(vision), image, patch)
        return siglip_towers(seen, siglip_text_shape(_blocks(text), vocab, context, seen.embed), weights)
    embed = config["projection_dim"]
    read = TextShape(_blocks(text), vocab, context, embed, pool="eos_id", eos_id=text["eos_token_id"])
    return clip_towers(ViTShape(_blocks(vision), image, patch, embed), read, weights)


def _blocks(config: dict[str, Any]) -> BlockShape:
    return BlockShape(
        width=config["hidden_size"],
        depth=config["num_hidden_layers"],
        heads=config["num_attention_heads"],
        mlp=config["intermediate_size"],
        activation=_ACTIVATIONS[config["hidden_act"]],
        eps=config["layer_norm_eps"],
    )


def _json(file: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return values
