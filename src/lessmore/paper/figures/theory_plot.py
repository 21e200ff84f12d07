"""The figure of `lessmore.paper.figures.theory`, from its numbers alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from lessmore.paper.figures import style
from lessmore.paper.figures.request import Drawn, Request
from lessmore.paper.figures.theory import measure

_GROUPS = {
    "all": "all tokens",
    "kept": "kept",
    "merged": "merged",
    "pruned": "pruned",
    "random": "random, as many as kept",
}
_COLOURS = dict(zip(("kept", "pruned", "merged", "random", "all"), (*style.SERIES[:4], style.MUTED), strict=True))


def draw(request: Request) -> Drawn:
    """Variance, Gibbs weights, KL and the bound."""
    data = measure(request)
    return style.add_caption(plot_theory(data), data, _caption(request, data))


def plot_theory(data: dict[str, Any]) -> Any:
    """Four panels."""
    figure = style.canvas(5.4)
    style.headline(figure, "The PAC-Bayes argument, measured")
    (first, second), (third, fourth) = figure.subplots(2, 2)
    _grouped(first, data, "variance", "Variance over tokens of cos(token, text)", "variance (×10⁻³)", 1e3)
    style.legend(first, ncols=2, loc="best")
    _weights(second, data)
    if data["bound"]:
        _grouped(third, data, "kl", "Distance of a selection from the reservoir's prior", "KL (nats)")
        _sides(fourth, data["bound"])
    else:
        for ax in (third, fourth):
            ax.axis("off")
            ax.text(0.05, 0.5, "no image met a filled reservoir;\ngive more images", fontsize=style.LABEL)
    return figure


def _grouped(ax: Any, data: dict[str, Any], part: str, title: str, label: str, unit: float = 1.0) -> None:
    """A group of points for every condensing block, with 95 % intervals."""
    blocks = [(name, values[part]) for name, values in data["blocks"].items() if values[part]]
    names = [name for name in _GROUPS if any(name in values for _, values in blocks)]
    for j, name in enumerate(names):
        at = [(i + (j - (len(names) - 1) / 2) * 0.13, v[name]) for i, (_, v) in enumerate(blocks) if name in v]
        x, found = zip(*at, strict=True)
        ax.errorbar(
            x,
            [unit * v["mean"] for v in found],
            yerr=[unit * v["half"] for v in found],
            fmt=style.MARKERS[j],
            color=_COLOURS[name],
            markersize=4,
            linewidth=1,
            capsize=2,
            label=_GROUPS[name],
        )
    style.label_axes(ax, title, "condensing block", label)
    ax.set_xticks(range(len(blocks)), [name for name, _ in blocks])
    ax.set_xlim(-0.6, len(blocks) - 0.4)
    low, high = ax.get_ylim()
    ax.set_ylim(low, high + 0.3 * (high - low) if part == "variance" else high)


def _weights(ax: Any, data: dict[str, Any]) -> None:
    for (block, values), colour, marker in zip(
        data["blocks"].items(), style.SERIES * 4, style.MARKERS * 4, strict=False
    ):
        lams = [float(lam) for lam in values["gibbs"]]
        heights = [v["mean"] / np.log(10) for v in values["gibbs"].values()]
        ax.plot(lams, heights, color=colour, marker=marker, markersize=4, linewidth=1.2, label=f"block {block}")
    ax.axhline(0, color=style.MUTED, linewidth=0.8)
    ax.set_xscale("log")
    ax.set_yscale("symlog", linthresh=0.1)
    style.label_axes(ax, "Gibbs weight of the kept tokens", "λ (inverse temperature)", "log₁₀ of weight over chance")
    style.legend(ax)


def _sides(ax: Any, bound: dict[str, Any]) -> None:
    base = bound["right_without_root"]
    rows = {
        "left side\n(kept tokens)": (bound["left"], 0.0),
        "right side\nas printed": (base, bound["root_as_printed"]),
        f"right side with\n1/m, m = {bound['m']}": (base, bound["root_with_1_over_m"]),
    }
    for y, (term, root) in enumerate(rows.values()):
        ax.barh(y, term, color=style.SERIES[0], height=0.5, label="−cos" if y == 0 else None)
        ax.barh(y, root, left=term, color=style.SERIES[4], height=0.5, label="root term" if y == 1 else None)
        ax.text(
            max(0.0, term + root) + 0.04, y, f"{term + root:.2f}".replace("-", "−"), va="center", fontsize=style.TICK
        )
    ax.axvline(1, color=style.SERIES[1], linewidth=1, linestyle="--", label="−cos is never more")
    ax.set_yticks(range(len(rows)), list(rows))
    ax.invert_yaxis()
    style.label_axes(ax, "The two sides of the bound", "−cosine", "", grid="x")
    ax.set_xlim(min(-0.3, base - 0.1), max(1.5, base + bound["root_as_printed"] + 0.6))
    style.legend(ax, loc="upper right")


_WORDS = {True: "met", False: "not met", None: "cannot be measured"}


def _caption(request: Request, data: dict[str, Any]) -> str:
    needs = "; ".join(
        f"({i}) {a['needs']}: {a['found']} — {_WORDS[a['met']]}" for i, a in enumerate(data["assumptions"], 1)
    )
    return (
        f"{request.where()}, {request.method()} online over {data['images']} images; text of the true class; "
        "95 % intervals over "
        f"images. A token's cosine is that of the token alone through the tower's pooling and projection; the prior is "
        "what the nearest class anchor attends to, from the reservoir before the image; chance: "
        f"{data['draws']} random selections of the same size. What the argument needs: {needs}."
    )
