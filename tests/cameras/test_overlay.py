"""The overlay of tokens: merged patches share a colour, pruned ones are black, and it lies where the tower looked."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import pytest
import torch
from PIL import Image

from lessmore.cameras.overlay import seen_part, with_tokens
from lessmore.cameras.source import read_sources
from lessmore.cameras.video import DecodingOptions, Video
from lessmore.cli import main
from lessmore.core.condense.source import GONE, KEPT, PRUNED, SourceMap
from lessmore.lab.report.tokens import PALETTE, TINT, cluster_colours
from lessmore.models.preprocess import Preprocess
from tests.cameras.scenes import FLAGS, fresh, pictures, write_video


@pytest.mark.parametrize(("preset", "kind"), [("camera", "merged"), ("released", "gone")])
def test_every_patch_is_painted_by_its_fate(preset: str, kind: str) -> None:
    adapter = fresh(preset=preset)
    frame = pictures()[3].resize((128, 96))
    trace = adapter(frame, trace=True).trace
    assert trace is not None
    painted = np.asarray(with_tokens(frame, trace, adapter.vlm.preprocess))
    before, (left, top, side, _) = np.asarray(frame), seen_part(frame.size, adapter.vlm.preprocess)
    fate, colours = trace.fate[0, -1].tolist(), cluster_colours(trace)[-1].tolist()
    grid = int(len(fate) ** 0.5)
    kinds = set()
    for patch in range(len(fate)):
        y, x = (top + int((patch // grid + 0.5) * side / grid), left + int((patch % grid + 0.5) * side / grid))
        old, new = before[y, x].astype(float), painted[y, x]
        if fate[patch] in (PRUNED, GONE):
            kinds.add("gone")
            assert new.tolist() in ([0, 0, 0], [120, 120, 120])
        elif colours[patch] >= 0:
            kinds.add("merged")
            tint = np.array(PALETTE[colours[patch] % len(PALETTE)])
            assert np.abs(new - (old * (1 - TINT) + tint * TINT)).max() <= 0.5
        else:
            assert (new == before[y, x]).all()
    assert kind in kinds
    assert (painted[:, : left - 1] == before[:, : left - 1]).all(), "what the tower did not see was painted"
    assert (before == np.asarray(frame)).all()


@pytest.mark.parametrize(
    ("size", "preprocess", "part"),
    [
        ((1920, 1080), Preprocess(224), (420, 0, 1080, 1080)),
        ((1080, 1920), Preprocess(224), (0, 420, 1080, 1080)),
        ((1920, 1080), Preprocess(224, "squash"), (0, 0, 1920, 1080)),
        ((200, 100), Preprocess(224, short_side=256), (56, 6, 88, 88)),
        ((200, 100), None, (50, 0, 100, 100)),
        ((200, 100), Preprocess(224, "keep", patch=16), (0, 0, 200, 100)),
    ],
)
def test_it_lies_where_the_tower_looked(
    size: tuple[int, int], preprocess: object, part: tuple[int, int, int, int]
) -> None:
    found = seen_part(size, preprocess)
    assert found == part
    if (
        isinstance(preprocess, Preprocess) and preprocess.mode != "keep"
    ):  # a dot in a corner of the part is in a corner of the square
        image = Image.new("RGB", size, "black")
        left, top, width, height = found
        image.paste("white", (left, top, left + width // 4, top + height // 4))
        square = preprocess.resize(image)
        assert square[10, 10].min() > 200 and square[60:].max() < 60 and square[:, 60:].max() < 60


def test_a_grid_that_keeps_the_images_shape() -> None:
    fate = torch.full((1, 1, 32), KEPT)
    fate[0, 0, 7] = PRUNED  # the last of the first of four rows of eight
    none = torch.full_like(fate, -1)
    trace = SourceMap((0,), fate, torch.arange(32).view(1, 1, 32), none, torch.tensor([[31]]))
    painted = np.asarray(with_tokens(Image.new("RGB", (80, 40), "white"), trace, Preprocess(64, "keep", patch=8)))
    assert painted[:10, 70:].max() <= 120
    assert painted[:10, :70].min() == painted[10:].min() == 255


def test_a_saved_video_has_it(tmp_path: Path) -> None:
    clip = write_video(tmp_path / "clip.mp4", pictures()[:2], repeat=2, size=(192, 192))
    saved = {}
    for overlay in ("none", "tokens"):
        out = tmp_path / f"{overlay}.mp4"
        assert main(["watch", str(clip), *FLAGS, "--save", str(out), "--overlay", overlay, "--quiet"]) == 0
        (source,) = read_sources([str(out)])
        saved[overlay] = [np.asarray(one.image).astype(int) for one in Video(source, DecodingOptions()).frames()]
    assert len(saved["tokens"]) == len(saved["none"]) == 4
    below = [np.abs(one - other)[60:].mean() for one, other in zip(saved["tokens"], saved["none"], strict=True)]
    assert min(below) > 10, "the video shows no tokens"
    assert av.open(str(tmp_path / "tokens.mp4")).streams.video[0].codec_context.width == 192


def test_it_needs_a_video(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clip = write_video(tmp_path / "clip.mp4", pictures()[:1])
    assert main(["watch", str(clip), *FLAGS, "--overlay", "tokens"]) == 1
    assert "add --save out.mp4" in capsys.readouterr().err
