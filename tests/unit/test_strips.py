"""Pictures of condensed tokens, pixel by pixel."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest
import torch
from PIL import Image

from lessmore import adapt
from lessmore.core.condense.source import GONE, KEPT, MERGED, PRUNED, SourceMap
from lessmore.errors import ConfigError
from lessmore.lab.report import tokens
from tests.random_towers import make_images, make_vlm

# Nine patches, two blocks. First block: 0 pruned, 1 + 2 merged, 3 + 4 merged, the rest kept.
# Second block: 5 pruned, the token of 3 + 4 merged with 6, and 7 + 8 merged.
TRACE = SourceMap(
    blocks=(1, 3),
    fate=torch.tensor(
        [
            [
                [PRUNED, MERGED, MERGED, MERGED, MERGED, KEPT, KEPT, KEPT, KEPT],
                [GONE, KEPT, KEPT, MERGED, MERGED, PRUNED, MERGED, MERGED, MERGED],
            ]
        ]
    ),
    token=torch.tensor([[[-1, 4, 4, 5, 5, 0, 1, 2, 3], [-1, 0, 0, 1, 1, -1, 1, 2, 2]]]),
    centre=torch.tensor([[[-1, 0, 0, 1, 1, -1, -1, -1, -1], [-1, -1, -1, 0, 0, -1, 0, 1, 1]]]),
    left=torch.tensor([[6, 3]]),
)


@pytest.fixture
def picture() -> Image.Image:
    """12 x 12 random pixels, none of them black: four pixels to a patch's side."""
    pixels = np.random.default_rng(0).integers(40, 256, (12, 12, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def cells(picture: Image.Image) -> np.ndarray:
    """[9, side, side, 3]: the picture patch by patch."""
    side = picture.width // 3
    return np.asarray(picture).reshape(3, side, 3, side, 3).swapaxes(1, 2).reshape(9, side, side, 3)


def test_colours_follow_tokens_through_the_blocks() -> None:
    first, second = tokens.cluster_colours(TRACE).tolist()
    assert first == [-1, 0, 0, 1, 1, -1, -1, -1, -1]
    assert second == [-1, 0, 0, 1, 1, -1, 1, 2, 2]


def test_pruned_is_black_kept_is_untouched_merged_is_tinted(picture: Image.Image) -> None:
    panels = tokens.token_panels(picture, TRACE, side=12)
    before = cells(picture)
    for s, (panel, colours) in enumerate(zip(panels, tokens.cluster_colours(TRACE), strict=True)):
        after = cells(panel)
        for patch in range(9):
            if TRACE.fate[0, s, patch] in (PRUNED, GONE):
                assert (after[patch] == tokens.hatched(len(after[patch]))).all()
            elif colours[patch] < 0:
                assert (after[patch] == before[patch]).all()
            else:
                tint = np.array(tokens.PALETTE[colours[patch]])
                expected = before[patch] * (1 - tokens.TINT) + tint * tokens.TINT
                assert np.abs(after[patch] - expected).max() <= 0.5


def test_patches_of_one_token_share_a_colour_on_a_flat_picture() -> None:
    flat = Image.new("RGB", (12, 12), (100, 100, 100))
    for s, panel in enumerate(tokens.token_panels(flat, TRACE, side=12)):
        shown = [tuple(cell[0, 0]) for cell in cells(panel)]
        for i in range(9):
            for j in range(9):
                together = TRACE.token[0, s, i] == TRACE.token[0, s, j] >= 0
                if together:
                    assert shown[i] == shown[j]
                elif not {(100, 100, 100), (0, 0, 0), (120, 120, 120)} & {shown[i], shown[j]}:
                    assert shown[i] != shown[j]


def test_palette_has_no_black_and_no_twins() -> None:
    assert len(set(tokens.PALETTE)) == len(tokens.PALETTE) >= 8
    for i, a in enumerate(tokens.PALETTE):
        assert max(a) > 100
        assert all(np.abs(np.subtract(a, b)).sum() > 60 for b in tokens.PALETTE[:i])


def test_sizes(picture: Image.Image) -> None:
    assert [p.size for p in tokens.token_panels(picture, TRACE)] == [(192, 192)] * 2
    assert tokens.token_panels(picture, TRACE, side=13)[0].size == (15, 15)
    strip = tokens.token_strip(picture, TRACE, "before: a 0.10 → after: b 0.90")
    assert strip.mode == "RGB"
    assert strip.width == 3 * 192 + 4 * 8
    assert 192 < strip.height < 300
    original = np.asarray(strip)[8:200, 8:200]
    assert (original == np.asarray(picture.resize((192, 192), Image.Resampling.NEAREST))).all()
    second = np.asarray(strip)[8:200, 208:400]
    assert (second == np.asarray(tokens.token_panels(picture, TRACE)[0])).all()


def test_long_answers_widen_the_strip_and_odd_letters_do_not_break_it(picture: Image.Image) -> None:
    line = "before: " + "кошка 漢字 é " * 8 + "→ after"
    strip = tokens.token_strip(picture, None, line)
    assert strip.width > 192 + 16
    assert (np.asarray(strip)[210:] < 128).any(), "no text was drawn"
    assert tokens.token_strip(picture, None, "x" * 10_000).width < 3000


def test_text_is_reduced_to_ascii_only_for_pillows_own_font() -> None:
    from PIL import ImageFont

    assert tokens._drawable("café → 漢", ImageFont.load_default(14)) == "cafe -> ?"


def test_png_and_data_uri_hold_the_picture(picture: Image.Image) -> None:
    assert (np.asarray(Image.open(io.BytesIO(tokens.png(picture)))) == np.asarray(picture)).all()
    head, data = tokens.data_uri(picture).split(",")
    assert head == "data:image/png;base64"
    assert base64.b64decode(data) == tokens.png(picture)


def test_tensors_and_wrong_shapes() -> None:
    pixels = torch.rand(3, 12, 12, generator=torch.Generator().manual_seed(0))
    same = (pixels * 255).round().to(torch.uint8)
    assert (np.asarray(tokens.as_picture(pixels)) == np.asarray(tokens.as_picture(same))).all()
    with pytest.raises(ConfigError, match="as_seen"):
        tokens.token_panels(Image.new("RGB", (12, 10)), TRACE)


@pytest.mark.parametrize(("preset", "R"), [("default", 0.7), ("fixed", 0.7), ("paper", 0.8), ("default", 1.0)])
def test_a_real_trace_makes_a_strip(preset: str, R: float) -> None:
    adapter = adapt(make_vlm(), ["cat", "dog", "bird"], preset=preset, R=R, layers=(1, 2, 3), cache=False)
    for image in make_images(4, dtype=torch.float32):
        prediction = adapter(image, trace=True)
    picture = Image.fromarray(np.random.default_rng(0).integers(1, 256, (24, 24, 3), dtype=np.uint8))
    strip = tokens.token_strip(picture, prediction.trace, tokens.answers_line(adapter.classes, prediction))
    if prediction.trace is None:
        assert R == 1
        return
    assert strip.width >= min(6, 1 + len(prediction.trace.blocks)) * 192
    for s, panel in enumerate(tokens.token_panels(picture, prediction.trace, side=24)):
        side = panel.width // 6
        patches = np.asarray(panel).reshape(6, side, 6, side, 3).swapaxes(1, 2).reshape(36, -1)
        black = (patches == tokens.hatched(side).reshape(-1)).all(axis=1)
        assert (black == (prediction.trace.fate[0, s] >= PRUNED).numpy()).all()
        assert black.any() == (preset != "default")  # which prunes nothing


def test_as_seen_is_what_the_preprocessing_cuts_out() -> None:
    vlm = make_vlm()
    wide = Image.fromarray(np.random.default_rng(0).integers(0, 256, (30, 50, 3), dtype=np.uint8))
    seen = tokens.as_seen(wide, vlm)
    assert seen.size == (24, 24)
    assert seen.mode == "RGB"
