"""Where models come from: objects in the user's hands, open_clip names, hub ids and folders.

Unsupported architectures are recognised from their configuration, before any weights are fetched.
"""

from __future__ import annotations

import copy
import importlib
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from lessmore.assets import MODELS
from lessmore.core.vit import ViTShape
from lessmore.errors import ConfigError, ModelError, unknown
from lessmore.models.devices import choose_device, choose_dtype
from lessmore.models.embedded import load_embedded
from lessmore.models.preprocess import Preprocess
from lessmore.models.towers import Towers, import_model, is_a
from lessmore.models.towers.refused import refusal_of
from lessmore.models.towers.weights import unsupported_model
from lessmore.models.vlm import VLM, Tokenizer, Transform
from lessmore.models.weights_alone import with_weights

_HF_CLASSES = {
    "clip": "CLIPModel",
    "metaclip_2": "MetaClip2Model",
    "siglip": "SiglipModel",
    "siglip2": "Siglip2Model",
}
_CLIP_VOCAB, _CLIP_CONTEXT = 49408, 77


@dataclass(frozen=True)
class HFTokens:
    """A transformers tokenizer as a plain function: texts → token ids [B, T], padded to the model's context."""

    tokenizer: Any
    context: int

    def __call__(self, texts: list[str]) -> Tensor:
        """Token ids [B, T]."""
        batch = self.tokenizer(
            texts, padding="max_length", truncation=True, max_length=self.context, return_tensors="pt"
        )
        ids: Tensor = batch["input_ids"]
        return ids


def load(
    model: Any,
    tokenizer: Any = None,
    preprocess: Any = None,
    network: bool = True,
    *,
    architecture: str | None = None,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
) -> VLM:
    """A VLM from your model object, from a name, from a folder, or from weights alone.

    Names and folders bring their own tokenizer and preprocessing and are loaded in float32, whatever type they are
    stored in.

    Args:
        model: An open_clip model, a transformers `CLIPModel`, `MetaClip2Model`, `SiglipModel` or `Siglip2Model`, a
            `DINOTxt` of facebookresearch/dinov3, an embedded model such as `tiny`, `open_clip:ViT-B-16/openai`,
            `open_clip:local-dir:/path`, a hub id such as `openai/clip-vit-base-patch16`, a folder with `config.json`
            or `open_clip_config.json` and safetensors, a `VLM`, or with `architecture` a state dict or the path of a
            safetensors file.
        tokenizer: A transformers tokenizer or processor, or a function from texts to ids `[B, T]`; None finds the
            one that belongs to the model.
        preprocess: A `Preprocess`, a transformers image processor, or a function from a Pillow image to pixels
            `[3, H, W]`; None finds the one that belongs to the model.
        network: Whether a name may be looked up on the network; else only on this machine.
        architecture: open_clip's name of the model that weights alone belong to, such as `ViT-B-16-quickgelu`.
        device: Where the model goes, such as `cuda`; `auto` is a GPU where there is one. None leaves it where it is.
        dtype: Type of the weights, `float32`, `float16` or `bfloat16`; None leaves them as they are.

    Raises:
        ModelError: The model is not supported, or its weights, tokenizer or preprocessing cannot be found.
        ConfigError: Tokenizer or preprocessing do not fit the model.

    Examples:
        >>> import lessmore
        >>> lessmore.load("tiny").vision.shape.image_size
        64
    """
    place = None if device is None else choose_device(str(device))
    number = None if dtype is None else choose_dtype(dtype)
    vlm = _read(model, tokenizer, preprocess, architecture, network)
    return vlm if place is None and number is None else vlm.to(place, number)


def _read(model: Any, tokenizer: Any, preprocess: Any, architecture: str | None, network: bool) -> VLM:
    if architecture is not None:
        host = with_weights(_need("open_clip", "open-clip"), architecture, model, inspected)
        return _from_object(host, tokenizer or named_tokenizer(architecture), preprocess, architecture)
    if isinstance(model, VLM):
        return model
    if isinstance(model, (str, os.PathLike)):
        return _from_name(os.fspath(model), tokenizer, preprocess, network)
    if isinstance(model, nn.Module):
        return _from_object(model, tokenizer, preprocess)
    if isinstance(model, Mapping):
        raise ModelError("weights alone do not say what model they are; pass architecture= an open_clip name")
    raise unsupported_model(f"an object of type {type(model).__name__}")


