"""Pictures of condensed tokens: the image as the tower saw it, then what each condensing block left of it.

Pruned patches turn black with grey lines and stay so, kept ones do not change, merged ones take the colour of their
token: patches of one token share a colour, and a token keeps its colour from block to block.
"""

from __future__ import annotations

import base64
import functools
import io
import math
import unicodedata
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from lessmore.adapter import Adapter
from lessmore.core.condense.source import GONE, MERGED, PRUNED, SourceMap
from lessmore.errors import ConfigError
from lessmore.models.preprocess import Preprocess
from lessmore.models.vlm import VLM
from lessmore.prediction import Prediction

# Okabe and Ito's colours first, told apart by colour-blind readers too; then five of Tol's for long traces.
PALETTE = (
    (230, 159, 0),
    (0, 114, 178),
    (204, 121, 167),
    (0, 158, 115),
    (240, 228, 66),
    (213, 94, 0),
    (86, 180, 233),
    (136, 34, 85),
    (153, 153, 51),
    (68, 170, 153),
    (51, 34, 136),
    (221, 221, 221),
)
TINT = 0.6
"""Weight of a token's colour over the picture."""
PANEL_SIDE = 192
"""The longer side of a panel has at least as many pixels."""
LEGEND = "black with lines: pruned; coloured: merged, one colour per token; otherwise kept"

_GAP, _LINE, _SIZE = 8, 20, 14
_ACROSS = 6  # panels in a line
_FONTS = ("DejaVuSans.ttf", "NotoSans-Regular.ttf", "Arial.ttf", "arial.ttf")

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


def as_picture(image: Image.Image | Tensor) -> Image.Image:
    """A Pillow RGB image from one, or from a tensor [3, H, W]: uint8, or float in 0…1."""
    if isinstance(image, Image.Image):
        return image.convert("RGB")
    pixels = image.detach().cpu()
    if pixels.is_floating_point():
        pixels = (pixels.clamp(0, 1) * 255).round().to(torch.uint8)
    return Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())


def as_seen(image: Image.Image, vlm: VLM) -> Image.Image:
    """What the tower sees of an image: a square, or with images of any shape all of it.

    Args:
        image: RGB, of any size.
        vlm: Its preprocessing cuts and resizes. With a preprocessing that is not ours, contrast is stretched to 0…1.
    """
    if isinstance(vlm.preprocess, Preprocess):
        return Image.fromarray(vlm.preprocess.resize(image))
    pixels = vlm.preprocess(image).float()  # somebody else's function: its mean and spread are not known
    low, high = pixels.amin(), pixels.amax()
    return as_picture((pixels - low) / (high - low).clamp_min(1e-6))


def cluster_colours(trace: SourceMap, row: int = 0) -> NDArray[np.int64]:
    """Number of the colour of every patch after every block, `[S, n]`; −1 where it was never merged or is gone.

    A token merged from coloured ones takes the lowest of their numbers.

    Args:
        trace: What the condensing blocks did.
        row: Number of the image in the batch.
    """
    fate, token = trace.fate[row].cpu().numpy(), trace.token[row].cpu().numpy()
    colours = np.full(token.shape, -1, dtype=np.int64)
    now, used = np.full(token.shape[1], -1, dtype=np.int64), 0
    for s in range(len(token)):
        now = np.where(token[s] >= 0, now, -1)
        for merged in np.unique(token[s][fate[s] == MERGED]):
            members = token[s] == merged
            old = now[members & (now >= 0)]
            now[members] = old.min() if len(old) else used
            used += not len(old)
        colours[s] = now
    return colours


def token_panels(
    image: Image.Image | Tensor, trace: SourceMap, side: int = PANEL_SIDE, row: int = 0
) -> list[Image.Image]:
    """One picture per condensing block.

    Args:
        image: What the tower saw of it, a square for most models.
        trace: What the condensing blocks did.
        side: Longer side in pixels; rounded up to a multiple of the grid of patches.
        row: Number of the image in the batch.
    """
    columns = _columns(image, trace.fate.shape[-1])
    picture = _whole_cells(image, trace.fate.shape[-1], side)
    return [
        _paint(picture, trace.fate[row, s].cpu().numpy(), colours, columns)
        for s, colours in enumerate(cluster_colours(trace, row))
    ]


def _columns(image: Image.Image | Tensor, patches: int) -> int:
    """How many of the patches lie side by side in a picture; they are squares."""
    picture = as_picture(image)
    columns = round(math.sqrt(patches * picture.width / picture.height))
    rows = patches // max(columns, 1)
    if rows * columns != patches or rows * picture.width != columns * picture.height:
        size = f"{picture.width} x {picture.height}"
        raise ConfigError(f"{patches} patches do not fill a picture of {size}; give what the model saw (as_seen)")
    return columns


