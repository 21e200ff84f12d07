"""Picture what happened to an image's tokens: a PNG strip with one panel per condensing block."""

from __future__ import annotations

from pathlib import Path

from jsonargparse import ArgumentParser, Namespace

from lessmore.cli.common import (
    OK,
    add_budget,
    add_dtype,
    add_engine,
    add_json,
    add_method,
    add_model,
    add_options,
    add_precision,
    check_writable,
    make_adapter,
    new_parser,
    say,
    say_json,
    writing,
)
from lessmore.storage.files import replacing

EXAMPLES = """examples:
  lessmore vis photo.jpg --classes "cat,dog,bird" --model openai/clip-vit-base-patch16 -o strip.png
  lessmore vis photo.jpg --classes cats.txt --model openai/clip-vit-base-patch16 --R 0.7 -o strip.png
  lessmore vis photo.jpg --classes cats.txt --model openai/clip-vit-base-patch16 --method zeroshot --reducer tome
  lessmore vis photo.jpg --classes cats.txt --model my-model-folder --state out.safetensors -o strip.png

Pruned patches are black with grey lines, merged ones take the colour of their token. Without a state the adapter has
seen no stream, so its answer is zero-shot's; give the state of a stream (lessmore classify --state) to see both. It is
not written to.
"""


def parser() -> ArgumentParser:
    """Arguments of `lessmore vis`."""
    args = new_parser(__doc__, EXAMPLES)
    args.add_argument("image", type=str, help="an image file")
    add_model(args)
    add_method(args)
    add_budget(args)
    add_options(args)
    add_engine(args)
    add_dtype(args)
    add_precision(args)
    args.add_argument("--state", type=str | None, default=None, help="state file of a stream to start from")
    add_json(args)
    args.add_argument("-o", "--output", type=str, default="strip.png", help="the PNG file to write")
    return args


def run(args: Namespace) -> int:
    """Write the strip and print the answers."""
    path = Path(args.output)
    check_writable(path, (".png",))
    with writing(path):
        return _run(args, path)


def _run(args: Namespace, path: Path) -> int:
    from lessmore.data.images import load_image
    from lessmore.lab.report.tokens import answers_line, png, prediction_strip

    image = load_image(args.image)
    adapter = make_adapter(args)
    if args.state is not None:
        adapter.restore(args.state)
    prediction = adapter(image, trace=True)
    with replacing(path) as new:
        new.write_bytes(png(prediction_strip(adapter, image, prediction)))
    if args.json:
        say_json({"file": str(path), **prediction.to_dict()})
    else:
        say(f"{path}\t{answers_line(adapter.classes, prediction)}")
    return OK
