"""Small tokenizers of the kinds that SigLIP 2 and MetaCLIP 2 have, and class names in the scripts that they know."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from typing import Any

NAMES = {
    "Cyrillic": ["собака", "кошка"],
    "Arabic, right to left": ["قطة", "كلب"],
    "Hebrew, right to left": ["כלב", "חתול"],
    "Devanagari": ["कुत्ता", "बिल्ली"],
    "Thai, without spaces": ["สุนัข", "แมว"],
    "Chinese": ["猫", "狗"],
    "Japanese": ["ねこ", "イヌ"],
    "Korean": ["고양이", "강아지"],
    "Latin with accents": ["café", "señora"],
    "Greek": ["γάτα", "σκύλος"],
}
EVERY = [name for names in NAMES.values() for name in names]
CONTEXT = 32
TWO_FORMS = ["café", "강아지", "कुत्ता", "ñandú", "ガ"]


def _letters(texts: Iterable[str]) -> list[str]:
    """Every letter in both cases, its parts too, in an order that is always the same."""
    found = {
        letter
        for text in texts
        for form in ("NFC", "NFD")
        for way in (text, text.upper(), text.lower())
        for letter in unicodedata.normalize(form, way)
    }
    return sorted(found - {" "})


def gemma_like(lower: bool = True) -> Any:
    """Byte pairs over letters, bytes for what has no letter, no normal form, an end mark; SigLIP 2 lower-cases."""
    from tokenizers import Tokenizer, models, normalizers, processors

    bytes_ = [f"<0x{i:02X}>" for i in range(256)]
    letters = [letter for letter in _letters([*EVERY, *TWO_FORMS, "a photo of this is."]) if letter not in "猫狗"]
    pieces = ["<pad>", "<eos>", "<bos>", "<unk>", *bytes_, "▁", *letters]
    model = models.BPE(
        {piece: i for i, piece in enumerate(pieces)}, [], unk_token="<unk>", byte_fallback=True, fuse_unk=True
    )
    tokenizer = Tokenizer(model)
    steps = [normalizers.Replace(" ", "▁")]
    tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *steps] if lower else steps)
    tokenizer.post_processor = processors.TemplateProcessing(single="$A <eos>", special_tokens=[("<eos>", 1)])
    return _wrapped(tokenizer, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>", unk_token="<unk>")


def xlm_like(without: str = "") -> Any:
    """A unigram model with both marks and SentencePiece's normal form, as XLM-R's, which MetaCLIP 2 uses."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    letters = [letter for letter in _letters([*EVERY, *TWO_FORMS, "a photo of this is."]) if letter not in without]
    pieces = ["<s>", "<pad>", "</s>", "<unk>", "▁", "▁a", "▁photo", "▁of", *letters]
    tokenizer = Tokenizer(models.Unigram([(piece, -float(i)) for i, piece in enumerate(pieces)], unk_id=3))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    marks = [("<s>", 0), ("</s>", 2)]
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=marks)
    return _wrapped(tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>", unk_token="<unk>")


def _wrapped(tokenizer: Any, **special: str) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=CONTEXT, **special)
