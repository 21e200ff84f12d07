"""Runs of any length without a model: answers drawn at random, in a folder as the harness writes it."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from lessmore.lab.metrics import metrics
from lessmore.lab.spec import RunSpec
from lessmore.lab.store import SCHEMA, Store


def write_run(output: Path, images: int, classes: int, domains: int = 2, failed: int = 1, **asked: Any) -> Path:
    """A finished run; the folder it is in."""
    spec = asdict(RunSpec(**{"model": "nowhere/model", "dataset": "folder:nowhere", **asked})) | {"R": 0.9}
    key = hashlib.sha256(repr((images, classes, spec)).encode()).hexdigest()
    rows = [_row(i, classes, domains, np.random.default_rng(i)) for i in range(images)]
    for row in rows[3 : 3 + failed]:
        row["error"] = f"{row['id']} is not an image"
        for name in set(row) - {"i", "id", "label", "domain", "error"}:
            del row[name]
    names = [f"class {c}" for c in range(classes)]
    asked = {"key": key, "spec": spec, "identity": {"adaptation": {"key": "entropy"}}, "classes": names}
    with Store(output / key[:16], key) as store:
        store.begin({"schema": SCHEMA, **asked}, restart=True)
        for row in rows:
            store.append(row, {"i": row["i"], "ms": 10.0, "encoded": True, "zero_shot_ms": 9.0})
        store.finish(_summary(key, spec, rows, classes))
    return output / key[:16]


def _row(i: int, classes: int, domains: int, random: np.random.Generator) -> dict[str, Any]:
    label, plain, ours = (int(c) for c in random.integers(classes, size=3))
    plain, ours = (label if random.random() < chance else c for chance, c in ((0.5, plain), (0.6, ours)))
    sure = np.sort(random.dirichlet(np.ones(5)))[::-1].round(6).tolist()
    top = list(dict.fromkeys([ours, *range(classes)]))[:5]
    return {
        "i": i,
        "id": f"folder-{i % 7}/image_{i:05}.jpg",
        "label": label,
        "domain": ["none", "fog:3", "contrast:4"][i % domains],
        "prediction": ours,
        "probability": sure[0],
        "confidence": sure[0],
        "temperature": 1.0,
        "top5": top,
        "top5_probabilities": sure[: len(top)],
        "unadapted": plain,
        "unadapted_probability": sure[1],
        "zero_shot": plain,
        "zero_shot_probability": sure[2],
        "entropy": round(float(random.random()), 6),
        "changed": ours != plain,
        "refused": False,
        "tokens": 20,
    }


def _summary(key: str, spec: dict[str, Any], rows: list[dict[str, Any]], classes: int) -> dict[str, Any]:
    cost = {"gmacs_matmul": 0.9, "plain_gmacs_matmul": 1.0, "gmacs_paper": 0.9, "plain_gmacs_paper": 1.0}
    data = {"name": "synthetic", "classes": classes, "images": len(rows), "fingerprint": "f", "note": ""}
    data |= {"pixels": None, "stream": "s"}
    made = {"versions": {"torch": "0"}, "hardware": {"cpu": "a processor", "gpu": None}, "threads": 1}
    return {
        "schema": SCHEMA,
        "key": key,
        "spec": spec,
        "tuned_on": None,
        "dataset": data,
        "metrics": metrics(rows),
        "cost": {**cost, "ms_p50": 10.0, "ms_p95": 12.0, "timed": len(rows), "peak_memory_mb": 1.0},
        "provenance": {**made, "device": "cpu", "dtype": "float32", "finished": "2026-01-01T00:00:00"},
    }
