"""What condensation leaves of a few images: pruned patches black, merged ones in the colour of their token."""

from __future__ import annotations

from typing import Any

import numpy as np

from lessmore.core.condense.source import GONE, KEPT, MERGED, PRUNED, SourceMap, source_map
from lessmore.core.encoder import Encoded, encode
from lessmore.core.reservoir import ready_anchors
from lessmore.lab.report.tokens import LEGEND, cluster_colours, token_panels
from lessmore.paper.figures import style
from lessmore.paper.figures.request import Drawn, FigureSample, Request, at_ratio, json_data, reservoir_of, samples

IMAGES = 4
RATIOS = (0.9, 0.7)
_SIDE = 160


def encode_at_ratios(request: Request, shown: list[FigureSample]) -> list[list[Encoded]]:
    """Every image, encoded at every R of `RATIOS`; the outer list is over images.

    Args:
        request: Model and settings.
        shown: The images.
    """
    state = reservoir_of(request)
    anchors = None if state is None else ready_anchors(state, request.settings.adaptation.ready)
    configs = [at_ratio(request.settings.condensation, R) for R in RATIOS]
    return [[encode(request.vlm.vision, one.pixels, config, anchors) for config in configs] for one in shown]


def measure(request: Request, shown: list[FigureSample], encoded: list[list[Encoded]]) -> dict[str, Any]:
    """The figure's numbers: the fate of every patch at every block.

    Args:
        request: Model and settings.
        shown: The images.
        encoded: From `condensed`.
    """
    images = []
    for sample, ratios in zip(shown, encoded, strict=True):
        at = {f"{R:g}": _fates(request, sample, one) for R, one in zip(RATIOS, ratios, strict=True)}
        images.append({"id": sample.id, "class": request.names[sample.label], "R": at})
    return json_data({**request.about(), "R": list(RATIOS), "images": images})


def _fates(request: Request, sample: FigureSample, encoded: Encoded) -> dict[str, Any]:
    trace = source_map(encoded.steps)
    fate, colours = trace.fate[0].cpu().numpy(), cluster_colours(trace)
    cosines = encoded.feature[0] @ request.text.to(encoded.feature.dtype).T
    return {
        "cosine": float(cosines[sample.label]),
        "answer": request.names[int(cosines.argmax())],
        "blocks": [
            {"block": block, "tokens_left": left, **_counts(fate[s]), "fate": fate[s], "colour": colours[s]}
            for s, (block, left) in enumerate(zip(trace.blocks, trace.left[0].tolist(), strict=True))
        ],
    }


def _counts(fate: Any) -> dict[str, int]:
    names = {"kept": KEPT, "merged": MERGED, "pruned": PRUNED, "gone": GONE}
    return {name: int(np.sum(fate == value)) for name, value in names.items()}


def draw(request: Request) -> Drawn:
    """A row for each image: as the tower sees it, then after every condensing block at each R."""
    shown = list(samples(request, IMAGES))
    encoded = encode_at_ratios(request, shown)
    data = measure(request, shown, encoded)
    traces = [[source_map(one.steps) for one in ratios] for ratios in encoded]
    blocks = [b for b in traces[0][0].blocks if b in request.settings.condensation.layers]
    columns = 1 + len(RATIOS) * len(blocks)
    figure = style.canvas(0.7 + len(shown) * ((style.WIDTH - 0.4) / columns + 0.2))
    style.headline(figure, "What condensation leaves of an image, block by block")
    axes = figure.subplots(len(shown), columns, squeeze=False)
    for row, (sample, found) in enumerate(zip(shown, traces, strict=True)):
        _row(axes[row], request.names[sample.label], sample, found, blocks, heading=row == 0)
    return style.add_caption(figure, data, _caption(request, blocks))


def _row(axes: Any, name: str, sample: FigureSample, traces: list[SourceMap], blocks: list[int], heading: bool) -> None:
    patches = traces[0].fate.shape[-1]
    title = "original" if heading else ""
    style.show_picture(axes[0], sample.picture, title, f"{patches} patches", interpolation="antialiased")
    axes[0].set_ylabel(style.wrap_text(name, 15), fontsize=style.NOTE, color=style.INK, parse_math=False)
    place = iter(axes[1:])
    for R, trace in zip(RATIOS, traces, strict=True):
        pictures = dict(zip(trace.blocks, token_panels(sample.picture, trace, _SIDE), strict=True))
        left = dict(zip(trace.blocks, trace.left[0].tolist(), strict=True))
        for block in blocks:
            title = f"R = {R:g}\nblock {block}" if heading else ""
            style.show_picture(next(place), pictures[block], title, f"{left[block]} tokens")


def _caption(request: Request, blocks: list[int]) -> str:
    guided = " Guided by the anchors of the stream's images." if request.settings.condensation.uses_anchor else ""
    return (
        f"{request.where()}, {request.method()}, the first images of the stream, blocks "
        f"{', '.join(map(str, blocks))} counted from 0. "
        f"{LEGEND[0].upper()}{LEGEND[1:]}. R is the share of the patch tokens that survives a block.{guided}"
    )
