"""How well do reported probabilities say how often answers are right? Adapted, raw and calibrated, and zero-shot.

    python benchmarks/answers_encode.py ... --output ENCODINGS       makes the encodings, see there
    python benchmarks/confidence.py --encodings ENCODINGS --models MODELS --output benchmarks/results/confidence.json

Streams of all encodings, i.i.d. and sorted by class, in three orders, through `engines.answers` as it is. Zero-shot is
matched (same prompts, R = 1). `choose` are the streams that were looked at when the rule was made, `report` all others.
Zero-shot calibrated by the same rule is zero-shot, because its own confidence is what the rule follows.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from answers_streams import THRESHOLDS, answered, answerer, order_of, over_classes, quality, read_encodings
from tqdm import tqdm

from lessmore.storage.files import replacing

KINDS, ORDERS = ("i.i.d.", "sorted"), 3
CHOSEN = ("tiny.world", "tiny-siglip.world", "photo-s8.caltech101.none")
"""Sets, and single conditions, on which ideas were compared."""
METHODS = ("tca", "tda")
VERSIONS = ("zero-shot", "raw", "calibrated")
NUMBERS = ("accuracy", "confidence", "ece", "brier", "nll", "auroc")


def measure(file: Path, models: Path, known: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows of one file: every method, kind and order."""
    one, rows = read_encodings(file), []
    for method in METHODS:
        key = f"{one.model} {method}"
        known[key] = over_classes(known[key], one) if key in known else answerer(one, method, models)
        for kind in KINDS:
            for seed in range(ORDERS):
                order = order_of(one.labels, kind, seed)
                found = answered(known[key], one, order.tolist())
                y = one.labels[order]
                versions = {
                    "calibrated": torch.stack([answer.scores for answer in found]),
                    "raw": torch.stack([answer.raw_scores for answer in found]),
                    "zero-shot": one.zero_shot(order).softmax(dim=1),
                }
                about = {"model": one.model, "set": one.dataset, "condition": one.condition, "method": method}
                about |= {"kind": kind, "seed": seed, "n": len(y), "part": part_of(one)}
                rows.append(about | {name: quality(p, y) for name, p in versions.items()})
    return rows


def part_of(one: Any) -> str:
    """Whether the rule was made on streams of these encodings."""
    names = (f"{one.model}.{one.dataset}", f"{one.model}.{one.dataset}.{one.condition}")
    return "choose" if any(name in CHOSEN for name in names) else "report"


def tables(rows: list[dict[str, Any]]) -> None:
    """Print means over orders for every stream, and what the aim asks for."""
    for method in METHODS:
        for part in ("choose", "report"):
            chosen = [row for row in rows if (row["method"], row["part"]) == (method, part)]
            if chosen:
                print(f"\n{method}, {part}: n, accuracy of zero-shot → adapted; each: ECE, Brier, NLL, AUROC")
                _table(chosen)


def _table(rows: list[dict[str, Any]]) -> None:
    streams: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        streams[f"{row['model']} {row['set']} {row['condition']} {row['kind']}"].append(row)
    worst = []
    for name, orders in streams.items():
        mean = {v: {k: _mean([o[v][k] for o in orders]) for k in NUMBERS} for v in VERSIONS}
        gain = f"{100 * mean['zero-shot']['accuracy']:.1f} → {100 * mean['raw']['accuracy']:.1f}"
        print(f"{name:44} {orders[0]['n']:4} {gain:13}" + "".join(f" | {v} {_line(mean[v])}" for v in mean))
        worst.append((mean["calibrated"]["ece"] - mean["zero-shot"]["ece"], name))
    for version in VERSIONS:
        print(f"mean, {version:12}", _line({k: _mean([row[version][k] for row in rows]) for k in NUMBERS}))
    for t in THRESHOLDS:
        shares = (f"{v} {_percent(rows, v, f'taken {t}')}, {_percent(rows, v, f'right {t}')} right" for v in VERSIONS)
        print(f"answers at least {t} sure: {'; '.join(shares)}")
    lost = [_mean([o["calibrated"]["auroc"] - o["zero-shot"]["auroc"] for o in orders]) for orders in streams.values()]
    over = sum(more > 0.02 for more, _ in worst)
    print(f"ECE over zero-shot's by more than .02: {over} of {len(worst)} streams; most: {max(worst)}")
    under = sum(x < -0.01 for x in lost)
    print(f"AUROC under zero-shot's by more than .01: {under} of {len(lost)} streams; most: {min(lost):.3f}")


def _mean(values: list[float]) -> float:
    return float(np.nanmean(values))


def _percent(rows: list[dict[str, Any]], version: str, name: str) -> str:
    return f"{100 * _mean([row[version][name] for row in rows]):.1f} %"


def _line(of: dict[str, float]) -> str:
    return f"{of['ece']:.3f} {of['brier']:.3f} {of['nll']:.3f} {of['auroc']:.3f}"


def rounded(value: Any) -> Any:
    """Numbers to four digits, wherever they stand."""
    if isinstance(value, dict):
        return {name: rounded(one) for name, one in value.items()}
    if isinstance(value, list):
        return [rounded(one) for one in value]
    return round(value, 4) if isinstance(value, float) else value


def main() -> None:
    """Measure, print, and write where told."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encodings", type=Path, required=True)
    parser.add_argument("--models", type=Path, default=Path("."), help="folder of the models that are not embedded")
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    files = [f for f in sorted(args.encodings.glob("*.npz")) if ".views" not in f.name and ".noise." not in f.name]
    rows, known = [], {}
    torch.set_grad_enabled(False)
    for file in tqdm(files, unit="file"):
        rows += measure(file, args.models, known)
    tables(rows)
    if args.output:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        with replacing(args.output) as temporary:
            temporary.write_text("[\n" + ",\n".join(map(json.dumps, rounded(rows))) + "\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
