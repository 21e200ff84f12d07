"""Do the stored anchors come closer to the texts? The reservoir over time, against memories that do not choose.

Three memories are filled from the same answers to the same stream: the reservoir; one of the same size that keeps a
random sample of all images predicted as its class; and one that keeps everything.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from lessmore.paper.figures import style
from lessmore.paper.figures.request import Drawn, Met, Request, json_data, online

IMAGES = 400
MEMORIES = ("reservoir", "random", "everything")
VALUES = ("mean_cosine", "entry_cosine", "entropy", "purity")
"""Of a class: cosine of the mean feature of its entries with its text; mean cosine of the single entries; their mean
entropy in nats; the share of them that is truly of the class."""


class Track:
    """What the memories hold of the classes; entries are numbers of samples."""

    def __init__(self, text: Tensor, size: int, seed: int) -> None:
        self.text = text.double().cpu()
        self.size = size
        self.features: list[Tensor] = []
        self.facts: list[tuple[float, int]] = []
        self.entries: dict[str, dict[int, list[int]]] = {name: {} for name in MEMORIES}
        self.values: dict[str, dict[int, tuple[float, ...]]] = {name: {} for name in MEMORIES}
        self._random = np.random.default_rng(seed)

    def add(self, met: Met) -> None:
        """Let one answered sample into all memories."""
        label = int(met.answer.delta.placement.label)
        self.features.append(F.normalize(met.feature.double().cpu(), dim=-1))
        self.facts.append((float(met.answer.delta.placement.key), met.sample.label))
        everything = self.entries["everything"].setdefault(label, [])
        everything.append(len(self.facts) - 1)
        self._draw(self.entries["random"].setdefault(label, []), everything)
        self.entries["reservoir"][label] = [int(i) for i in met.after.ids[label] if i >= 0]
        for name in MEMORIES:
            self.values[name][label] = self._values(label, self.entries[name][label])

    def _draw(self, kept: list[int], seen: list[int]) -> None:
        """Reservoir sampling: after every sample, each of those seen is kept with the same probability."""
        place = len(kept) if len(kept) < self.size else int(self._random.integers(len(seen)))
        if place < self.size:
            kept[place : place + 1] = [seen[-1]]

    def _values(self, label: int, entries: list[int]) -> tuple[float, ...]:
        """`VALUES` for the entries of one class."""
        total = sum((self.features[i] for i in entries[1:]), self.features[entries[0]])
        single = [float(self.features[i] @ self.text[label]) for i in entries]
        entropy, truth = zip(*(self.facts[i] for i in entries), strict=True)
        of_mean = float(F.normalize(total, dim=-1) @ self.text[label])
        return of_mean, float(np.mean(single)), float(np.mean(entropy)), float(np.mean([t == label for t in truth]))

    def means(self, name: str) -> NDArray[np.float64]:
        """`VALUES` averaged over the classes that have entries."""
        return np.mean(list(self.values[name].values()), axis=0)


def measure(request: Request) -> dict[str, Any]:
    """The figure's numbers: series over the stream, and how each class changed since it was full."""
    adaptation = request.settings.adaptation
    track = Track(request.text, adaptation.M, request.stream.seed)
    rows: dict[str, list[NDArray[np.float64]]] = {name: [] for name in MEMORIES}
    classes: list[int] = []
    full: dict[int, dict[str, float]] = {}
    for met in online(request):
        track.add(met)
        label = int(met.answer.delta.placement.label)
        for name in MEMORIES:
            rows[name].append(track.means(name))
        classes.append(len(track.values["reservoir"]))
        if len(track.entries["everything"][label]) == adaptation.M:
            full[label] = {name: track.values[name][label][0] for name in MEMORIES}
    series = {name: dict(zip(VALUES, np.stack(rows[name]).T, strict=True)) for name in MEMORIES}
    return json_data(
        {
            **request.about(),
            "M": adaptation.M,
            "strategy": adaptation.strategy,
            "images": len(classes),
            "classes_filled": classes,
            "series": series,
            "rise": {name: _rise(name, full, track) for name in MEMORIES},
        }
    )


def _rise(name: str, full: dict[int, dict[str, float]], track: Track) -> dict[str, Any]:
    """How the cosine of a class's mean changed from when the class had M samples to the end, per class."""
    later = [label for label in full if len(track.entries["everything"][label]) > track.size]
    change = [track.values[name][label][0] - full[label][name] for label in later]
    if not change:
        return {"classes": 0, "mean": None, "rising": None}
    return {"classes": len(change), "mean": float(np.mean(change)), "rising": float(np.mean([c > 0 for c in change]))}


_TITLES = {
    "mean_cosine": ("Class means", "cosine with the text"),
    "entry_cosine": ("Single entries", "mean cosine with the text"),
    "entropy": ("Uncertainty of the entries", "mean entropy (nats)"),
    "purity": ("Entries of the right class", "share (%)"),
}
_NAMES = {"reservoir": "reservoir", "random": "random samples, same size", "everything": "all samples so far"}
_STYLES = {"reservoir": "-", "random": "--", "everything": ":"}


def plot_anchors(data: dict[str, Any]) -> Any:
    """The figure from its numbers alone."""
    figure = style.canvas(4.6)
    style.headline(figure, "Stored anchors against the texts of their classes, over the stream")
    steps = np.arange(1, data["images"] + 1)
    for ax, value in zip(figure.subplots(2, 2).flat, VALUES, strict=True):
        factor = 100 if value == "purity" else 1
        for name, colour in zip(MEMORIES, style.SERIES, strict=False):
            heights = factor * np.asarray(data["series"][name][value])
            ax.plot(steps, heights, _STYLES[name], color=colour, linewidth=1.4, label=_NAMES[name])
        title, label = _TITLES[value]
        style.label_axes(ax, title, "images seen", label)
        ax.margins(x=0.01)
        if value == "mean_cosine":
            style.legend(ax, loc="best")
    return figure


def draw(request: Request) -> Drawn:
    """Alignment, entropy and purity of the three memories."""
    data = measure(request)
    return style.add_caption(plot_anchors(data), data, _caption(request, data))


def _caption(request: Request, data: dict[str, Any]) -> str:
    end = {name: data["series"][name]["mean_cosine"][-1] for name in MEMORIES}
    rise = data["rise"]["reservoir"]
    since = (
        f"From when a class had {data['M']} samples to the end its mean moved by {style.signed_label(rise['mean'])} "
        f"({100 * rise['rising']:.0f} % of {rise['classes']} classes rose; random samples "
        f"{style.signed_label(data['rise']['random']['mean'])})."
        if rise["classes"]
        else f"No class had more than {data['M']} samples."
    )
    return (
        f"{request.where()}, {request.method()} online over {data['images']} images, M = {data['M']}, "
        f"strategy {data['strategy']}; "
        f"averages over the classes predicted so far ({data['classes_filled'][-1]} of {data['classes']} at the end). "
        f"Cosine of the class means at the end: reservoir {end['reservoir']:.3f}, random {end['random']:.3f}, all "
        f"{end['everything']:.3f}. {since} The mean of many features lies closer to a text than single ones do, so "
        "compare memories of the same size."
    )
