"""How single heads see an image where it is first condensed, and what is left of them in one order of the tokens.

An outlier is a patch that one head attends to strongly (at least four times the uniform share) and the others do not:
that head alone gives it more than all others together. A mean over heads lets it pass; a consensus of ranks need not.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lessmore.core.condense.schedule import Stage, schedule
from lessmore.core.encoder import PLAIN
from lessmore.core.reservoir import ready_anchors
from lessmore.core.scoring import head_mean, rank_sum, token_order
from lessmore.paper.figures import style
from lessmore.paper.figures.request import Drawn, FigureSample, Request, json_data, reservoir_of, samples
from lessmore.paper.figures.trace import trace_blocks

IMAGES = 16
STRONG = 4.0
"""Least attention of an outlier, in units of the uniform share 1/n."""
_COLUMNS = 7


class HeadViews(NamedTuple):
    """One image's patches as the heads of one block see them."""

    rows: Tensor
    """Attention per head, `[H, n]`, normalised over the patches."""
    ranks: Tensor
    """Ranks summed over heads, 0 = most attended by all, `[n]` int64."""
    kept: dict[str, Tensor]
    """Which tokens stay by `rank`, by `mean` and by each head alone (`1`…`H`), bool [n]."""

    @property
    def outliers(self) -> Tensor:
        """Where one head outweighs all others, [H, n] bool."""
        others = self.rows.sum(dim=0) - self.rows
        return (self.rows > others) & (self.rows >= STRONG / self.rows.shape[1])


def head_views(rows: Tensor, keep: int) -> HeadViews:
    """What the heads of a block make of one image.

    Args:
        rows: Scores of the patches per head, `[H, n]`.
        keep: How many tokens stay.
    """
    batch = rows.unsqueeze(0)
    orders = {"rank": token_order(batch, "rank")[0], "mean": token_order(batch, "mean")[0]}
    orders |= {str(h + 1): one.argsort(descending=True, stable=True) for h, one in enumerate(rows)}
    kept = {name: _among(order[:keep], rows.shape[1]) for name, order in orders.items()}
    return HeadViews(rows / rows.sum(dim=-1, keepdim=True), rank_sum(batch)[0], kept)


def _among(chosen: Tensor, n: int) -> Tensor:
    return torch.zeros(n, dtype=torch.bool, device=chosen.device).index_fill_(0, chosen, True)


def overlap(a: Tensor, b: Tensor) -> float:
    """Overlap of the tokens that two choices drop, |both drop| / |either drops|; 1 where nothing is dropped.

    Args:
        a: Which tokens one choice keeps, bool `[n]`.
        b: Which the other keeps, bool `[n]`.
    """
    either = int((~a | ~b).sum())
    return int((~a & ~b).sum()) / either if either else 1.0


def first_stage(request: Request) -> tuple[int, Stage]:
    """The first condensing block and its counts."""
    shape, config = request.vlm.vision.shape, request.condensation()
    plan = schedule(shape.patches, shape.blocks.depth, config)
    return next((i, stage) for i, stage in enumerate(plan) if stage is not None)


def look_at_heads(request: Request) -> list[tuple[FigureSample, HeadViews]]:
    """Every image as the heads of the first condensing block see it."""
    block, stage = first_stage(request)
    state = reservoir_of(request)
    anchors = None if state is None else ready_anchors(state, request.settings.adaptation.ready)
    vit, config = request.vlm.vision, request.condensation()
    found = []
    for sample in samples(request):
        rows = trace_blocks(vit, sample.pixels, config, anchors).stations[block].rows[0]
        found.append((sample, head_views(rows, stage.keep)))
    return found


def by_block(request: Request, keep: int) -> dict[str, list[float]]:
    """For every block of the uncondensed tower: how far rank and mean agree, heads agree, and outliers occur.

    Args:
        request: Model, images and settings.
        keep: How many tokens would stay.
    """
    rows: dict[str, list[list[float]]] = {"rank_and_mean": [], "heads": [], "outliers": []}
    for sample in samples(request):
        seen = [head_views(s.rows[0], keep) for s in trace_blocks(request.vlm.vision, sample.pixels, PLAIN).stations]
        rows["rank_and_mean"].append([overlap(one.kept["rank"], one.kept["mean"]) for one in seen])
        rows["heads"].append([_between_heads(one) for one in seen])
        rows["outliers"].append([float(one.outliers.any(dim=0).float().mean()) for one in seen])
    return {name: np.mean(values, axis=0).tolist() for name, values in rows.items()}


