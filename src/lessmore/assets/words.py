"""A word tokenizer for the captions of the embedded world; it needs nothing but a list of words.

It lower-cases a text, splits it at spaces and punctuation, puts <start> and <end> around it, and pads or cuts it to 16
tokens. `tokenizer_files` describes the same tokenizer to transformers' AutoTokenizer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lessmore.assets.world import COLOURS, PATTERNS, SHAPES
from lessmore.errors import ModelError

CONTEXT = 16
PAD, UNKNOWN, START, END = "<pad>", "<unk>", "<start>", "<end>"

TEMPLATES = (
    "{a}",
    "{}",
    "the {}",
    "this is {a}",
    "a photo of {a}",
    "a photo of a {}",
    "a photo of a {}.",
    "a photo of the {}",
    "a picture of {a}",
    "an image of {a}",
    "a drawing of {a}",
    "{a} on a background",
)
"""Sentences the models are trained on; `{a}` stands for the name with its article."""

_EXTRA = "object thing , ! ? and with in at small large big little good bad clean blurry bright dark noisy snowy sketch"


def _world_vocabulary() -> list[str]:
    """<end> has the highest number, so towers that find it by argmax agree with those that look for its number."""
    words = [w for t in TEMPLATES for w in _split(t.replace("{a}", "").replace("{}", ""))]
    every = dict.fromkeys([*words, *_EXTRA.split(), *SHAPES, *COLOURS, *PATTERNS])
    return [PAD, UNKNOWN, *every, START, END]


def _split(text: str) -> list[str]:
    return re.findall(r"\w+|[^\w\s]+", text.lower())


class Words:
    """Turns texts into token numbers and back."""

    def __init__(self, ids: Mapping[str, int] | None = None) -> None:
        """Take a vocabulary.

        Args:
            ids: Words and their numbers; None means the embedded world's own.
        """
        self.ids = dict(ids) if ids is not None else {word: i for i, word in enumerate(_world_vocabulary())}
        self.words = {i: word for word, i in self.ids.items()}

    @classmethod
    def load(cls, folder: Path | str) -> Words:
        """The vocabulary a model was trained with, from the tokenizer.json in its folder."""
        try:
            return cls(json.loads((Path(folder) / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"])
        except (OSError, KeyError, json.JSONDecodeError) as error:
            raise ModelError(f"no word tokenizer in {folder}; it needs a tokenizer.json ({error})") from error

    def __len__(self) -> int:
        return len(self.ids)

    def __call__(self, texts: str | Sequence[str]) -> Tensor:
        """One or n texts → [n, CONTEXT] int64."""
        texts = [texts] if isinstance(texts, str) else texts
        rows = torch.full((len(texts), CONTEXT), self.ids[PAD])
        for row, text in zip(rows, texts, strict=True):
            words = [START, *_split(text)[: CONTEXT - 2], END]
            row[: len(words)] = torch.tensor([self.ids.get(word, self.ids[UNKNOWN]) for word in words])
        return rows

    def decode(self, tokens: Tensor) -> list[str]:
        """[n, k] → the n texts, without <start>, <end> and padding; unknown words stay `<unk>`."""
        frame = {PAD, START, END}
        return [" ".join(w for w in (self.words[i] for i in row) if w not in frame) for row in tokens.tolist()]

    def tokenizer_files(self) -> dict[str, dict[str, Any]]:
        """Contents of tokenizer.json and tokenizer_config.json; with them transformers gives the same token numbers."""
        return {"tokenizer.json": _tokenizer_json(self.ids), "tokenizer_config.json": _tokenizer_config()}


def _tokenizer_json(ids: Mapping[str, int]) -> dict[str, Any]:
    def special(word: str) -> dict[str, Any]:
        return {"SpecialToken": {"id": word, "type_id": 0}}

    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    pad = {"strategy": {"Fixed": CONTEXT}, "direction": "Right", "pad_to_multiple_of": None}
    single = [special(START), {"Sequence": {"id": "A", "type_id": 0}}, special(END)]
    return {
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": CONTEXT, "strategy": "LongestFirst", "stride": 0},
        "padding": {**pad, "pad_id": ids[PAD], "pad_type_id": 0, "pad_token": PAD},
        "added_tokens": [{"id": ids[word], "content": word, **flags} for word in (PAD, UNKNOWN, START, END)],
        "normalizer": {"type": "Lowercase"},
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": single,
            "pair": [*single, {"Sequence": {"id": "B", "type_id": 0}}, special(END)],
            "special_tokens": {w: {"id": w, "ids": [ids[w]], "tokens": [w]} for w in (START, END)},
        },
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": dict(ids), "unk_token": UNKNOWN},
    }


def _tokenizer_config() -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": START,
        "eos_token": END,
        "pad_token": PAD,
        "unk_token": UNKNOWN,
        "model_max_length": CONTEXT,
        "model_input_names": ["input_ids"],
        "clean_up_tokenization_spaces": False,
    }
