"""What each patch does to the alignment: the image is encoded repeatedly, each time without one patch token."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from lessmore.core.encoder import PLAIN
from lessmore.core.scoring import head_mean
from lessmore.core.vit import ViT
from lessmore.paper.figures import style
from lessmore.paper.figures.request import Drawn, FigureSample, Request, json_data, samples
from lessmore.paper.figures.trace import trace_blocks

IMAGES = 6
SHOWN = 4
_TOGETHER = 64  # passes at a time
_BINS = 10
_COLD, _WARM = "#2166AC", "#B2182B"  # the ends of the diverging scale
CLEAR = 1e-3
"""Least change of the cosine that counts as clear."""


class RemovalEffect(NamedTuple):
    """One image."""

    whole: float
    """Cosine of its feature with the text of its class."""
    change: NDArray[np.float64]
    """Cosine without a patch token minus `whole`, [n]: positive where its removal helps."""
    attention: NDArray[np.float64]
    """Attention of each patch, averaged over heads and condensing blocks, [n]."""


@torch.no_grad()
def cosines_without(vit: ViT, pixels: Tensor, text: Tensor) -> tuple[Tensor, Tensor]:
    """cos(feature, text) with all tokens, `[]`, and without each patch token, `[n]`.

    A token is removed, with its position, before the first block.

    Args:
        vit: The vision tower.
        pixels: One image, `[1, 3, H, W]`.
        text: L2-normalised, `[E]`.
    """
    tokens = vit.embed(pixels)[0]
    first, n = vit.shape.first, vit.shape.patches
    at = torch.arange(len(tokens), device=tokens.device)
    others = torch.stack([at[at != first + i] for i in range(n)])
    found = [_cosine(vit, tokens, at.unsqueeze(0), text)]
    found += [_cosine(vit, tokens, rows, text) for rows in others.split(_TOGETHER)]
    cosines = torch.cat(found)
    return cosines[0], cosines[1:]


def _cosine(vit: ViT, tokens: Tensor, rows: Tensor, text: Tensor) -> Tensor:
    """Some rows [B, N] of the tokens [N', D] through all blocks → [B]."""
    x, places = tokens[rows], vit.places()
    places = None if places is None else places.moved(places.at[0, rows])
    for block in vit.blocks:
        x = block(x, places=places)
    feature = vit.pool(x)
    wide = torch.promote_types(feature.dtype, torch.float32)
    return F.normalize(feature.to(wide), dim=-1) @ text.to(wide)


def removal_effect(request: Request, sample: FigureSample) -> RemovalEffect:
    """The effect of leaving out each patch of one image.

    Args:
        request: Model and texts.
        sample: The image.
    """
    vit = request.vlm.vision
    whole, without = cosines_without(vit, sample.pixels, request.text[sample.label])
    stations = trace_blocks(vit, sample.pixels, PLAIN).stations
    layers = [i for i in request.settings.condensation.layers if i < len(stations)] or [len(stations) - 1]
    attention = torch.stack([head_mean(stations[i].rows)[0] for i in layers]).mean(dim=0)
    return RemovalEffect(float(whole), _array(without - whole), _array(attention))


def _array(values: Tensor) -> NDArray[np.float64]:
    return values.double().cpu().numpy()


def rank_places(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Each value's rank from 0 (lowest) to 1 (highest), `[n]`; of equal values the first ranks lower."""
    place = np.empty(len(values))
    place[np.argsort(values, kind="stable")] = np.arange(len(values))
    return place / max(1, len(values) - 1)


def correlation(effect: RemovalEffect) -> float:
    """Spearman's correlation of attention and change: negative if removing the less attended tokens helps more."""
    return float(np.corrcoef(rank_places(effect.attention), rank_places(effect.change))[0, 1])


def measure(request: Request, seen: list[tuple[FigureSample, RemovalEffect]]) -> dict[str, Any]:
    """The figure's numbers.

    Args:
        request: What the figure is of.
        seen: Images with their effects.
    """
    images = [
        {
            "id": sample.id,
            "class": request.names[sample.label],
            "cosine": found.whole,
            "helps": float((found.change > 0).mean()),
            "clearly_helps": float((found.change > CLEAR).mean()),
            "clearly_hurts": float((found.change < -CLEAR).mean()),
            "best": float(found.change.max()),
            "worst": float(found.change.min()),
            "correlation_with_attention": correlation(found),
            "change": found.change,
            "attention": found.attention,
        }
        for sample, found in seen
    ]
    tenth, change = _by_attention([found for _, found in seen])
    summary = {
        "images": len(images),
        "tokens": sum(len(found.change) for _, found in seen),
        **{name: float(np.mean([image[name] for image in images])) for name in _SHARES},
        "attention_bins": tenth,
        "change_by_attention": change,
    }
    return json_data({**request.about(), "summary": summary, "per_image": images})


_SHARES = ("helps", "clearly_helps", "clearly_hurts", "correlation_with_attention")


def _by_attention(effects: list[RemovalEffect]) -> tuple[NDArray[np.float64], list[float]]:
    """Mean change of the patches in each tenth of the attention ranking: the tenths' centres, and the means."""
    place = np.concatenate([rank_places(found.attention) for found in effects])
    change = np.concatenate([found.change for found in effects])
    bins = np.minimum((place * _BINS).astype(int), _BINS - 1)
    means = [float(change[bins == b].mean()) if (bins == b).any() else math.nan for b in range(_BINS)]
    return (np.arange(_BINS) + 0.5) / _BINS, means


def draw(request: Request) -> Drawn:
    """Maps of the first images, and statistics of all."""
    seen = [(sample, removal_effect(request, sample)) for sample in samples(request)]
    data = measure(request, seen)
    figure = style.canvas(6.9)
    style.headline(figure, "Does the image match its text better without a patch?")
    top, bottom = style.split_rows(figure, (4.6, 2.4))
    _maps(top, request, seen[:SHOWN])
    left, right = bottom.subplots(1, 2)
    _histogram(left, np.concatenate([found.change for _, found in seen]), data["summary"])
    _scatter(right, [found for _, found in seen], data["summary"])
    return style.add_caption(figure, data, _caption(request, data["summary"]))


def _maps(part: Any, request: Request, seen: list[tuple[FigureSample, RemovalEffect]]) -> None:
    """Picture, change and attention, a column for each image."""
    grid = part.subplots(3, SHOWN + 1, squeeze=False, width_ratios=(*[1.0] * SHOWN, 0.06))
    axes, bars = grid[:, :SHOWN], grid[:, SHOWN]
    strongest = _reach(np.concatenate([found.change for _, found in seen]), 0.95)
    change = attention = None
    for column, (sample, found) in zip(axes.T, seen, strict=False):
        name = style.shorten(request.names[sample.label], 24)
        style.show_picture(column[0], sample.picture, name, f"cosine {found.whole:.3f}", interpolation="antialiased")
        helped = f"{100 * (found.change > 0).mean():.0f} % better removed"
        scaled = _grid(1e3 * found.change)
        change = style.show_picture(
            column[1], scaled, below=helped, cmap=style.DIVERGING, vmin=-1e3 * strongest, vmax=1e3 * strongest
        )
        attention = style.show_picture(column[2], _grid(rank_places(found.attention)), cmap="inferno", vmin=0, vmax=1)
    for ax in (*axes[:, len(seen) :].flat, bars[0]):
        ax.set_visible(False)
    style.colour_bar(change, bars[1], "cosine without minus\nwith it (×10⁻³)", extend="both")
    style.colour_bar(attention, bars[2], "place by attention\n(1 = highest)")


def _reach(change: NDArray[np.float64], share: float) -> float:
    """Bound within which that share of the changes lies."""
    return float(np.quantile(np.abs(change), share)) or 1.0


def _grid(values: NDArray[np.float64]) -> NDArray[np.float64]:
    side = math.isqrt(len(values))
    return values.reshape(side, side)


def _histogram(ax: Any, change: NDArray[np.float64], summary: dict[str, Any]) -> None:
    reach = 1e3 * _reach(change, 0.98)
    scaled, edges = (1e3 * change).clip(-reach, reach), np.linspace(-reach, reach, 41)
    for side, colour, name in ((change <= 0, _COLD, "hurts"), (change > 0, _WARM, "helps")):
        clear = summary[f"clearly_{name}"]
        label = f"removal {name}: {100 * side.mean():.0f} %\n(by over 0.001: {100 * clear:.0f} %)"
        ax.hist(scaled[side], edges, color=colour, label=label)
    ax.axvline(0, color=style.INK, linewidth=0.8)
    style.label_axes(ax, "All patches of all images", "cosine without the patch minus with it (×10⁻³)", "patches")
    style.legend(ax, loc="upper left")


def _scatter(ax: Any, effects: list[RemovalEffect], summary: dict[str, Any]) -> None:
    for found in effects:
        place = rank_places(found.attention)
        ax.scatter(place, 1e3 * found.change, s=4, c=place, cmap="inferno", vmin=0, vmax=1.1, alpha=0.5, linewidths=0)
    means = 1e3 * np.asarray(summary["change_by_attention"], dtype=float)
    ax.plot(summary["attention_bins"], means, color=style.INK, marker="o", markersize=3)
    ax.axhline(0, color=style.MUTED, linewidth=0.8)
    reach = 1.1e3 * _reach(np.concatenate([found.change for found in effects]), 0.98)
    ax.set_ylim(-reach, reach)
    title = f"By attention (rank correlation {style.signed_label(summary['correlation_with_attention'], 2)})"
    style.label_axes(ax, title, "place by attention (1 = most attended)", "change of cosine (×10⁻³)")


def _caption(request: Request, summary: dict[str, Any]) -> str:
    return (
        f"{request.where()}, {summary['images']} images, nothing condensed. Each patch token is taken out before the "
        "first block, and the cosine of the image's feature with the text of its true class is compared with that of "
        f"the whole image; red: removal brings the image closer to its text. Removal helps for "
        f"{100 * summary['helps']:.0f} % of the patches, by more than 0.001 for {100 * summary['clearly_helps']:.0f} % "
        f"(hurts: {100 * summary['clearly_hurts']:.0f} %). Attention is the {request.attention_words()}, averaged over "
        "heads and the condensing blocks; dots are patches, the line is the mean of each tenth."
    )
