"""A run in one JSON object: the request, the results, their cost, and their provenance."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, timezone
from typing import Any

import numpy as np

from lessmore.core.costs import Accounting, costs
from lessmore.core.encoder import PLAIN
from lessmore.lab import metrics, provenance
from lessmore.lab.job import Job
from lessmore.lab.journal import SampleRow
from lessmore.lab.sampler import Sampler
from lessmore.lab.store import SCHEMA, Store

RunSummary = dict[str, Any]


def header(job: Job, environment: dict[str, Any]) -> SampleRow:
    """The content of spec.json, written when the run starts.

    Args:
        job: The run.
        environment: Of this process, from `provenance.environment`.
    """
    asked = {"schema": SCHEMA, "key": job.key, "spec": asdict(job.spec), "identity": job.identity}
    return {**asked, "classes": job.classes, "started": _now(), "environment": environment}


def summarise_run(sampler: Sampler, store: Store, environment: dict[str, Any]) -> RunSummary:
    """The content of summary.json. Everything but cost and provenance follows from the lines of samples.jsonl.

    Args:
        sampler: Gives the job and the method's cost.
        store: Gives the rows of the run.
        environment: Of this process, from `provenance.environment`.
    """
    job, begun = sampler.job, store.header()
    dataset = job.stream.dataset
    return {
        "schema": SCHEMA,
        "key": job.key,
        "spec": {**asdict(job.spec), "R": job.settings.condensation.R},
        "tuned_on": job.identity["options"].get("tuned_on") or job.settings.tuned_on,
        "dataset": {
            "name": dataset.name,
            "classes": len(dataset.classes),
            "images": len(dataset),
            "fingerprint": dataset.fingerprint(),
            "pixels": job.sight["pixels"],
            "stream": job.stream.fingerprint(),
            "note": job.stream.note,
        },
        "metrics": metrics.metrics(store.rows()),
        "cost": _cost(sampler, store.timings()),
        "provenance": {
            **environment,
            "weights": job.vlm.fingerprint(),
            "device": job.sight["device"],
            "dtype": job.sight["dtype"],
            "one_environment": begun["environment"] == environment,
            "started": begun["started"],
            "finished": _now(),
        },
    }


def _cost(sampler: Sampler, timings: list[SampleRow]) -> dict[str, Any]:
    """Multiply-accumulates and milliseconds of one image; times count only where the encoder ran."""
    ms = [timing["ms"] for timing in timings if timing["encoded"]]
    low, high = np.quantile(ms, (0.5, 0.95)).tolist() if ms else (None, None)
    return {
        **_gmacs(sampler, "paper"),
        **_gmacs(sampler, "matmul"),
        "ms_p50": low,
        "ms_p95": high,
        "timed": len(ms),
        "peak_memory_mb": provenance.peak_memory(sampler.job.vlm.device),
    }


def _gmacs(sampler: Sampler, accounting: Accounting) -> dict[str, float]:
    """For one image through the method, and through matched zero-shot."""
    job = sampler.job
    plain = costs(job.vlm.vision.shape, PLAIN, None, len(job.classes), accounting=accounting).gmacs
    return {f"gmacs_{accounting}": sampler.method.macs(accounting) / 1e9, f"plain_gmacs_{accounting}": plain}


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