def named_tokenizer(architecture: str) -> Tokenizer:
    """The tokenizer of an open_clip name.

    Raises:
        ModelError: It cannot be read, for example without a network.
    """
    open_clip = _need("open_clip", "open-clip")
    found: Tokenizer = _hf_part(lambda: open_clip.get_tokenizer(architecture), architecture, "tokenizer")
    return found


def _from_name(name: str, tokenizer: Any, preprocess: Any, network: bool) -> VLM:
    if name in MODELS:
        return load_embedded(name)
    if name.startswith("open_clip:"):
        if not network and not name.startswith("open_clip:local-dir:"):
            raise ModelError(f"{name} would be looked up on the network; allow that with --network, or give a folder")
        return _from_open_clip(name.removeprefix("open_clip:"), tokenizer, preprocess)
    folder = Path(name).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file() and (folder / "open_clip_config.json").is_file():
            return _from_open_clip(f"local-dir:{folder}", tokenizer, preprocess)
        return _from_hf(str(folder), tokenizer, preprocess, local=True)
    if re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        return _from_hf(name, tokenizer, preprocess, local=not network)
    raise ModelError(
        f"{name!r} is neither a folder nor a model name; write 'open_clip:ViT-B-16/openai', a hub id such as "
        "'openai/clip-vit-base-patch16', or the path of a folder with config.json"
    )


def _from_object(model: nn.Module, tokenizer: Any, preprocess: Any, name: str | None = None) -> VLM:
    towers = import_model(model)
    if towers.vision.positions.is_meta:
        raise ModelError("the model has no weights yet (device 'meta'); load them before handing it over")
    if preprocess is None and is_a(tokenizer, "transformers", "ProcessorMixin"):
        preprocess = tokenizer
    home = str(getattr(model, "name_or_path", "") or "")
    tokens = _tokenizer(tokenizer, towers, home)
    shape = towers.vision.shape
    preprocess = towers.preprocess if preprocess is None else preprocess
    pixels = _preprocess(preprocess, model, home, shape.patch if shape.flexible else None)
    if isinstance(pixels, Preprocess) and not _fits(pixels, shape):
        kept = f" in their own shape and patches of {pixels.patch}" if pixels.mode == "keep" else ""
        raise ConfigError(
            f"preprocess makes images of {pixels.size} pixels{kept}, the model takes {shape.size_text}; "
            "pass the preprocessing that belongs to the model"
        )
    label = name or home or type(model).__name__
    return VLM(towers.vision, towers.text, towers.logit_scale, towers.logit_bias, tokens, pixels, towers.family, label)


def _tokenizer(tokenizer: Any, towers: Towers, home: str) -> Tokenizer:
    shape = towers.text.shape
    if is_a(tokenizer, "transformers", "ProcessorMixin"):
        tokenizer = tokenizer.tokenizer
    if tokenizer is None and home:
        tokenizer = _try(lambda: _need("transformers", "hf").AutoTokenizer.from_pretrained(home))
    if is_a(tokenizer, "transformers", "PreTrainedTokenizerBase"):
        if tokenizer.pad_token is None:
            raise ModelError(
                "the tokenizer has no padding token; set its pad_token to the one the model was trained with"
            )
        return HFTokens(tokenizer, shape.context)
    if callable(tokenizer):
        function: Tokenizer = tokenizer
        return function
    if tokenizer is None and (shape.vocab, shape.context) == (_CLIP_VOCAB, _CLIP_CONTEXT):
        bpe: Tokenizer = _need("open_clip", "open-clip").get_tokenizer("ViT-B-16")
        return bpe
    raise ModelError(
        f"a vocabulary of {shape.vocab} and {shape.context} positions do not tell which tokenizer the model needs; "
        "pass tokenizer= a transformers tokenizer or processor, or a function from texts to token ids"
    )


