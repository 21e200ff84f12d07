"""The tables that can be made: their rows are settings, their columns the paper's data sets or those the user names.

A row says how its run differs from a plain TCA run. A row that the paper defines by a single option varies only that
one, starting from the preset the user chose. Rows have the paper's names, as in `paper.json`, where the paper has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from lessmore.config import PRESETS
from lessmore.errors import ConfigError, unknown
from lessmore.methods.registry import METHODS
from lessmore.paper.printed import PaperTable, paper_tables

OWN = "{dataset}"
"""In a row's fields: the name of the data set it runs on."""
_VIEWS = "64 views of every image and gradients"
_LISTED = ("cross_dataset",)


@dataclass(frozen=True)
class TableRow:
    """One setting."""

    name: str
    run: Mapping[str, Any]
    """Fields of `RunSpec`."""
    paper: str = ""
    """The paper's row to compare with, where it has another name."""
    needs: str = ""
    """What the row needs that others do not; it is then run only where it is asked for by name."""

    @property
    def tuned(self) -> bool:
        """Whether its settings were chosen on the test labels of the data set it runs on."""
        return OWN in str(self.run)

    @property
    def in_paper(self) -> str:
        """Name of the paper's row."""
        return self.paper or self.name

    def on(self, dataset: str) -> dict[str, Any] | None:
        """Fields of the run on a data set; None where nobody tuned settings for it."""
        if not self.tuned:
            return dict(self.run)
        options = {name: dataset if value == OWN else value for name, value in self.run.get("options", {}).items()}
        fields = {**self.run, "options": options}
        if "preset" in self.run:
            fields["preset"] = self.run["preset"].replace(OWN, dataset)
        return fields if f"released/{dataset}" in PRESETS else None


@dataclass(frozen=True)
class TableSpec:
    """A table by name."""

    name: str
    title: str
    rows: tuple[TableRow, ...]
    base: str = ""
    """The row that the others are compared with, besides matched zero-shot."""
    note: str = ""
    """How our setting differs from the paper's."""
    corruptions: tuple[str | None, ...] = (None,)
    """Columns of every data set unless the user names others."""
    orders: tuple[str, ...] = ()
    """The same of orders; a table of several is read by kinds of streams."""
    only: tuple[str, ...] = ()
    """Of the paper's data sets these alone; empty means all."""

    @property
    def paper(self) -> PaperTable | None:
        """What the paper prints."""
        return paper_tables().get(self.name)

    @property
    def datasets(self) -> tuple[str, ...]:
        """The paper's data sets, or a group of them for tables of our own."""
        return self.only or (self.paper.columns if self.paper else _LISTED)


def _tca(name: str, R: float = 0.9, **options: Any) -> TableRow:
    return TableRow(name, {"method": "tca", "R": R, "options": options})


def _plain(name: str, reducer: str = "none", R: float = 1.0, paper: str = "") -> TableRow:
    return TableRow(name, {"method": "zeroshot", "reducer": reducer, "R": R}, paper)


def _reduced(R: float) -> tuple[TableRow, ...]:
    """EViT, ToMe and ATS at one budget."""
    return (
        _plain(f"EViT R={R:g}", "evit", R),
        _plain(f"ToMe R={R:g}", "tome-table", R),
        _plain(f"ToMe as published, R={R:g}", "tome", R),
        _plain(f"ATS R={R:g}", "ats", R),
    )


def _with(name: str, method: str, needs: str) -> TableRow:
    return TableRow(name, {"method": method}, needs=needs)


_ADAPTED = (
    TableRow("Tent", {"method": "tent"}),
    TableRow("SAR", {"method": "sar"}),
    _with("TPT", "tpt", _VIEWS),
    _with("C-TPT", "c-tpt", _VIEWS),
    _with("MTA", "mta", "64 views of every image"),
    TableRow("TDA", {"method": "tda"}),
    TableRow("TDA, tuned", {"method": "tda", "options": {"tuned_on": OWN}}, paper="TDA"),
)
_CROSS = (
    _plain("CLIP"),
    *_ADAPTED,
    *_reduced(0.9),
    *_reduced(0.7),
    _tca("TCA R=0.9"),
    _tca("TCA R=0.7", 0.7),
)
_OOD = (
    _plain("CLIP"),
    *_ADAPTED,
    _plain("EViT, drop 0.05", "evit", 0.95, "EViT R=0.95"),
    _plain("EViT, drop 0.06", "evit", 0.94, "EViT R=0.95"),
    _plain("ToMe, drop 0.05", "tome-table", 0.95, "ToMe R=0.95"),
    _plain("ToMe, drop 0.06", "tome-table", 0.94, "ToMe R=0.95"),
    _plain("ATS R=0.95", "ats", 0.95),
    _tca("TCA R=0.95", 0.95),
)
_REDUCERS = {"EViT": "evit", "ToMe": "tome", "ATS": "ats", "condensation": "tca"}
_ANCHOR: dict[str, Any] = {"rows": "both", "anchor_kv": True}
_NO_ANCHOR: dict[str, Any] = {"rows": "class", "anchor_kv": False}
_COMPONENTS = (
    _tca("neither", score="mean", **_NO_ANCHOR),
    _tca("anchor", score="mean", **_ANCHOR),
    _tca("cross-head rank", score="rank", **_NO_ANCHOR),
    _tca("both", score="rank", **_ANCHOR),
)
_TDA_PLUS = (
    *(
        TableRow(f"TDA + {title} R=0.9", {"method": "tda", "reducer": reducer, "R": 0.9})
        for title, reducer in (("ATS", "ats"), ("EViT", "evit"), ("ToMe", "tome-table"), ("condensation", "tca"))
    ),
    TableRow("TDA", {"method": "tda"}),
    _tca("TCA R=0.9"),
)


