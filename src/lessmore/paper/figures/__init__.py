"""The paper's figures, drawn for any model and data: `FIGURES[name].draw(request)` gives a figure and its numbers.

One file per figure, with `measure`, which computes its numbers, and `draw`, which plots them. What several figures need
is in `request.py`, `trace.py` and `style.py`. No other room imports matplotlib.
Read `tokens.py` first.
"""

from lessmore.paper.figures import anchors, heads, leave_one_out, ood, theory, theory_plot, tokens
from lessmore.paper.figures.plots import RUN_PLOTS, save_run_plots
from lessmore.paper.figures.request import Drawn, PaperFigure, Request
from lessmore.paper.figures.style import save_figure

FIGURES: dict[str, PaperFigure] = {
    figure.name: figure
    for figure in (
        PaperFigure(
            "leave-one-out",
            "what each patch does to the alignment of image and text (empirical discussion, left)",
            leave_one_out.IMAGES,
            False,
            leave_one_out.draw,
        ),
        PaperFigure(
            "anchor-alignment",
            "stored anchors against the texts of their classes over time (empirical discussion, right)",
            anchors.IMAGES,
            True,
            anchors.draw,
        ),
        PaperFigure(
            "heads",
            "attention of single heads, outliers and rank consensus (overview of cross-head pruning)",
            heads.IMAGES,
            False,
            heads.draw,
        ),
        PaperFigure(
            "tokens",
            "condensed images at blocks 3, 6 and 9 at R = 0.9 and 0.7 (examples of token condensation)",
            tokens.IMAGES,
            False,
            tokens.draw,
        ),
        PaperFigure(
            "ood-samples",
            "images on which adaptation fails (supplement, limitations)",
            ood.IMAGES,
            True,
            ood.draw,
        ),
        PaperFigure(
            "theory",
            "variance of token alignment, Gibbs weights and KL to the prior (supplement, theoretical analysis)",
            theory.IMAGES,
            True,
            theory_plot.draw,
        ),
    )
}
"""By name."""

__all__ = ["FIGURES", "RUN_PLOTS", "Drawn", "PaperFigure", "Request", "save_figure", "save_run_plots"]