def _between_heads(seen: HeadViews) -> float:
    table, H = overlaps(seen), len(seen.rows)
    own = table[2:, 2:]
    return float((own.sum() - np.trace(own)) / max(1, H * (H - 1)))


def overlaps(seen: HeadViews) -> NDArray[np.float64]:
    """`overlap` between all choices, in the order rank, mean, head 1…H: [2 + H, 2 + H]."""
    kept = list(seen.kept.values())
    return np.array([[overlap(a, b) for b in kept] for a in kept])


def measure(request: Request, found: list[tuple[FigureSample, HeadViews]]) -> dict[str, Any]:
    """The figure's numbers.

    Args:
        request: Model, images and settings.
        found: From `look_at_heads`.
    """
    block, stage = first_stage(request)
    sample, first = shown(found)
    outliers = [one.outliers.any(dim=0) for _, one in found]
    lost = [o & one.kept["mean"] & ~one.kept["rank"] for o, (_, one) in zip(outliers, found, strict=True)]
    return json_data(
        {
            **request.about(),
            "images": len(found),
            "block": block,
            "heads": len(first.rows),
            "patches": stage.patches,
            "keep": stage.keep,
            "choices": list(first.kept),
            "overlap": np.mean([overlaps(one) for _, one in found], axis=0),
            "outlier_tokens": float(torch.stack(outliers).double().mean()),
            "outliers_only_mean_keeps": float(torch.stack(lost).double().sum(dim=1).mean()),
            "by_block": by_block(request, stage.keep),
            "shown": {
                "id": sample.id,
                "class": request.names[sample.label],
                "attention": first.rows,
                "outliers": first.outliers.nonzero(),
                "rank": first.ranks / len(first.rows),
                "kept_by_rank": first.kept["rank"].long(),
                "kept_by_mean": first.kept["mean"].long(),
            },
        }
    )


def shown(found: list[tuple[FigureSample, HeadViews]]) -> tuple[FigureSample, HeadViews]:
    """The image with the most outliers; the first of several."""
    return max(found, key=lambda one: int(one[1].outliers.sum()))


