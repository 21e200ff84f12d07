"""The paper's figures, drawn of any model and data: `FIGURES[name].draw(request)` gives a figure and its numbers."""

from lessmore.paper.figures import anchors, heads, leave_one_out, ood, theory, theory_plot, tokens
from lessmore.paper.figures.plots import RUN_PLOTS, save_run_plots
from lessmore.paper.figures.request import Drawn, Figure, Request
from lessmore.paper.figures.style import save

FIGURES: dict[str, Figure] = {
    figure.name: figure
    for figure in (
        Figure(
            "leave-one-out",
            "what each patch does to the alignment of image and text (empirical discussion, left)",
            leave_one_out.IMAGES,
            False,
            leave_one_out.draw,
        ),
        Figure(
            "anchor-alignment",
            "stored anchors against the texts of their classes over time (empirical discussion, right)",
            anchors.IMAGES,
            True,
            anchors.draw,
        ),
        Figure(
            "heads",
            "attention of single heads, outliers and rank consensus (overview of cross-head pruning)",
            heads.IMAGES,
            False,
            heads.draw,
        ),
        Figure(
            "tokens",
            "condensed images at blocks 3, 6 and 9 at R = 0.9 and 0.7 (examples of token condensation)",
            tokens.IMAGES,
            False,
            tokens.draw,
        ),
        Figure(
            "ood-samples",
            "images on which adaptation fails (supplement, limitations)",
            ood.IMAGES,
            True,
            ood.draw,
        ),
        Figure(
            "theory",
            "variance of token alignment, Gibbs weights and KL to the prior (supplement, theoretical analysis)",
            theory.IMAGES,
            True,
            theory_plot.draw,
        ),
    )
}
"""By name."""

__all__ = ["FIGURES", "RUN_PLOTS", "Drawn", "Figure", "Request", "save", "save_run_plots"]
