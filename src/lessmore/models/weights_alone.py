"""Weights without a configuration: a state dict or a safetensors file, and open_clip's name of the model."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from lessmore.errors import ModelError, unknown


def with_weights(open_clip: Any, architecture: str, weights: Any, inspect: Callable[[Any, Any], Any]) -> nn.Module:
    """An open_clip model of a known architecture around the given weights, which it shares.

    Args:
        open_clip: The library.
        architecture: A name of `open_clip.list_models()`.
        weights: A state dict, or the path of a safetensors file.
        inspect: Refuses a configuration that cannot be imported, given the library and the configuration.

    Raises:
        ModelError: The architecture is unknown or cannot be imported, or the weights are not of it.
    """
    known = open_clip.list_models()
    if architecture not in known:
        raise ModelError(unknown("open_clip model", architecture, known))
    config = open_clip.get_model_config(architecture)
    inspect(open_clip, config)
    tensors, names = _tensors(weights), dict(config)
    cls = open_clip.CustomTextCLIP if names.pop("custom_text", False) else open_clip.CLIP
    with torch.device("meta"):
        model: nn.Module = cls(**names)
    _fill(model, tensors, architecture)
    _describe_images(open_clip, model, architecture)
    return model


def _tensors(weights: Any) -> dict[str, Tensor]:
    """By name; floating-point ones in float32."""
    if isinstance(weights, (str, os.PathLike)):
        try:
            weights = load_file(weights)
        except (OSError, SafetensorError) as error:
            raise ModelError(f"{weights} cannot be read as safetensors ({error}); check the path") from error
    if not isinstance(weights, Mapping) or not all(isinstance(value, Tensor) for value in weights.values()):
        raise ModelError("with architecture= the model is a state dict of tensors, or the path of a safetensors file")
    return {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in weights.items()}


def _fill(model: nn.Module, tensors: dict[str, Tensor], architecture: str) -> None:
    """Buffers that the architecture computes itself may be missing from the file, and may be in it."""
    wanted, buffers = set(model.state_dict()), {name for name, _ in model.named_buffers()}
    missing, extra = wanted - set(tensors) - buffers, set(tensors) - wanted - {"context_length", "vocab_size"}
    extra = {name for name in extra if not name.endswith(("attn_mask", "position_ids", "input_resolution"))}
    if missing or extra:
        odd = f"lack {min(missing)!r}" if missing else f"have {min(extra)!r}, which it does not know"
        raise ModelError(f"the weights are not those of {architecture}: they {odd}; check the name of the architecture")
    try:
        model.load_state_dict({name: tensors[name] for name in wanted & set(tensors)}, strict=False, assign=True)
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1].strip()
        raise ModelError(f"the weights are not those of {architecture} ({reason})") from error
    model.eval()


def _describe_images(open_clip: Any, model: Any, architecture: str) -> None:
    """Say how images are prepared, where all published weights of the architecture agree on it."""
    wanted = ("mean", "std", "interpolation", "resize_mode")
    tags = open_clip.list_pretrained_tags_by_model(architecture)
    found = [open_clip.get_pretrained_cfg(architecture, tag) for tag in tags]
    facts = [{key: one[key] for key in wanted if one.get(key)} for one in found]
    if facts and all(one == facts[0] for one in facts):
        model.visual.preprocess_cfg = {"size": model.visual.image_size, **facts[0]}
