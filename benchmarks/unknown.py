"""Which score tells images of none of the classes from the others? Candidates, before any of them is a feature.

    python benchmarks/answers_encode.py ... --garbage 150 --output ENCODINGS    makes the encodings, see there
    python benchmarks/unknown.py --encodings ENCODINGS --models MODELS --output benchmarks/results/unknown.json

Unknown are: images of half of the classes, which are then left out of the list; pictures of noise; images of another
data set. Three draws each, in one stream with the known ones, through TCA's default as it is. Zero-shot's scores are
those of matched zero-shot (R = 1). AUROC of known against unknown, and the share of unknown images that pass where
95 % of the known ones do.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from answers_streams import Encodings, Hits, answerer, auroc, over_classes, plain_of, read_encodings
from confidence import rounded
from torch import Tensor
from tqdm import tqdm

from lessmore.engines.answers import Answerer
from lessmore.storage.files import replacing

DRAWS, STRANGE = 3, 0.5
"""Streams of a kind; unknown images per known one where they come from elsewhere."""


def scores_of(logits: Tensor, evidence: Tensor, confidence: float, scale: float) -> dict[str, float]:
    """Candidates for one image; more means known.

    Args:
        logits: Matched zero-shot's, `[C]`.
        evidence: Debiased logits, `[C]`.
        confidence: As it is reported.
        scale: Scale of the logits.
    """
    found = {
        "maximum softmax": logits.softmax(0).max(),
        "MCM": (logits.double() / scale).softmax(0).max(),  # of cosines at temperature 1, as published
        "energy": logits.logsumexp(0),
        "max-logit": logits.max(),
        "debiased energy": evidence.logsumexp(0),
        "debiased max-logit": evidence.max(),
        "both energies": logits.logsumexp(0) + evidence.logsumexp(0),
        "reported confidence": torch.tensor(confidence),
    }
    return {name: float(value) for name, value in found.items()}


def streams(one: Encodings, others: list[Encodings], seed: int) -> Iterator[tuple[str, Encodings, Hits]]:
    """Kind, encodings in the order of the stream, and which of them are known."""
    dice = np.random.default_rng(seed)
    C = len(one.text)
    kept = np.sort(dice.permutation(C)[: C // 2])
    order = dice.permutation(len(one.labels))
    yield "half of the classes", _taken(replace(one, text=one.text[kept]), order), np.isin(one.labels[order], kept)
    for other in others:
        strange = dice.permutation(len(other.labels))[: int(STRANGE * len(one.labels))]
        parts = {
            name: torch.cat([getattr(one, name), getattr(other, name)[torch.from_numpy(strange)]])
            for name in ("tokens", "feature", "plain")
        }
        n = len(one.labels) + len(strange)
        order = dice.permutation(n)
        both = replace(one, labels=np.r_[one.labels, -np.ones(len(strange), int)], track=np.arange(n), **parts)
        yield (
            "noise" if other.dataset == "noise" else f"images of {other.dataset}",
            _taken(both, order),
            order < n - len(strange),
        )


def _taken(one: Encodings, order: Any) -> Encodings:
    rows = {name: getattr(one, name)[torch.from_numpy(order)] for name in ("tokens", "feature", "plain")}
    return replace(one, labels=one.labels[order], track=one.track[order], **rows)


def measure(made: Answerer, one: Encodings, known: Hits) -> dict[str, dict[str, float]]:
    """AUROC and passing share of every candidate on one stream."""
    values: dict[str, list[float]] = defaultdict(list)
    for row in range(len(known)):
        answer = made.answer(one.encoded(row), lambda row=row: plain_of(one, row))
        logits = one.zero_shot(np.array([row]))[0]
        for name, value in scores_of(logits, answer.evidence, answer.confidence, one.scale).items():
            values[name].append(value)
    found = {}
    for name, column in values.items():
        score = np.array(column)
        passing = float((score[~known] >= np.quantile(score[known], 0.05)).mean())
        found[name] = {"auroc": auroc(score, known), "passing": passing}
    return found


def main() -> None:
    """Measure, print, and write where told."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encodings", type=Path, required=True)
    parser.add_argument("--models", type=Path, default=Path("."), help="folder of the models that are not embedded")
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    every = [read_encodings(file) for file in sorted(args.encodings.glob("*.npz")) if ".views" not in file.name]
    rows: list[dict[str, Any]] = []
    ready: dict[str, Answerer] = {}
    for one in tqdm([one for one in every if len(one.text)], unit="file"):
        clean = [e for e in every if e.model == one.model and e.dataset != one.dataset and e.condition == "none"]
        for seed in range(DRAWS):
            for kind, stream, known in streams(one, clean, seed):
                base = ready.setdefault(one.model, answerer(one, "tca", args.models))
                about = {
                    "model": one.model,
                    "set": one.dataset,
                    "condition": one.condition,
                    "unknown": kind,
                    "seed": seed,
                }
                rows.append(about | {"n": len(known), "scores": measure(over_classes(base, stream), stream, known)})
    show(rows)
    if args.output:
        with replacing(args.output) as temporary:
            temporary.write_text("[\n" + ",\n".join(map(json.dumps, rounded(rows))) + "\n]\n", encoding="utf-8")


def show(rows: list[dict[str, Any]]) -> None:
    """Print means over draws, and over streams."""
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[f"{row['model']} {row['set']} {row['condition']}, {row['unknown']}"].append(row)
    groups |= {"mean": rows}
    print("AUROC in percent / unknown images that pass where 95 % of the known do")
    for name, chosen in groups.items():
        cells = []
        for score in rows[0]["scores"]:
            mean = {k: 100 * float(np.mean([row["scores"][score][k] for row in chosen])) for k in ("auroc", "passing")}
            cells.append(f"{score} {mean['auroc']:.1f}/{mean['passing']:.0f}")
        print(f"{name:50} {chosen[0]['n']:4} | " + " | ".join(cells))


if __name__ == "__main__":
    main()
