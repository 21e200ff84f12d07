"""Finished runs as pandas tables: a line per run, per image or per class."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lessmore.errors import ConfigError, unknown
from lessmore.lab.confusion import class_lines
from lessmore.lab.report.runs import Finished, find_runs
from lessmore.lab.report.tables import with_short_names

if TYPE_CHECKING:
    import pandas

_PARTS = ("spec", "metrics", "cost")
_SPREAD = ("over_time", "domains", "options")
"""Lists and mappings of a summary; they stay what they are, one object in a cell."""
Per = Literal["run", "image", "class"]


def results(*folders: str | Path, per: Per = "run") -> pandas.DataFrame:
    """Finished runs as a pandas table; unfinished and damaged ones are left out, and a warning lists them.

    Args:
        *folders: Folders of runs, searched to any depth, or summary files.
        per: `run` has a line per run with its settings, results and cost, intervals as `..._low` and `..._high`;
            `image` a line per image with the names of its classes; `class` a line per class of each run. Fractions are
            fractions, not percent. The column `run` names the run in all of them.

    Raises:
        ConfigError: There is no finished run, pandas is missing, or `per` is unknown.
        StateError: The samples of a run are damaged.

    Examples:
        >>> from lessmore.lab.runner import run_one
        >>> from lessmore.lab.spec import RunSpec
        >>> from PIL import Image
        >>> import pathlib
        >>> for colour in ("red", "blue"):
        ...     pathlib.Path("photos", f"{colour} circle").mkdir(parents=True)
        ...     Image.new("RGB", (64, 64), colour).save(f"photos/{colour} circle/1.png")
        >>> done = run_one(RunSpec(model="tiny", dataset="folder:photos"), "runs", quiet=True, cache=False)
        >>> table = results("runs")
        >>> table[["dataset", "method", "n", "accuracy"]].values.tolist()
        [['photos', 'tca', 2, 1.0]]
        >>> sorted(results("runs", per="image")["prediction"])
        ['blue circle', 'red circle']
    """
    if per not in _LINES:
        raise ConfigError(unknown("kind of line", per, _LINES))
    try:
        pandas = importlib.import_module("pandas")
    except ImportError as error:
        raise ConfigError("tables of runs need pandas; install it with: pip install 'lessmore[results]'") from error
    runs, left_out = find_runs([Path(folder) for folder in folders])
    if left_out:
        warnings.warn(f"left out {', '.join(left_out)}; do these runs again", stacklevel=2)
    short = with_short_names(run.summary for run in runs)
    named = [Finished(run.folder, summary) for run, summary in zip(runs, short, strict=True)]
    return pandas.DataFrame([line for run in named for line in _LINES[per](run)])


def _run_lines(run: Finished) -> Iterator[dict[str, Any]]:
    line: dict[str, Any] = {"run": run.folder.name}
    for part in _PARTS:
        for name, value in run.summary[part].items():
            if name.endswith("_ci"):
                line |= zip((f"{name[:-3]}_low", f"{name[:-3]}_high"), value or (None, None), strict=True)
            elif name in _SPREAD or not isinstance(value, (list, dict)):
                line[name] = value
    data = run.summary["dataset"]
    line |= {"dataset": data["name"], "classes": data["classes"], "tuned_on": run.summary.get("tuned_on")}
    yield line | {"finished": run.summary["provenance"]["finished"], "folder": str(run.folder)}


def _image_lines(run: Finished) -> Iterator[dict[str, Any]]:
    names = run.header["classes"]
    for row in run.rows:
        said: dict[str, Any] = {
            key: names[row[key]] for key in ("label", "prediction", "zero_shot", "unadapted") if key in row
        }
        right = {"right": row["prediction"] == row["label"]} if "error" not in row else {}
        yield {"run": run.folder.name, **row, **said, **right}


def _class_lines(run: Finished) -> Iterator[dict[str, Any]]:
    for line in class_lines(run.rows, run.header["classes"]):
        yield {"run": run.folder.name, **line}


_LINES = {"run": _run_lines, "image": _image_lines, "class": _class_lines}
