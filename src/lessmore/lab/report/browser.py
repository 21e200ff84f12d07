"""What the page's script needs of every sample, as compactly as possible: columns of numbers, and each text once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lessmore.lab.journal import SampleRow
from lessmore.lab.report.album import Album
from lessmore.lab.report.thresholds import answers_above
from lessmore.lab.report.tokens import PALETTE, TINT

_NONE = -1


class Texts:
    """Texts by number, each kept once."""

    def __init__(self) -> None:
        self.all: dict[str, int] = {}

    def number(self, text: str) -> int:
        """The number of a text, new or known."""
        return self.all.setdefault(text, len(self.all))


def page_data(titles: Sequence[str], rows: Sequence[Sequence[SampleRow]], albums: Sequence[Album]) -> dict[str, Any]:
    """All data that the script reads, as JSON. The arguments list the runs in the same order.

    Args:
        titles: A title per run.
        rows: Samples per run.
        albums: Pictures per run.
    """
    ids, lists = Texts(), list[list[str]]()
    runs: list[dict[str, Any]] = []
    uris: dict[int, str] = {}
    for title, samples, album in zip(titles, rows, albums, strict=True):
        names = list(names_of(samples, album))
        if names not in lists:
            lists.append(names)
        at = {row["i"]: position for position, row in enumerate(samples)}
        pictures = {at[i]: _picture(samples[at[i]], album) for i in album.uris}
        run = {"title": title, "classes": lists.index(names), **_columns(samples, ids), "pictures": pictures}
        runs.append(run | {"above": answers_above(samples)})
        uris |= {ids.number(samples[at[i]]["id"]): uri for i, uri in album.uris.items()}
    return {"palette": PALETTE, "tint": TINT, "ids": list(ids.all), "classes": lists, "uris": uris, "runs": runs}


def names_of(rows: Sequence[SampleRow], album: Album) -> Sequence[str]:
    """Class names of a run, or numbers if it does not record them.

    Args:
        rows: Its samples.
        album: Has the names where the run's header does.
    """
    if album.classes:
        return album.classes
    last = max(max(row["label"], row.get("zero_shot", 0), *row.get("top5", (0,))) for row in rows)
    return [f"class {c}" for c in range(last + 1)]


def _columns(rows: Sequence[SampleRow], ids: Texts) -> dict[str, Any]:
    """Numbers of each sample; probabilities in thousandths, −1 where an image could not be read."""
    domains = Texts()
    return {
        "id": [ids.number(row["id"]) for row in rows],
        "label": [row["label"] for row in rows],
        "domain": [domains.number(row["domain"]) for row in rows],
        "domains": list(domains.all),
        **{name: [row.get(field, _NONE) for row in rows] for name, field in _ANSWERS.items()},
        **{f"{name}P": [_thousandths(row, field) for row in rows] for name, field in _SURE.items()},
        "entropy": [_thousandths(row, "entropy") for row in rows],
        "errors": {i: row["error"] for i, row in enumerate(rows) if "error" in row},
    }


_ANSWERS = {"zero": "zero_shot", "before": "unadapted", "after": "prediction"}
_SURE = {"zero": "zero_shot_probability", "before": "unadapted_probability", "after": "probability"}


def _thousandths(row: SampleRow, name: str) -> int:
    return round(1000 * row[name]) if name in row else _NONE


def _picture(row: SampleRow, album: Album) -> dict[str, Any]:
    """The five most probable classes of a pictured sample, and its tokens where any were condensed."""
    tokens = album.tokens.get(row["i"])
    top = [[c, round(1000 * p)] for c, p in zip(row["top5"], row["top5_probabilities"], strict=True)]
    return {"top": top} | ({} if tokens is None else tokens._asdict())
