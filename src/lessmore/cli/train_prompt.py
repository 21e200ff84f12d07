"""Learn a prompt's context from a few labelled images per class, for the methods coop and cocoop."""

from __future__ import annotations

import sys
from dataclasses import asdict, fields
from pathlib import Path

from jsonargparse import ArgumentParser, Namespace

from lessmore.cli.common import (
    INTERRUPTED,
    OK,
    Stop,
    add_device,
    add_dtype,
    add_json,
    check_writable,
    new_parser,
    say,
    say_json,
    writing,
)
from lessmore.data import coop
from lessmore.data.dataset import Dataset
from lessmore.data.registry import is_direct, open_dataset, spec_of
from lessmore.errors import ConfigError
from lessmore.lab.job import open_model
from lessmore.lab.spec import RunSpec
from lessmore.lab.train_prompt import Training, train_prompt

EXAMPLES = """examples:
  lessmore train-prompt --model openai/clip-vit-base-patch16 --dataset caltech101 --root data --output ctx.safetensors
  lessmore train-prompt --model tiny --dataset folder:photos/train --shots 4 --epochs 20 --output ctx.safetensors
  lessmore train-prompt --model tiny --dataset folder:photos/train --method cocoop --output cocoop.safetensors
  lessmore run --model tiny --dataset folder:photos/test --method coop --options.context ctx.safetensors --output runs

Of a registered data set the training part is used. A folder holds one sub-folder of images per class. The context
serves any class list, so it can be measured on other data sets. If training is interrupted, the same command continues
exactly where it stopped.
"""


def parser() -> ArgumentParser:
    """Arguments of `lessmore train-prompt`."""
    args = new_parser(__doc__, EXAMPLES)
    model = "an embedded model (see lessmore ls models), a hub id, a folder, or open_clip:NAME/TAG"
    args.add_argument("--model", type=str, required=True, help=model)
    args.add_argument("--dataset", type=str, required=True, help="a name, folder:PATH, manifest:PATH, or hf:NAME@SPLIT")
    args.add_argument("--root", type=str | None, default=None, help="the folder that holds the data sets")
    args.add_argument("--output", "-o", type=str, required=True, help="the context's file, ending in .safetensors")
    args.add_argument("--method", type=str, default="coop", help="coop or cocoop")
    args.add_argument("--shots", type=int, default=16, help="images per class")
    args.add_argument("--epochs", type=int, default=0, help="0 = as published: 50 for coop, 10 for cocoop")
    args.add_argument(
        "--batch", type=int, default=0, help="images per step; 0 = as published: 32 for coop, 1 for cocoop"
    )
    args.add_argument("--lr", type=float, default=2e-3, help="the largest learning rate")
    args.add_argument("--words", type=str, default=Training.words, help="words the context is initialised with")
    args.add_argument("--crops", type=bool, default=True, help="false = whole images, encoded once: much faster")
    args.add_argument("--seed", type=int, default=0, help="seed of the images chosen, their order and their crops")
    add_device(args)
    add_dtype(args)
    args.add_argument("--overwrite", action="store_true", help="start again, even if the context is finished")
    args.add_argument("--quiet", action="store_true", help="no progress")
    add_json(args)
    return args


def run(args: Namespace) -> int:
    """Train; 0, or 130 if interrupted."""
    output = Path(args.output)
    check_writable(output, (".safetensors",))
    training = Training(**{field.name: args[field.name] for field in fields(Training)})
    dataset = training_set(args.dataset, None if args.root is None else Path(args.root))
    vlm = open_model(
        RunSpec(model=args.model, dataset=args.dataset, device=args.device, precision=args.dtype or "float32")
    )
    with Stop() as stop, writing(output):
        done = train_prompt(
            vlm, dataset, output, training, overwrite=args.overwrite, quiet=args.quiet, stop=lambda: stop.asked
        )
    if not done:
        print("lessmore train-prompt: interrupted; run the same command to go on", file=sys.stderr)
        return INTERRUPTED
    if args.json:
        say_json({"file": str(output), "classes": len(dataset.classes), **asdict(training)})
    else:
        say(f"{output}: {training.method} on {training.shots} images of each of the {len(dataset.classes)} classes")
    return OK


def training_set(name: str, root: Path | None) -> Dataset:
    """The images to learn from: what a path names, or the training part of a registered set, never its test images.

    Args:
        name: A registered data set, or `folder:PATH`, `manifest:PATH`, `hf:NAME@SPLIT`.
        root: The directory that holds the data sets; None only for names with a path.

    Raises:
        ConfigError: The set has no training part, or its files are missing.
    """
    if is_direct(name):
        return open_dataset(f"{name}@train" if name.startswith("hf:") and "@" not in name else name, root)
    spec = spec_of(name)
    if spec.reader != "split":
        raise ConfigError(f"no list of training images is known for {spec.name}; give a folder of them as folder:PATH")
    if root is None or not root.is_dir():
        raise ConfigError(f"{spec.name} needs --root, the folder that holds {spec.folders[0]}; give one that exists")
    return coop.read_split(spec, root, "train")