def draw(request: Request) -> Drawn:
    """The heads of one image, their consensus, and how often they agree over all images."""
    found = look_at_heads(request)
    data = measure(request, found)
    sample, first = shown(found)
    H = len(first.rows)
    lines = math.ceil((H + 1) / _COLUMNS)
    columns = math.ceil((H + 1) / lines)
    each = style.WIDTH / (columns + 0.5) + 0.2
    figure = style.canvas(lines * each + 4.4)
    style.headline(figure, f"What the heads of block {data['block']} attend to, and what stays by each")
    top, middle, bottom = style.split_rows(figure, (lines * each + 0.3, 1.8, 2.3))
    grid = top.add_gridspec(lines, columns + 1, width_ratios=(*[1.0] * columns, 0.06))
    places = [top.add_subplot(grid[i // columns, i % columns]) for i in range(H + 1)]
    _heads(places, top.add_subplot(grid[:, columns]), sample, first, request.names[sample.label])
    _consensus(middle.subplots(1, 4), sample, first)
    left, bar, right = bottom.subplots(1, 3, width_ratios=(1.0, 0.05, 1.3))
    _matrix(left, bar, data)
    _blocks(right, data)
    return style.add_caption(figure, data, _caption(request, data))


def _map(values: Tensor) -> NDArray[np.float64]:
    side = math.isqrt(len(values))
    return values.double().cpu().numpy().reshape(side, side)


def _heads(axes: list[Any], bar: Any, sample: FigureSample, seen: HeadViews, name: str) -> None:
    style.show_picture(axes[0], sample.picture, style.shorten(name, 20), interpolation="antialiased")
    n, outliers = seen.rows.shape[1], seen.outliers
    side, drawn = math.isqrt(n), None
    for h, ax in enumerate(axes[1:]):
        drawn = style.show_picture(ax, _map(seen.rows[h] * n), f"head {h + 1}", cmap="viridis", vmin=0, vmax=2 * STRONG)
        for i in outliers[h].nonzero().flatten().tolist():
            ax.plot(i % side, i // side, "o", markerfacecolor="none", markeredgecolor="#ff4d4d", markersize=8)
    style.colour_bar(drawn, bar, "attention in\neven shares 1/n", extend="max")


def _consensus(axes: Any, sample: FigureSample, seen: HeadViews) -> None:
    mean = head_mean(seen.rows.unsqueeze(0))[0]
    style.show_picture(axes[0], _map(mean), "head mean", "brighter: more attended", cmap="viridis")
    style.show_picture(axes[1], _map(-seen.ranks), "cross-head rank", "brighter: better mean rank", cmap="viridis")
    for ax, kind, name in ((axes[2], "mean", "head mean"), (axes[3], "rank", "rank")):
        other = "rank" if kind == "mean" else "mean"
        only = int((seen.kept[kind] & ~seen.kept[other]).sum())
        style.show_picture(
            ax, _masked(sample, seen.kept[kind], seen.kept[other]), f"stays by {name}", f"{only} only by this"
        )


def _masked(sample: FigureSample, kept: Tensor, other: Tensor) -> NDArray[np.float64]:
    """The picture, black where a patch does not stay, orange where it stays by this choice only."""
    side = math.isqrt(len(kept))
    cell = math.ceil(160 / side)
    picture = np.asarray(sample.picture.resize((side * cell, side * cell))) / 255
    here, there = (np.kron(_map(mask), np.ones((cell, cell)))[..., None] for mask in (kept, other))
    orange = np.array([0.902, 0.624, 0.0])
    tinted = np.where((here > 0) & (there == 0), 0.3 * picture + 0.7 * orange, picture)
    return tinted * here


def _matrix(ax: Any, bar: Any, data: dict[str, Any]) -> None:
    values = np.asarray(data["overlap"])
    names = ["rank", "mean", *(f"head {h}" for h in data["choices"][2:])]
    drawn = ax.imshow(values, cmap="cividis", vmin=0, vmax=1, aspect="auto")
    style.label_axes(ax, "Same tokens given up", "", "", grid=None)
    ax.set_xticks(range(len(names)), names, rotation=90)
    ax.set_yticks(range(len(names)), names)
    if len(names) <= 8:
        for (i, j), value in np.ndenumerate(values):
            colour = "white" if value < 0.55 else "black"
            ax.text(j, i, f"{value:.2f}", ha="center", va="center", fontsize=style.TICK - 1, color=colour)
    style.colour_bar(drawn, bar, "overlap (1 = the same)")


def _blocks(ax: Any, data: dict[str, Any]) -> None:
    labels = {"rank_and_mean": "overlap of rank and mean", "heads": "overlap of two heads", "outliers": "outliers"}
    for (name, label), colour, marker in zip(labels.items(), style.SERIES, style.MARKERS, strict=False):
        values = 100 * np.asarray(data["by_block"][name])
        ax.plot(range(len(values)), values, color=colour, marker=marker, markersize=3, linewidth=1.2, label=label)
    style.label_axes(ax, "Every block, nothing condensed", "block (from 0)", "%")
    ax.set_ylim(0, 100)
    style.legend(
        ax,
        loc="upper center",
        bbox_to_anchor=(0.5, -0.22),
        ncols=3,
        columnspacing=0.8,
        handletextpad=0.3,
        handlelength=1.5,
    )


def _caption(request: Request, data: dict[str, Any]) -> str:
    agreement = data["overlap"][0][1]
    return (
        f"{request.where()}; {request.attention_words()} at block {data['block']}, the first that condenses; "
        f"{data['keep']} of {data['patches']} patches stay as they are. Red rings: outliers, which one head gives "
        f"{STRONG:g} even shares or more, and more than all other heads together ({100 * data['outlier_tokens']:.1f} % "
        f"of the patches of {data['images']} images). Shown is the image with the most of them; "
        "orange: stays by one of the two only. Overlap: of the tokens that one of two orders gives up, "
        f"the share that both do; rank and head mean agree by {100 * agreement:.0f} %, and on average "
        f"{data['outliers_only_mean_keeps']:.1f} outliers an image stay by the head mean but not by rank."
    )
