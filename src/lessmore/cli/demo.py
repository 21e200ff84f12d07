"""See it work in a minute: zero-shot, EViT and TCA on shifted image streams; prints a table and writes a page."""

from __future__ import annotations

import json
import sys
import threading
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from jsonargparse import ArgumentParser, Namespace
from tqdm import tqdm

from lessmore.assets import camera, world
from lessmore.cli.common import OK, check_writable, new_parser, say, writing
from lessmore.errors import ConfigError
from lessmore.lab import demo
from lessmore.lab.report import demo_summary
from lessmore.lab.report.page import render_demo
from lessmore.storage.files import replacing

EXAMPLES = """examples:
  lessmore demo
  lessmore demo --images 100 --output quick.html
  lessmore demo --model tiny-siglip --json numbers.json --quiet
  lessmore demo --live

Images are generated and classified on this machine; nothing is downloaded. Bad results are printed like good ones.
"""


def parser() -> ArgumentParser:
    """Arguments of `lessmore demo`."""
    args = new_parser(__doc__, EXAMPLES)
    args.add_argument("--images", type=int, default=demo.IMAGES, help="images per shift")
    args.add_argument("--model", type=str, default="tiny", help="an embedded model, or whatever lessmore.load takes")
    args.add_argument("--seed", type=int, default=demo.SEED, help="seed of the images")
    args.add_argument("--workers", type=int | None, default=None, help="processes; default: one per core, at most 4")
    args.add_argument("--output", type=str, default="lessmore-demo.html", help="the page to write")
    args.add_argument("--json", type=str | None, default=None, help="also write all numbers to this file")
    args.add_argument("--quiet", action="store_true", help="no progress, only the table")
    args.add_argument("--live", action="store_true", help="watch a rendered camera in the browser instead")
    args.add_argument("--port", type=int, default=0, help="port of --live; 0 takes a free one")
    args.add_argument("--no-browser", action="store_true", help="with --live, only print the address")
    return args


def run(args: Namespace) -> int:
    """Run the streams, print the table, write the page; or serve the live page."""
    if args.live:
        return _live(args)
    page, numbers = Path(args.output), None if args.json is None else Path(args.json)
    _check(args, page, numbers)
    torch.set_num_threads(1)
    with writing(page, numbers):
        return _run(args, page, numbers)


def _live(args: Namespace) -> int:
    """Serve the live page until told to stop; nothing is kept."""
    try:
        from lessmore.serve.run import serve
        from lessmore.serve.settings import ServerSettings
    except ModuleNotFoundError as error:
        raise ConfigError(f"lessmore demo --live needs {error.name}; pip install 'lessmore[serve]'") from error
    classes = world.world_class_names(camera.camera_classes("belt"))
    settings = ServerSettings(model=args.model, port=args.port, durability="none", thumbnails=True, log="quiet")
    return serve(settings, classes, lambda address: _show(f"{address}/#try", args.no_browser))


def _show(address: str, only_print: bool) -> None:
    print(f"the live page is on {address} until you press Ctrl-C", flush=True)
    if not only_print:
        threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()


def _run(args: Namespace, page: Path, numbers: Path | None) -> int:
    with _progress(args.images, args.quiet) as tick:
        result = demo.run_demo(args.model, args.images, args.seed, args.workers, tick)
    found = demo_summary.contender_lines(result)
    _replace(page, render_demo(demo_summary.as_page(result, found)))
    if numbers is not None:
        _replace(numbers, json.dumps(demo_summary.as_json(result, found)) + "\n")
    print(f"Accuracy in percent (± half the 95 % interval), {args.images} images per shift, {result.seconds:.0f} s\n")
    print(demo_summary.text_table(result, found))
    say(f"\n{demo_summary.demo_verdict(result, found)}\nThe page with curves and pictures: {page}")
    return OK


def _replace(path: Path, text: str) -> None:
    with replacing(path) as new:
        new.write_text(text, encoding="utf-8")


def _check(args: Namespace, page: Path, numbers: Path | None) -> None:
    for name, value in (("--images", args.images), ("--workers", args.workers)):
        if value is not None and value < 1:
            raise ConfigError(f"{name} must be 1 or more, not {value}")
    if not 0 <= args.seed < demo.SEEDS:
        raise ConfigError(f"--seed must lie between 0 and {demo.SEEDS - 1}, not {args.seed}")
    check_writable(page, (".html", ".htm"))
    if numbers is not None:
        check_writable(numbers, (".json",))


@contextmanager
def _progress(images: int, quiet: bool) -> Iterator[demo.Ticker]:
    """A bar with the running accuracies on a terminal, one line per finished stream elsewhere."""
    with tqdm(total=images * len(demo.SHIFTS), unit="image", disable=quiet or None) as bar:

        def tick(news: demo.DemoTick) -> None:
            title, done, accuracy = news
            text = f"{title}: " + ", ".join(f"{name} {100 * value:.1f}" for name, value in accuracy.items())
            bar.set_postfix_str(text, refresh=False)
            bar.update()
            if done == images and not quiet:
                tqdm.write(f"{text}  ({images} images)", file=sys.stderr)

        yield tick
