"""Class names in other scripts, through tokenizers like SigLIP 2's and MetaCLIP 2's, and prompts that are cut."""

from __future__ import annotations

import unicodedata
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

import lessmore
from lessmore.core.text import TextTower
from lessmore.errors import ConfigError
from lessmore.models.load import HFTokens, load
from lessmore.models.preprocess import Preprocess
from lessmore.models.shapes import SHAPES
from lessmore.models.vlm import VLM
from lessmore.prompts import canonicalise, prompts
from tests.conftest import random_model
from tests.small_tokenizers import CONTEXT, NAMES, TWO_FORMS, gemma_like, xlm_like

transformers = pytest.importorskip("transformers")


def _tower(**more: Any) -> dict[str, Any]:
    return {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, **more}


def _host(family: str, tokenizer: Any) -> Any:
    text = _tower(vocab_size=len(tokenizer), max_position_embeddings=CONTEXT, bos_token_id=0, pad_token_id=1)
    vision = _tower(image_size=32, patch_size=8)
    if family == "siglip2":
        config = transformers.SiglipConfig(text_config={**text, "eos_token_id": 1}, vision_config=vision)
        return random_model(lambda: transformers.SiglipModel(config))
    if not hasattr(transformers, "MetaClip2Model"):
        pytest.skip("this transformers has no MetaCLIP 2")
    config = transformers.MetaClip2Config(
        text_config={**text, "eos_token_id": 2}, vision_config=vision, projection_dim=24
    )
    return random_model(lambda: transformers.MetaClip2Model(config))


TOKENIZERS: dict[str, Callable[[], Any]] = {"siglip2": gemma_like, "metaclip2": xlm_like}


@pytest.fixture(scope="module", params=list(TOKENIZERS))
def host(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    tokenizer = TOKENIZERS[request.param]()
    return _host(request.param, tokenizer), tokenizer


@pytest.fixture(scope="module")
def vlm(host: tuple[Any, Any], tmp_path_factory: pytest.TempPathFactory) -> VLM:
    """The model from its folder, as people have it."""
    folder = tmp_path_factory.mktemp("model")
    for part in (
        *host,
        transformers.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}),
    ):
        part.save_pretrained(folder)
    return load(folder)


