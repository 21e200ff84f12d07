"""One look for all figures: light, for print, with colours that colour-blind readers can tell apart."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from lessmore.errors import ConfigError
from lessmore.paper.figures.request import Drawn
from lessmore.storage.files import replacing, write_json

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

SCHEMA = "lessmore.figure/1"
WIDTH = 7.2
"""In inches; two columns of a paper."""
DPI = 150
INK, MUTED, RULE = "#1a1a1a", "#595959", "#d9d9d9"
# Okabe and Ito's colours, the darkest first.
SERIES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DIVERGING, SEQUENTIAL = "RdBu_r", "viridis"
TITLE, LABEL, TICK, NOTE = 9.0, 8.0, 7.0, 7.5
_LINE, _LETTERS = 0.135, 17.6  # of the caption: inches of a line, letters in an inch
_BESIDE = 3  # names in a line of a legend below the figure


def canvas(height: float, width: float = WIDTH) -> Canvas:
    """An empty figure. It does not go through pyplot, so no global state is involved.

    Args:
        height: In inches.
        width: In inches.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("figures need matplotlib; install it with: pip install 'lessmore[report]'") from error
    return Figure(figsize=(width, height), dpi=DPI, facecolor="white", layout="constrained")


def split_rows(figure: Canvas, heights: Sequence[float]) -> list[Any]:
    """A figure divided into parts, one below the other.

    Args:
        figure: The figure.
        heights: Of the parts, in any unit.
    """
    return list(np.ravel(np.asarray(figure.subfigures(len(heights), 1, height_ratios=heights), dtype=object)))


def label_axes(ax: Axes, title: str = "", x: str = "", y: str = "", grid: str | None = "y") -> None:
    """Give a plot its title, labels and grid lines.

    Args:
        ax: The plot.
        title: Above it.
        x: Label of the horizontal axis.
        y: Label of the vertical axis.
        grid: Lines along which axis: `x`, `y`, `both` or None.
    """
    ax.set_title(title, fontsize=TITLE, color=INK, loc="left", parse_math=False)
    ax.set_xlabel(x, fontsize=LABEL, color=INK)
    ax.set_ylabel(y, fontsize=LABEL, color=INK)
    ax.tick_params(labelsize=TICK, colors=MUTED, length=2.5)
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(MUTED)
    ax.set_axisbelow(True)
    if grid in ("x", "y", "both"):
        ax.grid(axis=grid, color=RULE, linewidth=0.6)  # type: ignore[arg-type]


def legend(ax: Axes, **more: Any) -> None:
    """Add a legend without a box, if there is anything to tell apart.

    Args:
        ax: The plot.
        **more: For `Axes.legend`.
    """
    if ax.get_legend_handles_labels()[0]:
        ax.legend(fontsize=TICK, frameon=False, **more)


def show_picture(
    ax: Axes, picture: Image.Image | np.ndarray[Any, Any], title: str = "", below: str = "", **more: Any
) -> Any:
    """Show a picture or a map without axes.

    Args:
        ax: The plot.
        picture: An image, or values `[h, w]`.
        title: Above it.
        below: Below it.
        **more: For `Axes.imshow`.

    Returns:
        What `colour_bar` needs.
    """
    drawn = ax.imshow(np.asarray(picture), **{"interpolation": "nearest", **more})
    ax.set_xticks([])
    ax.set_yticks([])
    ax.spines[:].set_visible(False)
    ax.set_title(title, fontsize=NOTE, color=INK, parse_math=False)
    ax.set_xlabel(below, fontsize=TICK, color=INK, parse_math=False)
    return drawn


def colour_bar(mappable: Any, ax: Axes, label: str, **more: Any) -> None:
    """Put a colour bar in the place of an empty plot.

    Args:
        mappable: What `show_picture` returned.
        ax: The empty plot.
        label: What the colours mean.
        **more: For `Figure.colorbar`.
    """
    bar = ax.figure.colorbar(mappable, cax=ax, **more)
    bar.set_label(label, fontsize=TICK, color=INK)
    bar.ax.tick_params(labelsize=TICK, colors=MUTED, length=2)
    bar.outline.set_visible(False)


def headline(figure: Canvas, text: str) -> None:
    """Write a title above the whole figure.

    Args:
        figure: The figure.
        text: The title.
    """
    figure.suptitle(text, fontsize=TITLE + 1.5, color=INK, x=0.01, ha="left", parse_math=False)


def signed_label(value: float, digits: int = 3) -> str:
    """A number with its sign, and a typographic minus.

    Args:
        value: The number.
        digits: After the decimal point.
    """
    return f"{value:+.{digits}f}".replace("-", "−")


def shorten(text: str, most: int) -> str:
    """A text, cut where it is too long for its place.

    Args:
        text: The text.
        most: Letters that fit.
    """
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"


def wrap_text(text: str, width: int, lines: int = 2) -> str:
    """A text in a few short lines.

    Args:
        text: The text.
        width: Letters per line.
        lines: Lines at most; the rest is cut.
    """
    return "\n".join(textwrap.wrap(text, width, max_lines=lines, placeholder="…"))


def add_caption(
    figure: Canvas, data: Mapping[str, Any], caption: str, legend: Mapping[str, Any] | None = None
) -> Drawn:
    """Write a legend and the caption below the figure, which grows accordingly.

    Args:
        figure: The figure.
        data: Its numbers.
        caption: Wrapped to the figure's width.
        legend: Names and the artists they stand for; None for no common legend.
    """
    width, height = figure.get_size_inches()
    lines = textwrap.wrap(caption, int(width * _LETTERS))
    names = -(-len(legend or {}) // _BESIDE) * 1.2 * _LINE
    total = height + _LINE * (len(lines) + 1) + names
    figure.set_size_inches(width, total)
    engine = figure.get_layout_engine()
    assert engine is not None
    share = 1 - height / total  # of the taller figure, for legend and caption; the plots keep their size
    engine.set(rect=(0, share, 1, 1 - share))  # type: ignore[call-arg]
    if legend:
        place: dict[str, Any] = {
            "loc": "upper left",
            "bbox_to_anchor": (0, share),
            "borderaxespad": 0.0,
            "ncols": _BESIDE,
        }
        figure.legend(list(legend.values()), list(legend), fontsize=TICK, frameon=False, **place).set_in_layout(False)
    top = share - (names + 0.07) / total
    figure.text(0.01, top, "\n".join(lines), fontsize=NOTE, color=MUTED, va="top", parse_math=False)
    return Drawn(figure, dict(data), caption)


def save_figure(drawn: Drawn, folder: Path, name: str) -> list[Path]:
    """Write `name`.png, .svg and .json, each atomically.

    Args:
        drawn: The figure.
        folder: Where the files go.
        name: Of the files, without an ending.

    Returns:
        The files.
    """
    paths = [folder / f"{name}.{ending}" for ending in ("png", "svg", "json")]
    for path in paths[:2]:
        with replacing(path) as new:
            _write(drawn, new, path.suffix[1:], name)
    content = {"schema": SCHEMA, "figure": name, "caption": drawn.caption, "data": drawn.data}
    write_json(paths[2], content)
    return paths


def _write(drawn: Drawn, path: Path, kind: str, name: str) -> None:
    import matplotlib

    facts = {"Title": name, "Description": drawn.caption}
    if kind == "svg":
        facts["Date"] = None  # type: ignore[assignment]
    # Names inside an SVG are drawn at random unless salted; matplotlib takes the salt from its settings only.
    with matplotlib.rc_context({"svg.hashsalt": name}):
        drawn.figure.savefig(path, format=kind, metadata=facts)