def _fits(preprocess: Preprocess, shape: ViTShape) -> bool:
    if preprocess.mode == "keep":
        return shape.flexible and preprocess.patch == shape.patch
    return shape.takes(preprocess.size, preprocess.size)


def _preprocess(preprocess: Any, model: Any, home: str, patch: int | None) -> Transform:
    if is_a(preprocess, "transformers", "ProcessorMixin"):
        preprocess = preprocess.image_processor
    if is_a(preprocess, "transformers", "ImageProcessingMixin"):
        return Preprocess.from_hf(preprocess.to_dict())
    if callable(preprocess):
        function: Transform = preprocess
        return function
    config = getattr(getattr(model, "visual", None), "preprocess_cfg", None)
    if preprocess is None and config:
        return Preprocess.from_open_clip(config, patch)
    stored = _try(lambda: _image_config(home, local=False)) if preprocess is None and home else None
    if stored:
        return Preprocess.from_hf(stored)
    raise ModelError(
        "the model does not say how images are preprocessed; pass preprocess= a lessmore Preprocess, a transformers "
        "image processor or processor, or a function from a Pillow image to pixels [3, H, W]"
    )


def _need(package: str, extra: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ModelError(f"this needs {package}; install it with: pip install 'lessmore[{extra}]'") from error


def _try(read: Callable[[], Any]) -> Any:
    """What can be read from where the user's model came from; None if that fails, and the user has to pass it."""
    try:
        return read()
    except (OSError, ValueError, ImportError):
        return None


# transformers: hub ids and folders


def _from_hf(name: str, tokenizer: Any, preprocess: Any, local: bool) -> VLM:
    transformers = _need("transformers", "hf")
    cls = getattr(transformers, _hf_class(_hf_config(name, local), name))
    if Path(name).is_dir() and not any(Path(name).glob("*.safetensors")):
        raise ModelError(f"{name} holds no *.safetensors weights; save the model with model.save_pretrained(folder)")
    options: dict[str, Any] = {"dtype": torch.float32, "use_safetensors": True, "local_files_only": local}
    try:
        model, report = cls.from_pretrained(name, output_loading_info=True, **options)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise _not_read(name, error) from error
    if report["missing_keys"]:
        raise ModelError(f"{name} lacks the weight {min(report['missing_keys'])!r}; get the complete checkpoint")
    if preprocess is None and not is_a(tokenizer, "transformers", "ProcessorMixin"):
        preprocess = _hf_part(lambda: Preprocess.from_hf(_image_config(name, local)), name, "preprocess")
    if tokenizer is None:
        auto = transformers.AutoTokenizer
        tokenizer = _hf_part(lambda: auto.from_pretrained(name, local_files_only=local), name, "tokenizer")
    return _from_object(model, tokenizer, preprocess, name)


def _hf_config(name: str, local: bool) -> Mapping[str, Any]:
    configs = _need("transformers", "hf").PretrainedConfig
    if Path(name).is_dir() and not (Path(name) / "config.json").is_file():
        raise ModelError(f"{name} holds no config.json; give a folder written by model.save_pretrained(folder)")
    try:
        config: Mapping[str, Any] = configs.get_config_dict(name, local_files_only=local)[0]
    except (OSError, ValueError) as error:
        raise _not_read(name, error) from error
    return config


def _hf_class(config: Mapping[str, Any], name: str) -> str:
    kind = config.get("model_type")
    cls = _HF_CLASSES.get(str(kind))
    if cls is None:
        raise unsupported_model(f"{name}, {refusal_of(str(kind), f'a transformers model of type {kind!r},')}")
    if cls not in config.get("architectures", [cls]):
        raise unsupported_model(f"{name}, a {config['architectures'][0]},")
    return cls


def _image_config(name: str, local: bool) -> Mapping[str, Any]:
    from transformers.image_processing_utils import BaseImageProcessor

    config: Mapping[str, Any] = BaseImageProcessor.get_image_processor_dict(name, local_files_only=local)[0]
    return config


def _hf_part(read: Callable[[], Any], name: str, part: str) -> Any:
    try:
        return read()
    except (OSError, ValueError, ImportError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ModelError(f"{name} brings no usable {part} ({_reason(error)}); pass {part}= yourself") from error


def _not_read(name: str, error: Exception) -> ModelError:
    return ModelError(
        f"{name!r} could not be read ({_reason(error)}); check the name and the network, or give a local folder"
    )


def _reason(error: Exception) -> str:
    """The first sentence of a host library's error, which may be a page long."""
    return re.split(r"\.\s|\n", str(error).strip())[0][:200] or type(error).__name__


# open_clip: names with a tag, hf-hub: and local-dir:


def _from_open_clip(name: str, tokenizer: Any, preprocess: Any) -> VLM:
    open_clip = _need("open_clip", "open-clip")
    remote = name.startswith(("hf-hub:", "local-dir:"))
    model_name, tag = (name, None) if remote else _split(open_clip, name)
    inspected(open_clip, _folder_config(name) if remote else open_clip.get_model_config(model_name))
    options: dict[str, Any] = {"pretrained": tag, "require_pretrained": True}
    if tag is not None:
        # The bare config would run OpenAI's weights with the wrong activation; open_clip only warns.
        options["force_quick_gelu"] = bool(open_clip.get_pretrained_cfg(model_name, tag).get("quick_gelu"))
    try:
        model = open_clip.create_model(model_name, **options)
    except (OSError, ValueError, RuntimeError) as error:
        raise _not_read(f"open_clip:{name}", error) from error
    if tokenizer is None:
        tokenizer = named_tokenizer(model_name)
    return _from_object(model, tokenizer, preprocess, f"open_clip:{name}")


def _split(open_clip: Any, name: str) -> tuple[str, str]:
    """`ViT-B-16/openai` or `ViT-B/16/openai` → model and tag; both must be known to open_clip."""
    known = set(open_clip.list_models())
    cuts = [i for i, letter in enumerate(name) if letter == "/"] + [len(name)]
    model = next((name[:i] for i in cuts if name[:i].replace("/", "-") in known), None)
    if model is None:
        raise ModelError(unknown("open_clip model", name.split("/")[0], known))
    tag, model = name[len(model) + 1 :], model.replace("/", "-")
    tags = open_clip.list_pretrained_tags_by_model(model)
    if not tag:
        raise ModelError(f"open_clip:{name} names no weights; add a tag, one of {', '.join(tags) or 'none'}")
    if tag not in tags:
        raise ModelError(unknown(f"tag of {model}", tag, tags))
    return model, tag


def _folder_config(name: str) -> Mapping[str, Any]:
    """`model_cfg` of an open_clip folder or hub repository; fetches the small configuration file only."""
    schema, place = name.split(":", 1)
    try:
        file = Path(place) / "open_clip_config.json"
        if schema == "hf-hub":
            file = Path(_need("huggingface_hub", "open-clip").hf_hub_download(place, "open_clip_config.json"))
        config: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8"))["model_cfg"]
    except (OSError, ValueError, KeyError) as error:
        raise _not_read(f"open_clip:{name}", error) from error
    return config


def inspected(open_clip: Any, config: Mapping[str, Any]) -> Towers:
    """The towers of an architecture, built without weights, so that what cannot work is refused before a download.

    Args:
        open_clip: The library.
        config: An open_clip model's `model_cfg`.

    Returns:
        Towers on the `meta` device.

    Raises:
        ModelError: The architecture cannot be imported.
    """
    settings = copy.deepcopy(dict(config))
    if "multimodal_cfg" in settings:
        raise unsupported_model("a CoCa model")
    if settings["text_cfg"].get("hf_model_name"):
        raise unsupported_model("an open_clip model with a transformers text tower")
    cls = open_clip.CustomTextCLIP if settings.pop("custom_text", False) else open_clip.CLIP
    with torch.device("meta"):
        model = cls(**settings)
    return import_model(model)
