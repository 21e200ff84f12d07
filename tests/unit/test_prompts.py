"""Class names, templates, SigLIP's text clean-up, ensembling and the cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from lessmore import prompts
from lessmore.errors import ConfigError
from lessmore.models import class_embeddings
from lessmore.models.load import load
from lessmore.models.preprocess import Preprocess
from lessmore.models.vlm import VLM


@pytest.fixture(scope="module")
def vlm(tiny_clip: Any, clip_tokenizer: Any) -> VLM:
    return load(tiny_clip, clip_tokenizer, Preprocess(32))


def _count_encodings(vlm: VLM, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    seen: list[int] = []
    plain: Callable[..., torch.Tensor] = VLM.encode_text

    def counted(self: VLM, tokens: torch.Tensor, normalize: bool = False) -> torch.Tensor:
        seen.append(len(tokens))
        return plain(self, tokens, normalize)

    monkeypatch.setattr(VLM, "encode_text", counted)
    return seen


def test_named_sets() -> None:
    sizes = {"photo": 1, "simple7": 7, "imagenet80": 80, "siglip8": 8, "sentence": 1}
    assert {name: len(set(s)) for name, s in prompts.TEMPLATES.items()} == sizes
    assert prompts.TEMPLATES["siglip8"] == [*prompts.TEMPLATES["simple7"], "{}"]
    assert set(prompts.FAMILY_TEMPLATES) == {"clip", "siglip"} and set(prompts.FAMILY_TEMPLATES.values()) < set(sizes)
    assert all(template.count("{}") == 1 for s in prompts.TEMPLATES.values() for template in s)


def test_named_sets_are_open_clips() -> None:
    metadata = pytest.importorskip("open_clip.zero_shot_metadata")
    assert prompts.TEMPLATES["imagenet80"] == [f("{}") for f in metadata.OPENAI_IMAGENET_TEMPLATES]
    assert prompts.TEMPLATES["simple7"] == [f("{}") for f in metadata.SIMPLE_IMAGENET_TEMPLATES]


def test_placeholders_and_functions() -> None:
    templates = ["a {}.", "the {c}", str.upper]
    assert prompts.prompts(["big_cat", "{odd}"], templates) == [
        ["a big cat.", "the big cat", "BIG CAT"],
        ["a {odd}.", "the {odd}", "{ODD}"],
    ]
    assert prompts.prompts(["fox"], "one {}") == [["one fox"]]


@pytest.mark.parametrize(
    ("classes", "templates", "message"),
    [
        ([], "photo", "no classes"),
        ("dog", "photo", "single string 'dog'"),
        (["dog", " _ "], "photo", "' _ ' is empty"),
        (["big cat", "dog", "big_cat "], "photo", "'big_cat ' reads like 'big cat'"),
        (["dog", 3], "photo", "3 is not a string"),
        (["dog"], ["a photo of a dog"], "'a photo of a dog' has no {}"),
        (["dog"], [], "no templates"),
        (["dog"], "imagenet8", "did you mean imagenet80"),
    ],
)
def test_bad_input_is_named(classes: Any, templates: Any, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        prompts.prompts(classes, templates)
    assert message in str(error.value)


def test_canonical_text() -> None:
    text = "A  photo of a T-shirt_print, isn't it?"
    assert prompts.canonicalise(text, "siglip") == "a photo of a tshirt print isnt it"
    assert prompts.canonicalise(text, "clip") == text


def test_canonical_text_is_open_clips() -> None:
    tokenizer = pytest.importorskip("open_clip.tokenizer")
    for text in ("A photo of a T-shirt.", "snake_case (Latin)", " two  spaces ", "Ünïcode… “quotes”"):
        assert prompts.canonicalise(text, "siglip") == tokenizer.canonicalize_text(text)


def test_siglip_prompts_ignore_case_and_punctuation(tiny_siglip: Any, siglip_tokenizer: Any) -> None:
    vlm = load(tiny_siglip, siglip_tokenizer, Preprocess(32, "squash"))
    raw = vlm.tokenizer(["A photo of a Dog.", "a photo of a dog"])
    assert not torch.equal(raw[0], raw[1])
    clean = vlm.tokenize(["A photo of a Dog.", "a photo of a dog"])
    assert torch.equal(clean[0], clean[1])
    assert torch.equal(clean[1], raw[1])


def test_ensemble_is_the_normalised_mean_of_normalised_embeddings(vlm: VLM) -> None:
    got = vlm.classifier(["dog", "fox"], ["a {}", "the big {}", "{}"], cache=False, batch_size=2)
    for row, name in zip(got, ("dog", "fox"), strict=True):
        each = vlm.encode_text(vlm.tokenize([f"a {name}", f"the big {name}", name]), normalize=True)
        torch.testing.assert_close(row, F.normalize(each.mean(0), dim=0), atol=1e-6, rtol=0)


def test_low_precision_is_averaged_in_float32(vlm: VLM) -> None:
    half = vlm.to(dtype=torch.bfloat16)
    got = half.classifier(["dog", "fox"], ["a {}", "the big {}"], cache=False)
    assert got.dtype == torch.bfloat16
    table = class_embeddings._ensemble(
        class_embeddings._embed(half, half.tokenize(["a dog", "the big dog"]), 8, None), 1
    )
    assert table.dtype == torch.float32


def test_cache_answers_the_second_time(vlm: VLM, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen = _count_encodings(vlm, monkeypatch)
    first = vlm.classifier(["dog", "fox"], "simple7", cache=tmp_path)
    again = vlm.classifier(["dog", "fox"], "simple7", cache=tmp_path)
    assert seen == [14]
    assert torch.equal(first, again)
    assert [file.suffix for file in (tmp_path / "class-embeddings").iterdir()] == [".safetensors"]


def test_cache_knows_classes_templates_weights_and_type(
    vlm: VLM, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen = _count_encodings(vlm, monkeypatch)
    other = replace(vlm, text=vlm.to(dtype=torch.float64).to(dtype=torch.float32).text)
    other.text.positions.data.mul_(1.001)
    for model in (vlm, other, vlm.to(dtype=torch.bfloat16)):
        model.classifier(["dog", "fox"], ["a {}", "the {}"], cache=tmp_path)
    vlm.classifier(["fox", "dog"], ["a {}", "the {}"], cache=tmp_path)
    vlm.classifier(["dog", "fox"], ["the {}", "a {}"], cache=tmp_path)
    vlm.classifier(["dog"], ["a {}", "the {}", "{}", "big {}"], cache=tmp_path)
    assert seen == [4] * 6


@pytest.mark.parametrize("content", [b"", b"not safetensors at all", b"\xff" * 64])
def test_a_corrupt_cache_file_is_rewritten(vlm: VLM, content: bytes, tmp_path: Path) -> None:
    first = vlm.classifier(["dog", "fox"], cache=tmp_path)
    (file,) = (tmp_path / "class-embeddings").iterdir()
    whole = file.read_bytes()
    file.write_bytes(content)
    assert torch.equal(vlm.classifier(["dog", "fox"], cache=tmp_path), first)
    assert file.read_bytes() == whole


def test_an_unwritable_cache_only_warns(vlm: VLM, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="LESSMORE_CACHE"):
        assert vlm.classifier(["dog"], cache=tmp_path / "file").shape == (1, 24)


def test_cache_off_writes_nothing(vlm: VLM, tmp_path: Path) -> None:
    vlm.classifier(["dog"], cache=False)
    assert not (tmp_path / "cache").exists()
    vlm.classifier(["dog"])
    assert (tmp_path / "cache").exists()


def test_progress_is_silent_without_a_terminal(vlm: VLM, capsys: pytest.CaptureFixture[str]) -> None:
    names = [f"{a}{b}" for a in "abcdefg" for b in "aceghos"]
    vlm.classifier(names, "simple7", cache=False)
    assert capsys.readouterr().err == ""
    vlm.classifier(names, "simple7", cache=False, progress=True)
    assert "class prompts" in capsys.readouterr().err