def _host_features(host: Any, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        found = host.get_text_features(input_ids=ids)
    return found if isinstance(found, torch.Tensor) else found.pooler_output


@pytest.mark.parametrize("script", NAMES)
def test_names_in_every_script_are_what_the_host_makes_of_them(script: str, vlm: VLM, host: tuple[Any, Any]) -> None:
    model, tokenizer = host
    texts = [f"a photo of {name}." for name in NAMES[script]]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours = vlm.tokenize(texts)
        table = vlm.classifier(NAMES[script], "a photo of {}.", cache=False)
    said = [canonicalise(text, vlm.family) for text in texts]
    ids = tokenizer(said, padding="max_length", truncation=True, max_length=CONTEXT, return_tensors="pt")["input_ids"]
    assert torch.equal(ours, ids) and not torch.equal(ids[0], ids[1])
    theirs = torch.nn.functional.normalize(_host_features(model, ids), dim=-1)
    torch.testing.assert_close(table, theirs, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", TWO_FORMS)
def test_both_normal_forms_of_a_name_are_one_prompt(name: str, vlm: VLM) -> None:
    """File systems of Macs write folder names apart; Gemma's tokenizer does not join them."""
    apart, joined = unicodedata.normalize("NFD", name), unicodedata.normalize("NFC", name)
    assert torch.equal(vlm.classifier([apart], cache=False), vlm.classifier([joined], cache=False))
    assert prompts([apart], "photo") == prompts([joined], "photo")
    if apart != joined:
        with pytest.raises(ConfigError, match="reads like"):
            vlm.classifier([apart, joined], cache=False)


def test_gemma_would_read_a_name_apart_as_other_tokens() -> None:
    """Why names are joined: without that, the two forms are other texts to it."""
    tokens = HFTokens(gemma_like(), CONTEXT)
    assert not torch.equal(tokens(["café"]), tokens([unicodedata.normalize("NFD", "café")]))


def test_predictions_carry_the_name_as_it_was_given() -> None:
    apart = unicodedata.normalize("NFD", "café")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adapter = lessmore.adapt("tiny", [apart, "circle"], cache=False)
    assert adapter.classes[0] == apart


@pytest.mark.parametrize(
    "text",
    ["İSTANBUL", "ΣΊΣΥΦΟΣ", "Straße", "СОБАКА", "ÀÉÎ", "Ǆ", "قطة، كلب!", "猫。(Katze)", "ﬁsh", "a\u200fb", "e\u0301"],
)
def test_lower_case_and_punctuation_are_the_hosts(text: str) -> None:
    tokenizer = pytest.importorskip("open_clip.tokenizer")
    assert canonicalise(text, "siglip") == tokenizer.canonicalize_text(text)
    assert canonicalise(text, "clip") == text


def test_siglip_2_reads_capitals_as_small_letters_and_metaclip_2_does_not(vlm: VLM) -> None:
    same = torch.equal(vlm.tokenize(["СОБАКА"]), vlm.tokenize(["собака"]))
    assert same == (vlm.family == "siglip")


def test_a_script_that_the_tokenizer_does_not_know_is_said() -> None:
    tokenizer = xlm_like(without="".join(NAMES["Thai, without spaces"]))
    vlm = load(_host("metaclip2", tokenizer), tokenizer, Preprocess(32))
    with pytest.warns(UserWarning, match="does not know every word of 2 of 4 class names"):
        vlm.classifier([*NAMES["Thai, without spaces"], *NAMES["Korean"]], cache=False)


def test_bytes_stand_in_for_letters_that_a_vocabulary_lacks() -> None:
    tokenizer = gemma_like()
    vlm = load(_host("siglip2", tokenizer), tokenizer, Preprocess(32))
    assert tokenizer.unk_token_id not in vlm.tokenize(["猫", "狗"])
    table = vlm.classifier(["猫", "狗"], cache=False)
    assert (table[0] @ table[1]).item() < 0.999


@pytest.mark.parametrize("side", ["left", "right"])
def test_only_what_is_cut_is_called_cut(side: str, host: tuple[Any, Any]) -> None:
    """Padding on the left fills every row, and unknown letters at the end are one token however many they are."""
    model, tokenizer = host
    tokenizer.padding_side = side
    try:
        vlm = load(model, tokenizer, Preprocess(32))
        unknown = "a photo of \u16a0\u16a0"
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            vlm.tokenize(["a photo of 猫", "собака", unknown, "a"])
        with pytest.warns(UserWarning, match=f"1 of 2 prompts are longer than the model's {CONTEXT} tokens"):
            vlm.tokenize(["собака", "собака " * CONTEXT])
    finally:
        tokenizer.padding_side = "right"


@pytest.mark.parametrize(
    ("name", "context"),
    [("ViT-B-16", 77), ("ViT-L-14", 77), ("EVA02-B-16", 77), ("PE-Core-B-16", 32), ("PE-Core-bigG-14-448", 72)],
)
def test_every_family_of_clips_says_what_it_cut(name: str, context: int) -> None:
    open_clip = pytest.importorskip("open_clip")
    shape = SHAPES[name][1]
    assert shape.context == context == open_clip.get_tokenizer(name)(["a dog"]).shape[1]
    tiny = load("tiny")
    text = TextTower(replace(tiny.text.shape, vocab=shape.vocab, context=context))
    vlm = replace(tiny, text=text, tokenizer=open_clip.get_tokenizer(name))
    fits = "a " * (context - 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        vlm.tokenize([fits.strip(), "a dog"])
    with pytest.warns(UserWarning, match=f"1 of 2 prompts are longer than the model's {context} tokens"):
        vlm.tokenize(["a dog", fits + "long dog"])


@pytest.mark.parametrize(("family", "context"), [("siglip2", 64), ("siglip2", 16), ("metaclip2", 77)])
def test_the_other_families_say_what_they_cut(family: str, context: int) -> None:
    tokenizer = TOKENIZERS[family]()
    whole = load(_host(family, tokenizer), tokenizer, Preprocess(32))
    text = TextTower(replace(whole.text.shape, context=context))
    vlm = replace(whole, text=text, tokenizer=HFTokens(tokenizer, context))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        vlm.tokenize(["a a", "고양이"])
    with pytest.warns(UserWarning, match=f"1 of 1 prompts are longer than the model's {context} tokens"):
        vlm.tokenize(["고양이 " * context])


def test_the_familys_own_templates_are_chosen_by_name_alone(vlm: VLM) -> None:
    chosen = {"siglip": "sentence", "clip": "imagenet80"}[vlm.family]
    names = ["собака", "猫"]
    assert torch.equal(vlm.classifier(names, "family", cache=False), vlm.classifier(names, chosen, cache=False))
    plain = vlm.classifier(names, cache=False)
    assert torch.equal(plain, vlm.classifier(names, "a photo of a {}.", cache=False))
    assert not torch.equal(plain, vlm.classifier(names, "family", cache=False))
    adapter = lessmore.adapt(vlm, names, templates="family", cache=False)
    same = lessmore.adapt(vlm, names, templates=chosen, cache=False)
    assert adapter.identity() == same.identity()
    with pytest.raises(ConfigError, match="family"):
        prompts(names, "famly")