_EVERY = (
    _plain("zero-shot"),
    *(_plain(f"{title} R=0.9", reducer, 0.9) for title, reducer in _REDUCERS.items()),
    TableRow("TDA", {"method": "tda"}),
    *(TableRow(f"TDA + {title} R=0.9", {"method": "tda", "reducer": r, "R": 0.9}) for title, r in _REDUCERS.items()),
    _tca("TCA R=1", 1.0),
    _tca("TCA R=0.9"),
    _tca("TCA R=0.7", 0.7),
    *(TableRow(f"{name.upper()}", {"method": name}) for name in ("mta", "zero", "tpt", "c-tpt", "sar")),
    TableRow("Tent", {"method": "tent"}),
)


def _preset(name: str) -> TableRow:
    return TableRow(f"preset {name}", {"method": "tca", "preset": name})


_FIELD = (
    _plain("zero-shot"),
    _preset("default"),
    _preset("fixed"),
    TableRow("debiasing alone", {"method": "tca", "preset": "default", "R": 1.0, "options": {"lam": 0.0}}),
    TableRow("TDA", {"method": "tda"}),
    *(
        TableRow(title, {"method": title.lower()})
        for title in ("NEO", "OnZeta", "LSA", "DOTA", "OGA", "BCA", "ECALP", "StatA")
    ),
    TableRow("Tent", {"method": "tent"}),
    TableRow("SAR", {"method": "sar"}),
    TableRow("DeYO", {"method": "deyo"}),
    TableRow("BATCLIP", {"method": "batclip"}),
    *(_with(name.upper(), name, "64 views of every image") for name in ("mta", "zero")),
    *(_with(name.upper(), name, _VIEWS) for name in ("tpt", "c-tpt")),
)
FIELD_ORDERS = ("iid", "sorted", "few", "camera")
FIELD_CORRUPTIONS = (
    *(None, "contrast:3", "fog:3", "brightness:3"),
    *("gaussian_noise:1", "defocus_blur:2", "jpeg_compression:3"),
)
_OPTIONS = (
    _plain("zero-shot"),
    _tca("TCA"),
    _tca("correction alone, R=1", 1.0),
    _tca("condensation alone, λ=0", lam=0.0),
    _tca("score=mean", score="mean"),
    _tca("counts=exact", counts="exact"),
    _tca("K=4", K=4),
    _tca("merge=inverse_distance", merge="inverse_distance"),
    _tca("pruned=fuse", pruned="fuse"),
    _tca("anchor row: rows=both", rows="both"),
    _tca("anchor as key and value: anchor_kv", anchor_kv=True),
    _tca("anchor, both uses", **_ANCHOR),
    _tca("anchor, both uses, ready=all", **_ANCHOR, ready="all"),
    _tca("key=class_term", key="class_term"),
    _tca("kernel=linear", kernel="linear"),
    _tca("over=sum", over="sum"),
    _tca("domain=probabilities", domain="probabilities"),
    _tca("layer_weights=index", layer_weights="index"),
    _tca("order=update_first", order="update_first", exclude_own=False),
    _tca("order=update_first, exclude_own", order="update_first", exclude_own=True),
    _tca("order=predict_first", order="predict_first", exclude_own=False),
    _tca("debias=careful", debias="careful"),
    _tca("debias=bold", debias="bold"),
    _preset("fixed"),
    _preset("paper"),
    _preset("released"),
    TableRow("preset released, tuned", {"method": "tca", "preset": f"released/{OWN}"}),
)

_ONE_DEFAULT = (
    "The paper tunes λ, β, M and b for every data set; here one setting serves all but those marked as tuned."
)
_ABLATION = f"{_ONE_DEFAULT} Everything else is as in the preset, at R = 0.9."

