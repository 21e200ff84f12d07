"""Shared fixtures: no network, no cache of the user's, tiny models with random weights and tokenizers of their own."""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

from PIL import Image
from torch import nn
from torch.overrides import TorchFunctionMode

from tests.web.chromium import CHROMIUM, MISSING

WORDS = ["a", "photo", "of", "the", "dog", "cat", "itap", "big", "red", "fox", "t", "shirt", "in", "an", "satellite"]
CONTEXT = 24
SIDE = 32


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Page tests are skipped here and nowhere else, so that pytest sums them up in one line."""
    if CHROMIUM is None and item.get_closest_marker("browser"):
        pytest.skip(MISSING)


@pytest.fixture(autouse=True, scope="session")
def _few_threads() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LESSMORE_CACHE", str(tmp_path / "cache"))


class NoInit(TorchFunctionMode):
    """Zeros instead of random initial weights, which take longer than a forward pass and are overwritten anyway."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (torch.Tensor.normal_, torch.Tensor.uniform_):
            return args[0].zero_()
        return func(*args, **kwargs)


_NOISE = torch.randn(1_000_003, generator=torch.Generator().manual_seed(0))


def random_model(make: Callable[[], nn.Module]) -> nn.Module:
    """The model with every weight random, also those that start as ones or zeros and would hide a swapped name."""
    with NoInit():
        model = make()
    with torch.no_grad():
        for i, (name, parameter) in enumerate(model.named_parameters()):
            count = parameter.numel()
            noise = _NOISE.roll(-97 * i).repeat(count // len(_NOISE) + 1)[:count].view(parameter.shape)
            if parameter.ndim > 1:
                parameter.copy_(noise * parameter.shape[-1] ** -0.5)
            else:
                start = parameter if parameter.ndim == 0 else name.endswith(("weight", "gamma"))
                parameter.copy_(0.1 * noise + start)
    return model.eval()


@pytest.fixture(scope="session")
def randomly() -> Callable[[Callable[[], nn.Module]], nn.Module]:
    return random_model


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    """A noisy colour gradient: every pixel differs from its neighbours, so a shift by one shows."""
    rng = np.random.default_rng(seed)
    ramp = np.add.outer(np.linspace(0, 120, height), np.linspace(0, 80, width))[..., None] + [0, 20, 40]
    return Image.fromarray((ramp + rng.integers(0, 16, ramp.shape)).clip(0, 255).astype(np.uint8))


@pytest.fixture(scope="session")
def make_picture() -> Callable[..., Image.Image]:
    return picture


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of models and data that lies beside the repository, not in it."""
    folder = Path(__file__).resolve().parents[2] / "shared"
    if not (folder / "models" / "photo-s8" / "model.safetensors").is_file():
        pytest.skip(f"the shared model photo-s8 is not under {folder}")
    return folder


def _wrap(tokenizer: Any, **special: str) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=CONTEXT, **special)


@pytest.fixture(scope="session")
def clip_tokenizer() -> Any:
    """Byte pairs with start and end marks and padding by the end mark, as CLIP's."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    letters = sorted({letter for word in WORDS for letter in word} | set(".,-"))
    pieces = [*letters, *(f"{letter}</w>" for letter in letters), "<start>", "<end>"]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab, [], end_of_word_suffix="</w>", unk_token="<end>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    marks = [("<start>", vocab["<start>"]), ("<end>", vocab["<end>"])]
    tokenizer.post_processor = processors.TemplateProcessing(single="<start> $A <end>", special_tokens=marks)
    return _wrap(tokenizer, bos_token="<start>", eos_token="<end>", pad_token="<end>", unk_token="<end>")


@pytest.fixture(scope="session")
def siglip_tokenizer() -> Any:
    """A unigram model with an end mark and padding of its own, as SigLIP's; case and full stops change its ids."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    letters = sorted({letter for word in WORDS for letter in word})
    pieces = ["<pad>", "</s>", "<unk>", "▁", ".", *(f"▁{w}" for w in WORDS), *letters, *(w.upper() for w in letters)]
    tokenizer = Tokenizer(models.Unigram([(piece, -float(i)) for i, piece in enumerate(pieces)], unk_id=2))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return _wrap(tokenizer, eos_token="</s>", pad_token="<pad>", unk_token="<unk>")


def _tower(**more: Any) -> dict[str, Any]:
    return {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, **more}


def _configs(tokenizer: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    ids = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": 0}
    text = _tower(vocab_size=len(tokenizer), max_position_embeddings=CONTEXT, **ids)
    return text, _tower(image_size=SIDE, patch_size=8)


@pytest.fixture(scope="session")
def tiny_clip(clip_tokenizer: Any) -> nn.Module:
    from transformers import CLIPConfig, CLIPModel

    text, vision = _configs(clip_tokenizer)
    return random_model(lambda: CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=24)))


@pytest.fixture(scope="session")
def tiny_siglip(siglip_tokenizer: Any) -> nn.Module:
    from transformers import SiglipConfig, SiglipModel

    text, vision = _configs(siglip_tokenizer)
    return random_model(lambda: SiglipModel(SiglipConfig(text_config=text, vision_config=vision)))


@pytest.fixture(scope="session")
def clip_folder(tiny_clip: Any, clip_tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete local checkpoint of the tiny CLIP."""
    from transformers import CLIPImageProcessor

    folder = tmp_path_factory.mktemp("clip")
    size = {"size": {"shortest_edge": SIDE}, "crop_size": {"height": SIDE, "width": SIDE}}
    for part in (tiny_clip, clip_tokenizer, CLIPImageProcessor(**size)):
        part.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def siglip_folder(tiny_siglip: Any, siglip_tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete local checkpoint of the tiny SigLIP."""
    from transformers import SiglipImageProcessor

    folder = tmp_path_factory.mktemp("siglip")
    for part in (tiny_siglip, siglip_tokenizer, SiglipImageProcessor(size={"height": SIDE, "width": SIDE})):
        part.save_pretrained(folder)
    return folder
