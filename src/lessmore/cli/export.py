"""Write one online step as a file for torch.export (.pt2) or ONNX Runtime (.onnx)."""

from __future__ import annotations

from pathlib import Path

from jsonargparse import ArgumentParser, Namespace

from lessmore.cli.common import (
    OK,
    add_budget,
    add_device,
    add_dtype,
    add_json,
    add_model,
    add_options,
    check_writable,
    make_adapter,
    new_parser,
    say,
    say_json,
    writing,
)

EXAMPLES = """examples:
  lessmore export --model openai/clip-vit-base-patch16 --classes "cat,dog,bird" -o step.onnx
  lessmore export --model open_clip:ViT-B-16/openai --classes cats.txt --R 0.7 -o step.pt2
  lessmore export --model tiny --classes "fox,owl" --preset paper -o step.pt2

The file maps a preprocessed image and the state to scores and the next state; docs/export.md shows the loop.
"""


def parser() -> ArgumentParser:
    """Arguments of `lessmore export`."""
    args = new_parser(__doc__, EXAMPLES)
    add_model(args)
    add_budget(args)
    add_options(args)
    add_device(args)
    add_dtype(args)
    add_json(args)
    args.add_argument("-o", "--output", type=str, required=True, help="step.pt2 or step.onnx")
    return args


def run(args: Namespace) -> int:
    """Write the file and print the shape of its input."""
    from lessmore.engines import export

    path = Path(args.output)
    check_writable(path, export.ENDINGS)
    with writing(path):
        adapter = make_adapter(args)
        export.save_step(adapter, path)
    side = adapter.vlm.vision.shape.image_size
    size = path.stat().st_size
    if args.json:
        say_json({"file": str(path), "classes": len(adapter.classes), "pixels": [1, 3, side, side], "bytes": size})
    else:
        say(f"{path}\t{len(adapter.classes)} classes, pixels [1, 3, {side}, {side}], {size / 1e6:.1f} MB")
    return OK