_TABLES = (
    TableSpec("cross-dataset", "Cross-dataset benchmark, CLIP ViT-B/16", _CROSS, note=_ONE_DEFAULT),
    TableSpec("cross-dataset-l14", "Cross-dataset benchmark, CLIP ViT-L/14", _CROSS, note=_ONE_DEFAULT),
    TableSpec(
        "ood",
        "ImageNet and its shifted versions",
        _OOD,
        note=f"{_ONE_DEFAULT} The paper calls EViT and ToMe R = 0.95, but prints the cost of dropping 6 %: both are "
        "here, and both are compared with the same printed row.",
    ),
    TableSpec(
        "cifar100c",
        "CIFAR-100-C",
        (_plain("CLIP"), _plain("EViT R=0.9", "evit", 0.9), _tca("TCA R=0.9")),
        note=f"{_ONE_DEFAULT} The paper gives neither R nor prompts for this table.",
    ),
    TableSpec("siglip", "SigLIP", (_plain("SigLIP"), _tca("TCA R=0.9")), note=_ONE_DEFAULT),
    TableSpec("siglip2", "SigLIP 2", (_plain("SigLIP v2"), _tca("TCA R=0.9")), note=_ONE_DEFAULT),
    TableSpec(
        "reservoir-strategy",
        "Who leaves a full class",
        tuple(_tca(name, strategy=name) for name in ("fifo", "uncertainty", "similarity", "diversity")),
        base="diversity",
        note=_ABLATION,
    ),
    TableSpec(
        "reservoir-size",
        "Entries per class",
        tuple(_tca(f"M={M}", M=M) for M in (1, 2, 3, 4, 6, 8, 12, 16)),
        base="M=3",
        note=_ABLATION,
    ),
    TableSpec("components", "Anchor and cross-head rank", _COMPONENTS, base="neither", note=_ABLATION),
    TableSpec(
        "budget",
        "Tokens kept",
        tuple(_tca(f"R={R:g}", R) for R in (1.0, 0.9, 0.8, 0.7, 0.6)),
        base="R=1",
        note=_ONE_DEFAULT,
    ),
    TableSpec(
        "beta",
        "Layer temperature β",
        tuple(_tca(f"β={b:g}", beta=b) for b in (0.01, 0.05, 0.3, 1.0, 3.0, 5.0)),
        base="β=0.3",
        note=_ABLATION,
    ),
    TableSpec(
        "lambda",
        "Weight λ of the correction",
        tuple(_tca(f"λ={n}", lam=float(n)) for n in range(2, 9)),
        base="λ=8",
        note=_ABLATION,
    ),
    TableSpec(
        "merge-prune",
        "Merged against pruned tokens",
        tuple(_tca(f"{a}:{b}", merge_prune=(a, b)) for a, b in ((0, 1), (1, 2), (2, 1))),
        base="2:1",
        note=_ABLATION,
    ),
    TableSpec("centres", "Centres of the coreset", tuple(_tca(f"K={K}", K=K) for K in (1, 2, 3, 4)), "K=2", _ABLATION),
    TableSpec(
        "tda-plus",
        "TDA on top of token reduction",
        _TDA_PLUS,
        base="TDA + ATS R=0.9",
        note="TDA with its settings for ImageNet on every set; the paper takes those tuned on each set.",
    ),
    TableSpec(
        "methods",
        "Every method and reducer that needs nothing but the stream",
        _EVERY,
        base="zero-shot",
        note="A table of ours, every method with its one default. ToMe is the published one.",
    ),
    TableSpec(
        "field",
        "Every method on every kind of stream",
        _FIELD,
        base="zero-shot",
        note="A table of ours. Every method has its one default, which knows nothing of the stream's length.",
        corruptions=FIELD_CORRUPTIONS,
        orders=FIELD_ORDERS,
    ),
    TableSpec(
        "options",
        "Where paper and released code differ, one option at a time",
        _OPTIONS,
        base="TCA",
        note="A table of ours. Every row varies what it names, from the preset, at R = 0.9; the rows called preset are "
        "whole presets at their own R.",
    ),
)
TABLES: dict[str, TableSpec] = {table.name: table for table in _TABLES}


def find_table(name: str, others: tuple[str, ...] = ()) -> TableSpec:
    """A table by name; `field` has a row for each method of an installed package as well.

    Args:
        name: The name.
        others: Further names that a user may have meant, for the error.

    Raises:
        ConfigError: There is no such table.
    """
    if name not in TABLES:
        raise ConfigError(unknown("table or figure", name, (*TABLES, *others, "all")))
    table = TABLES[name]
    if name != "field":
        return table
    return replace(table, rows=(*table.rows, *(TableRow(one, {"method": one}) for one in METHODS.installed())))
