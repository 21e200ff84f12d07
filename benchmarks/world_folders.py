"""Folders of pictures of the embedded world, clean and shifted: data sets for `lessmore run` and `lessmore reproduce`.

python benchmarks/world_folders.py world        # 300 images a stream, unless --images says otherwise
lessmore reproduce options --model tiny --dataset folder:world/clean folder:world/blur
"""

from __future__ import annotations

import argparse
from pathlib import Path

from lessmore.assets import shifts, world
from lessmore.lab.report.tokens import as_picture

CLASSES, CLASS_SEED, IMAGES, SEED = 24, 1, 300, 82_000
STREAMS = (("clean", 0), ("background", 5), ("noise", 2), ("blur", 2))


def main() -> None:
    """Draw every stream into a folder of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the streams go, one folder each")
    parser.add_argument("--images", type=int, default=IMAGES, help="images a stream has (default: %(default)s)")
    args = parser.parse_args()
    classes = world.test_classes(CLASSES, seed=CLASS_SEED)
    scene = world.world_sample(args.images, SEED, classes)
    for kind, severity in STREAMS:
        images, _ = shifts.draw_shifted(scene, kind, severity)
        for i, (image, label) in enumerate(zip(images, scene.index.tolist(), strict=True)):
            name = world.class_name(*classes[label]).replace(" ", "_")
            path = args.folder / kind / name / f"{i:03}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            as_picture(image).save(path)


if __name__ == "__main__":
    main()