def _whole_cells(image: Image.Image | Tensor, patches: int, side: int) -> Image.Image:
    """The picture resized so that every patch is a whole number of pixels wide."""
    picture, columns = as_picture(image), _columns(image, patches)
    cell = math.ceil(side / max(columns, patches // columns))
    width, height = columns * cell, patches // columns * cell
    resample = Image.Resampling.NEAREST if width % picture.width == 0 else Image.Resampling.BICUBIC
    return picture.resize((width, height), resample)


def _paint(picture: Image.Image, fate: NDArray[Any], colours: NDArray[np.int64], grid: int) -> Image.Image:
    """Blacken what is pruned or gone and tint what is merged; fate and colours are [n], rows of `grid` patches."""
    cell = picture.width // grid
    pixels = np.asarray(picture).copy()
    for patch, (end, colour) in enumerate(zip(fate, colours, strict=True)):
        top, left = patch // grid * cell, patch % grid * cell
        place = (slice(top, top + cell), slice(left, left + cell))
        if end in (PRUNED, GONE):
            pixels[place] = hatched(cell)
        elif colour >= 0:
            tint = np.asarray(PALETTE[colour % len(PALETTE)])
            pixels[place] = np.rint(pixels[place] * (1 - TINT) + tint * TINT)
    return Image.fromarray(pixels)


@functools.cache
def hatched(side: int, width: int = 1) -> NDArray[np.uint8]:
    """A black square with grey diagonals, which no dark object looks like, `[side, side, 3]`.

    Args:
        side: In pixels.
        width: Of a diagonal, in pixels.
    """
    rows, columns = np.indices((side, side))
    lines = (rows + columns) // width % 6 == 0
    return np.repeat(np.where(lines, 120, 0).astype(np.uint8)[..., None], 3, axis=2)


def token_strip(image: Image.Image | Tensor, trace: SourceMap | None, line: str = "", row: int = 0) -> Image.Image:
    """The original and its panels side by side, six to a line, with captions.

    Args:
        image: What the tower saw of it, a square for most models.
        trace: What the condensing blocks did; None where nothing was condensed.
        line: A line of text below, such as `answers_line`.
        row: Number of the image in the batch.
    """
    if trace is None:
        picture = as_picture(image)
        width, height = (max(1, round(PANEL_SIDE * length / max(picture.size))) for length in picture.size)
        pictures = [picture.resize((width, height), Image.Resampling.BICUBIC)]
        captions = ["original, nothing condensed"]
    else:
        patches = trace.fate.shape[-1]
        pictures = [_whole_cells(image, patches, PANEL_SIDE), *token_panels(image, trace, row=row)]
        captions = [f"original: {patches} patches"]
        captions += [f"block {b}: {n} tokens left" for b, n in zip(trace.blocks, trace.left[row].tolist(), strict=True)]
    return _mount(pictures, captions, [line, "" if trace is None else LEGEND])


def _mount(pictures: list[Image.Image], captions: list[str], lines: list[str]) -> Image.Image:
    font, side, tall = _font(), max(PANEL_SIDE, pictures[0].width), pictures[0].height
    lines = [_drawable(text, font) for text in lines if text]
    across = min(_ACROSS, len(pictures))
    widest = max([across * (side + _GAP) - _GAP, *(math.ceil(font.getlength(text)) for text in lines)])
    below = math.ceil(len(pictures) / _ACROSS) * (tall + _LINE + _GAP) + _GAP
    height = below + _LINE * len(lines) + _GAP
    sheet = Image.new("RGB", (widest + 2 * _GAP, height), "white")
    draw = ImageDraw.Draw(sheet)
    for i, (picture, caption) in enumerate(zip(pictures, captions, strict=True)):
        left, top = _GAP + i % _ACROSS * (side + _GAP), _GAP + i // _ACROSS * (tall + _LINE + _GAP)
        sheet.paste(picture, (left, top))
        draw.text((left, top + tall + 4), _drawable(caption, font), fill=(60, 60, 60), font=font)
    for i, text in enumerate(lines):
        fill = (110, 110, 110) if text == LEGEND else (0, 0, 0)
        draw.text((_GAP, below + _LINE * i), text, fill=fill, font=font)
    return sheet


@functools.cache
def _font() -> Font:
    """A font of this machine with many letters, or Pillow's own, which has ASCII."""
    for name in _FONTS:
        try:
            return ImageFont.truetype(name, _SIZE)
        except OSError:
            continue
    return ImageFont.load_default(_SIZE)


def _drawable(text: str, font: Font) -> str:
    """The text, or its nearest ASCII where the font is Pillow's own."""
    text = text if len(text) <= 160 else f"{text[:157]}..."
    if isinstance(font, ImageFont.FreeTypeFont) and font.getname()[0] != "Aileron":
        return text
    plain = unicodedata.normalize("NFKD", text.replace("→", "->"))
    return "".join(c for c in plain if not unicodedata.combining(c)).encode("ascii", "replace").decode()


def answers_line(classes: Sequence[str], prediction: Prediction) -> str:
    """`before: LABEL p → after: LABEL p`.

    Args:
        classes: Their names.
        prediction: The answer.
    """
    first = int(prediction.zero_shot_scores.argmax())
    before, after = float(prediction.zero_shot_scores[first]), float(prediction.scores[prediction.index])
    return f"before: {classes[first]} {before:.2f} → after: {prediction.label} {after:.2f}"


def prediction_strip(adapter: Adapter, image: Image.Image, prediction: Prediction) -> Image.Image:
    """The strip of a prediction.

    Args:
        adapter: Gives preprocessing and class names.
        image: The image that was predicted, of any size.
        prediction: Made with `trace=True`.
    """
    return token_strip(as_seen(image, adapter.vlm), prediction.trace, answers_line(adapter.classes, prediction))


def png(picture: Image.Image) -> bytes:
    """The picture as a PNG file."""
    file = io.BytesIO()
    picture.save(file, "PNG", optimize=True)
    return file.getvalue()


def data_uri(picture: Image.Image) -> str:
    """The picture as a PNG data URI, for pages that load nothing."""
    return "data:image/png;base64," + base64.b64encode(png(picture)).decode()


def jpeg_uri(picture: Image.Image, side: int) -> str:
    """The picture as a JPEG data URI, about a tenth of the size of a PNG.

    Args:
        picture: Any mode.
        side: Longest side in pixels.
    """
    file = io.BytesIO()
    picture = picture.convert("RGB")
    picture.thumbnail((side, side))
    picture.save(file, "JPEG", quality=82, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode()
