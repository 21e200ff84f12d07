"""The moving picture of the live page: one round of the rendered camera, as a browser showed it.

    python -m tools.live_gif docs/live.gif

Starts `lessmore demo --live`, opens its page in Chromium and takes a picture every so many images. What stands on the
page in the end is printed.
"""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image
from tqdm import tqdm

from lessmore.assets import camera

WIDTH, HEIGHT = 960, 600
SCALE = 0.72
EVERY = 15
"""Images between two pictures."""
COLOURS = 56
LIMIT = 1_000_000
SHOWN = 300
"""Milliseconds of each picture."""


def record(page: Any, address: str) -> tuple[list[Image.Image], str]:
    """Pictures of one round, and the score that stands on the page after it."""
    page.visit(address, WIDTH, 1600)
    page.wait("document.getElementById('trial-score').textContent.includes('%')")
    page.wait("!document.getElementById('tokens').disabled")
    page.do("document.getElementById('tokens').click()")
    page.do("document.activeElement.blur()")
    box = page.do("(({x, y, width}) => [x, y, width])(document.getElementById('stage').getBoundingClientRect())")
    clip = {"x": box[0], "y": box[1], "width": box[2], "height": HEIGHT, "scale": SCALE}
    pictures = []
    for image in tqdm(range(EVERY, camera.ROUND + 1, EVERY), unit="picture"):
        page.wait(f"parseInt(document.getElementById('stage-facts').textContent) >= {image}")
        pictures.append(Image.open(io.BytesIO(page.screenshot(clip))).convert("RGB"))
    return pictures, page.text("#trial-score")


def write(pictures: list[Image.Image], path: Path) -> None:
    """One palette for all pictures and no dithering, so that what stands still costs nothing."""
    sheet = Image.new("RGB", (pictures[0].width, pictures[0].height * 6))
    for i in range(6):
        sheet.paste(pictures[i * (len(pictures) - 1) // 5], (0, i * pictures[0].height))
    palette = sheet.quantize(COLOURS, method=Image.Quantize.MEDIANCUT)
    small = [one.quantize(palette=palette, dither=Image.Dither.NONE) for one in pictures]
    small[0].save(path, save_all=True, append_images=small[1:], duration=SHOWN, loop=0, optimize=True)


def main() -> None:
    """Run the demo, and write the picture."""
    from tests.web.chromium import Page

    target = Path(sys.argv[1])
    command = [sys.executable, "-m", "lessmore", "demo", "--live", "--no-browser"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        assert server.stdout is not None
        address = server.stdout.readline().split(" is on ")[1].split(" until ")[0]
        with tempfile.TemporaryDirectory() as profile, Page(Path(profile)) as page:
            pictures, score = record(page, address)
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(300)
    write(pictures, target)
    print(f"{target}: {len(pictures)} pictures, {target.stat().st_size:,} bytes; {' '.join(score.split())}")
    if target.stat().st_size > LIMIT:
        raise SystemExit(f"that is more than {LIMIT:,} bytes")


if __name__ == "__main__":
    main()
