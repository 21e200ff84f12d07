"""One run as files for further work: a line per class, the confusion matrix, the reliability diagram, thresholds."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from lessmore.lab.confusion import class_lines, confusion
from lessmore.lab.report.detail import confidence_bins
from lessmore.lab.report.escape import csv_table
from lessmore.lab.report.runs import Finished
from lessmore.lab.report.thresholds import PERCENTS, answers_above
from lessmore.storage.files import replacing


def write_run_tables(run: Finished, folder: Path) -> list[Path]:
    """Write classes, confusion, reliability and thresholds of a run as CSV, atomically; fractions, not percent.

    Args:
        run: The run.
        folder: Where they go; made if it does not exist.

    Returns:
        The files.
    """
    names = run.header["classes"]
    counts = confusion(run.rows, len(names))
    bins = {
        "adapted": confidence_bins(run.rows, "prediction", "confidence"),
        "zero-shot": confidence_bins(run.rows, "zero_shot", "zero_shot_probability"),
    }
    tables = {
        "classes.csv": class_lines(run.rows, names),
        "confusion.csv": [
            {"true class": name, **dict(zip(names, counts[c].tolist(), strict=True))} for c, name in enumerate(names)
        ],
        "reliability.csv": [
            {"answers": kind, **dict(zip(asdict(of), values, strict=True))}
            for kind, of in bins.items()
            for values in zip(*(part.tolist() for part in asdict(of).values()), strict=True)
        ],
        "thresholds.csv": [
            {"answers": kind, "threshold": percent / 100, "pass": taken, "right": right}
            for kind, above in answers_above(run.rows).items()
            for percent, taken, right in zip(PERCENTS, *above, strict=True)
        ],
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in tables.items():
        with replacing(folder / name) as new:
            new.write_text(csv_table(lines), encoding="utf-8")
    return [folder / name for name in tables]
