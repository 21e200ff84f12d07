"""Other scores for images of none of the classes, compared on the streams that a score may be chosen on.

    python benchmarks/unknown_candidates.py --encodings ENCODINGS --output benchmarks/results/unknown-candidates.json

Streams are those of `unknown.py`, of the sets in its `CHOSEN`. z are zero-shot logits, d debiased ones, and m is the
stream's mean logit before the image, less its mean over the classes, so that z − w·m keeps the level that d has lost. A
candidate is judged by its mean over model and kind of stream, and by how many streams lie more than `LOST` points below
the best of the four rivals there. With `--report` the candidates in `PROPOSED` alone are measured on all other streams,
once, when one is to be adopted.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from answers_streams import Encodings, Floats, auroc, read_encodings
from confidence import rounded
from torch import Tensor
from tqdm import tqdm
from unknown import CHOSEN, RIVALS, named, scores_of, streams

from lessmore.core import debias
from lessmore.core.class_texts import ClassTexts, class_logits
from lessmore.storage.files import replacing

LOST = 2.0
PROPOSED = ("energy + max z + max d", "max z + max (z − w·m)")
HOLD = 128
"""Images whose median and spread standardise a score."""


def candidates_of(one: Encodings) -> dict[str, Floats]:
    """Scores of every image of a stream, more means known; rivals, the score as it is, and candidates."""
    texts, C = ClassTexts.of(one.text, one.scale), len(one.text)
    mean = debias.empty_stream_mean(one.feature.shape[1], C, "cpu", torch.float32)
    z = class_logits(one.feature, one.text, one.scale)
    kept: list[tuple[Tensor, Tensor, Tensor]] = []
    for logits, feature in zip(z, one.feature, strict=True):
        before = mean.feature_sum / mean.images.clamp_min(1e-9)
        d, mean = debias.observe(mean, logits, feature, texts, debias.RULES["careful"])
        kept.append((d, mean.strength * debias.centred(texts.logits(before)), before))
    d, common, before = (torch.stack(part).double() for part in zip(*kept, strict=True))
    z, common = z.double(), common.double()
    energy, top, unbiased = z.logsumexp(1), z.amax(1), d.amax(1)
    towards = torch.nn.functional.cosine_similarity(one.feature.double(), before, dim=1)
    found = {
        "energy of d": d.logsumexp(1),
        "max (z − w·m)": (z - common).amax(1),
        "max (z − w·m/2)": (z - common / 2).amax(1),
        "energy of z − w·m/2": (z - common / 2).logsumexp(1),
        "max z + max (z − w·m)": top + (z - common).amax(1),
        "energy + max d": energy + unbiased,
        "3·energy + max d": 3 * energy + unbiased,
        "energy + max z + max d": energy + top + unbiased,
        "standardised energy + max d": standardised(energy) + standardised(unbiased),
        "lower of both, standardised": torch.minimum(standardised(energy), standardised(unbiased)),
        "the sum, and cosine with the mean": standardised(energy) + standardised(unbiased) + standardised(towards) / 2,
        "cosine with the mean": towards,
        "norm in the span of the classes": torch.linalg.qr(one.text.double().T)[0]
        .T.matmul(one.feature.double().T)
        .norm(dim=0),
    }
    return scores_of(one) | {name: score.numpy() for name, score in found.items()}


def standardised(score: Tensor) -> Tensor:
    """A score less the median of the last images, over their median deviation; 0 for the first."""
    found = torch.zeros_like(score)
    for i in range(7, len(score)):
        past = score[max(0, i + 1 - HOLD) : i + 1]
        middle = past.median()
        found[i] = (score[i] - middle) / (1.4826 * (past - middle).abs().median()).clamp_min(1e-6)
    return found


def table(rows: list[dict[str, Any]]) -> None:
    """Print, best first: mean over model and kind, streams far below the best rival, the worst of them."""
    groups: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    lost: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        best = max(row["auroc"][rival] for rival in RIVALS)
        for name, value in row["auroc"].items():
            groups[name][f"{row['stream'].split()[0]} {row['kind']}"].append(value)
            lost[name].append(100 * (value - best))
    kinds = list(next(iter(groups.values())))
    print(f"{len(rows)} streams; {', '.join(kinds)}")
    means = {name: [100 * float(np.mean(of[kind])) for kind in kinds] for name, of in groups.items()}
    for name in sorted(means, key=lambda one: -float(np.mean(means[one]))):
        below = sum(value < -LOST for value in lost[name])
        cells = " ".join(f"{value:5.1f}" for value in means[name])
        print(f"{name:34} {np.mean(means[name]):.1f}, {below:3} lost, worst {min(lost[name]):6.1f} | {cells}")


def main() -> None:
    """Measure, print, and write where told."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encodings", type=Path, required=True)
    parser.add_argument("--conditions", nargs="*", help="of the sets; without it all")
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--report", action="store_true", help="the proposed candidates on the streams not chosen on")
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    every = [read_encodings(file) for file in sorted(args.encodings.glob("*.npz")) if ".views" not in file.name]
    wanted = [one for one in every if len(one.text) and (one.model in CHOSEN or named(one) in CHOSEN) != args.report]
    wanted = [one for one in wanted if not args.conditions or one.condition in args.conditions]
    rows: list[dict[str, Any]] = []
    for one, seed in tqdm([(one, seed) for one in wanted for seed in range(args.draws)], unit="draw"):
        clean = [e for e in every if (e.model, e.condition) == (one.model, "none") and e.dataset != one.dataset]
        for mixed in streams(one, clean, seed):
            if not mixed.known.all():
                found = candidates_of(mixed.images)
                shown = (*RIVALS, "unknown_score", *PROPOSED) if args.report else tuple(found)
                values = {name: auroc(found[name], mixed.known) for name in shown}
                rows.append({"stream": named(one), "kind": mixed.kind, "seed": seed, "auroc": values})
    table(rows)
    if args.output:
        with replacing(args.output) as temporary:
            temporary.write_text("[\n" + ",\n".join(map(json.dumps, rounded(rows))) + "\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
