"""Show runs on one page: summary, cost, accuracy over time, calibration, reservoir, and every image."""

from __future__ import annotations

from pathlib import Path

from jsonargparse import ArgumentParser, Namespace
from tqdm import tqdm

from lessmore.cli.common import OK, SOME_FAILED, add_json, check_writable, new_parser, say, say_json, writing
from lessmore.errors import ConfigError, StateError
from lessmore.lab.report.album import Album, Library, replay_run
from lessmore.lab.report.html import render_report
from lessmore.lab.report.run_tables import write_run_tables
from lessmore.lab.report.runs import Finished, find_runs
from lessmore.paper.figures.plots import save_run_plots
from lessmore.storage.files import replacing

EXAMPLES = """examples:
  lessmore report runs -o report.html
  lessmore report runs/*eurosat* --pictures 200 -o eurosat.html
  lessmore report runs-from-elsewhere --no-pictures -o report.html
  lessmore report runs --plots plots --tables tables -o report.html
  lessmore report runs --root /where/the/data/are/now -o report.html

The page is one self-contained file; --plots also writes its curves as PNG and SVG, and --tables its tables as CSV. To
show pictures, the model and the data of each run are opened again and TCA's stream is replayed: quickly from cached
encodings, otherwise as slowly as the run itself. The page says what could not be opened. Names that runs bring along
are not looked up on the network unless --network allows it. Unfinished runs are left out and listed, and the command
then ends with exit code 3.
"""


def parser() -> ArgumentParser:
    """Arguments of `lessmore report`."""
    args = new_parser(__doc__, EXAMPLES)
    args.add_argument("runs", type=str, nargs="+", help="folders of runs, searched to any depth")
    args.add_argument("--output", "-o", type=str, default="report.html", help="the page to write")
    args.add_argument("--pictures", type=int, default=60, help="images of each run shown with their tokens")
    args.add_argument("--no-pictures", action="store_true", help="open no model; for runs whose data are elsewhere")
    args.add_argument("--root", type=str | None, default=None, help="directory of the data sets, if they have moved")
    args.add_argument("--cache", type=str | None, default=None, help="where the runs kept their encodings")
    args.add_argument("--network", action="store_true", help="look for models and data sets on the network, too")
    args.add_argument("--plots", type=str | None, default=None, help="also write PNG and SVG plots into this directory")
    args.add_argument(
        "--tables", type=str | None, default=None, help="also write CSV tables of each run below this directory"
    )
    args.add_argument("--quiet", action="store_true", help="no progress, only the result")
    add_json(args)
    return args


def run(args: Namespace) -> int:
    """Write the page; 0, or 3 if some runs are not finished."""
    output = Path(args.output)
    check_writable(output, (".html", ".htm"))
    if args.pictures < 0:
        raise ConfigError(f"--pictures must be 0 or more, not {args.pictures}")
    with writing(output):
        return _run(args, output)


def _run(args: Namespace, output: Path) -> int:
    runs, left_out = _readable(*find_runs([Path(name) for name in args.runs]))
    albums = _albums(runs, args)
    with replacing(output) as new:
        new.write_text(render_report(runs, albums, left_out), encoding="utf-8")
    for note in dict.fromkeys(note for album in albums for note in album.notes):
        say(f"lessmore report: {note}", error=True)
    for name in left_out:
        say(f"lessmore report: left out {name}", error=True)
    files = _files(runs, args)
    pictures, size = sum(len(album.uris) for album in albums), output.stat().st_size
    if args.json:
        keys = [finished.summary["key"] for finished in runs]
        found = {"file": str(output), "runs": keys, "pictures": pictures, "bytes": size}
        say_json({**found, "files": list(map(str, files)), "left_out": left_out})
    else:
        say(f"{output}: {len(runs)} runs, {pictures} pictures, {size / 1e6:.1f} MB")
    return SOME_FAILED if left_out else OK


def _files(runs: list[Finished], args: Namespace) -> list[Path]:
    """Write plots and tables, where they are asked for, and return their files."""
    files: list[Path] = []
    if args.plots is not None:
        files += save_run_plots([finished.folder for finished in runs], Path(args.plots))
    if args.tables is not None:
        for finished in runs:
            files += write_run_tables(finished, Path(args.tables) / finished.folder.name)
    return files


def _readable(runs: list[Finished], left_out: list[str]) -> tuple[list[Finished], list[str]]:
    """The runs whose rows can be read, and the names of all that are left out."""
    good, bad = [], list(left_out)
    for finished in runs:
        try:
            finished.check()
            good.append(finished)
        except StateError as error:
            bad.append(f"{finished.folder.name} ({error})")
    if not good:
        raise ConfigError(f"no run can be shown: {'; '.join(bad)}")
    return good, bad


def _albums(runs: list[Finished], args: Namespace) -> list[Album]:
    library = Library(args.root, args.cache or True, args.network)
    count = 0 if args.no_pictures else args.pictures
    albums = []
    for number, finished in enumerate(runs, start=1):
        title = f"run {number} of {len(runs)}"
        with tqdm(desc=title, unit="image", disable=args.quiet or None, leave=False) as bar:
            albums.append(replay_run(finished, library, count, bar.update))
    return albums
