"""Classify image files as one stream, one row per image; an interrupted run continues where it stopped."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from jsonargparse import ArgumentParser, Namespace
from tqdm import tqdm

from lessmore.cli import rows
from lessmore.cli.common import (
    INTERRUPTED,
    OK,
    SOME_FAILED,
    Stop,
    add_budget,
    add_dtype,
    add_engine,
    add_json_lines,
    add_method,
    add_model,
    add_options,
    add_precision,
    add_unknown,
    check_json_lines,
    check_writable,
    make_adapter,
    new_parser,
    say,
    writing,
)
from lessmore.data.find import find_images, same_place
from lessmore.errors import ConfigError, ImageError, NonFiniteError

if TYPE_CHECKING:
    from lessmore.adapter import Adapter
    from lessmore.data.hf_stream import HubStream
    from lessmore.prediction import Prediction

EXAMPLES = """examples:
  lessmore classify photos/ --classes "cat,dog,bird" --model openai/clip-vit-base-patch16
  lessmore classify photos/ more/a.jpg --classes cats.txt --model open_clip:ViT-B-16/openai --output out.jsonl
  lessmore classify photos/ --classes cats.txt --model my-model-folder --output out.csv --state out.safetensors

  lessmore classify frames/ --classes cats.txt --model my-model-folder --track "(object\\d+)_"
  lessmore classify photos/ --classes cats.txt --model my-model-folder --unknown auto --output out.csv

  lessmore classify "hf:my-birds@test?image=photo" --classes birds.txt --model my-model-folder --output out.csv

A Hugging Face data set is read row by row, as far as it is answered; nothing else of it is downloaded.

With --state the adapter's memory is kept in that file. If the run is interrupted, the same command continues where it
stopped: rows written after the last save of the state are removed from the output, inputs that have a row are skipped.
The state with a new output file carries what was learnt over to a new stream.

An image that cannot be read gets a row with its error. Where the adapted answer is not finite, the row has zero-shot's
and says `refused`. In both cases the run ends with exit code 3 instead of 0.
"""


def parser() -> ArgumentParser:
    """Arguments of `lessmore classify`."""
    args = new_parser(__doc__, EXAMPLES)
    args.add_argument(
        "inputs", type=str, nargs="+", help="image files, and folders to search for them; or hf:NAME@SPLIT"
    )
    add_model(args)
    add_method(args)
    add_budget(args)
    add_options(args)
    add_engine(args)
    add_unknown(args)
    add_dtype(args)
    add_precision(args)
    args.add_argument("--output", type=str, default="-", help="out.csv, out.jsonl, or - for CSV on standard output")
    args.add_argument(
        "--track",
        type=str | None,
        default=None,
        help="frames of one object get one answer, which gets surer: 'folder' where each folder shows one object, or a "
        "regular expression whose first group (or whole match) in the path names it",
    )
    args.add_argument("--state", type=str | None, default=None, help="state file, so that the stream can be continued")
    args.add_argument("--save-every", type=int, default=100, help="images between two writes of the state file")
    add_json_lines(args)
    args.add_argument("--quiet", action="store_true", help="no progress and no summary")
    return args


@dataclass
class AnswerCounts:
    """How many inputs were answered, changed, failed, skipped or left."""

    answered: int = 0
    changed: int = 0
    failed: int = 0
    """Rows with an error, those of an earlier run included."""
    unknown: int = 0
    refused: int = 0
    """Rows whose adapted answer was not finite, those of an earlier run included."""
    skipped: int = 0
    left: int | None = 0
    """None where some are left and nobody knows how many."""


class Inputs(NamedTuple):
    """What is to be classified."""

    images: Iterable[tuple[str, Any]]
    """Names for the rows, and images as an adapter takes them."""
    left: int | None
    """How many; None where nobody knows before the end."""
    done: int
    """How many have a row already."""


def run(args: Namespace) -> int:
    """Write the rows; 0, 3 if some inputs failed, 130 if interrupted."""
    state = None if args.state is None else Path(args.state)
    source = _opened(args.inputs)
    _check(args, state)
    with writing(None if args.output == "-" else Path(args.output), state):
        return _run(args, source, state)


def _opened(inputs: list[str]) -> list[str] | HubStream:
    """Paths, or one Hugging Face data set."""
    if not any(name.startswith("hf:") for name in inputs):
        return find_images(inputs)
    if len(inputs) > 1:
        raise ConfigError("a Hugging Face data set is one stream; classify it alone, and other inputs in another run")
    from lessmore.data.hf_stream import open_hf_stream

    return open_hf_stream(inputs[0])


def _remaining(source: list[str] | HubStream, known: list[rows.Written]) -> Inputs:
    """What has no row yet: files by their place, rows of a data set by their number."""
    if isinstance(source, list):
        done = {same_place(row.path) for row in known}
        todo = [(path, path) for path in source if same_place(path) not in done]
        return Inputs(todo, len(todo), len(source) - len(todo))
    strange = next((row.path for row in known if not row.path.startswith(f"{source.name}/")), None)
    if strange is not None:
        raise ConfigError(f"the output has a row of {strange}, which is not of {source.name}; choose another output")
    named = ((f"{source.name}/{row.number:06}", row.image) for row in source.rows(len(known)))
    return Inputs(named, None, len(known))


def _run(args: Namespace, source: list[str] | HubStream, state: Path | None) -> int:
    files = source if isinstance(source, list) else None
    adapter = make_adapter(args, calibrate=args.calibrate or files)
    if state is not None and state.exists():
        adapter.restore(state)
    known = [] if args.output == "-" else _continued(Path(args.output), state, adapter.health().seen, args.save_every)
    inputs = _remaining(source, known)
    failed, refused = (sum(getattr(row, name) for row in known) for name in ("failed", "refused"))
    counts = AnswerCounts(failed=failed, refused=refused, skipped=inputs.done, left=inputs.left)
    _stream(adapter, inputs, args, state, counts)
    if not args.quiet:
        _summary(counts, args)
    return INTERRUPTED if counts.left != 0 else SOME_FAILED if counts.failed or counts.refused else OK


def _check(args: Namespace, state: Path | None) -> None:
    """Refuse what can be refused before a model is loaded."""
    if args.save_every < 1:
        raise ConfigError(f"--save-every must be 1 or more, not {args.save_every}")
    track_rule(args.track)
    if state is not None:
        check_writable(state, (".safetensors",))
    check_json_lines(args)
    if args.output != "-":
        check_writable(Path(args.output), (".csv", ".jsonl"))


def _continued(output: Path, state: Path | None, seen: int, save_every: int) -> list[rows.Written]:
    """Rows of an earlier run that still hold: the output is cut back to what the state file has `seen`.

    Rows are on the disk before a state that counts them is written, so the output may be ahead of the state, by the
    images since the last save, but never behind it. Anything else belongs to another run and is left alone.
    """
    written = rows.read_answers(output)
    if not written:
        return []
    if state is None:
        raise ConfigError(f"{output} has rows already; remove it, choose another, or go on with the --state of its run")
    if not state.exists():
        raise ConfigError(f"{output} has rows but its state {state} is missing; remove the output to start again")
    kept = [row for row in written if row.seen <= seen]
    ahead = sum(not row.failed for row in written[len(kept) :])
    start = written[0].seen - (not written[0].failed)
    if (kept[-1].seen if kept else start) != seen or ahead > save_every:
        raise ConfigError(
            f"{output} and {state} are not of the same run (the rows end at image {written[-1].seen} of the stream, "
            f"the state at {seen}); choose another output, or give the --save-every of that run"
        )
    os.truncate(output, kept[-1].end if kept else 0)
    return kept


def track_rule(rule: str | None) -> Callable[[str], str | None]:
    """What names the object that a file is a frame of.

    Args:
        rule: What `--track` says.

    Raises:
        ConfigError: It is no regular expression.
    """
    if rule is None:
        return lambda path: None
    if rule == "folder":
        return lambda path: str(Path(path).parent)
    try:
        pattern = re.compile(rule)
    except re.error as error:
        raise ConfigError(
            f"--track {rule!r} is no regular expression ({error}); correct it, or use 'folder'"
        ) from error
    return lambda path: (found := pattern.search(path)) and found[min(1, pattern.groups)]


def _stream(adapter: Adapter, inputs: Inputs, args: Namespace, state: Path | None, counts: AnswerCounts) -> None:
    """Classify and write; the state is saved before the first image, so that there are never rows without one."""
    output = rows.Output(args.output, as_json=args.json)
    seen, track_of = adapter.health().seen, track_rule(args.track)
    try:
        _save(adapter, output, state)
        with Stop() as stop, tqdm(total=inputs.left, unit="image", disable=args.quiet or None) as bar:
            for count, (path, image) in enumerate(inputs.images, start=1):
                row = _classify(adapter, path, image, seen, track_of(path))
                output.write(row)
                seen = row.seen
                _count(counts, row)
                bar.update()
                if count % args.save_every == 0:
                    _save(adapter, output, state)
                if stop.asked:
                    break
            else:
                counts.left = 0
        _save(adapter, output, state)
    finally:
        output.close()


def _save(adapter: Adapter, output: rows.Output, state: Path | None) -> None:
    if state is not None:
        output.sync()
        adapter.save(state)


def _classify(adapter: Adapter, path: str, image: Any, seen: int, track: str | None) -> rows.AnswerRow:
    try:
        prediction = adapter(image, track=track)
    except (ImageError, NonFiniteError) as error:
        return rows.AnswerRow(path, seen=seen, error=" ".join(str(error).split()))
    return _row(adapter, path, prediction, seen + 1, track)


def _row(adapter: Adapter, path: str, prediction: Prediction, seen: int, track: str | None) -> rows.AnswerRow:
    return rows.AnswerRow(
        path=path,
        label=prediction.label,
        index=prediction.index,
        score=round(float(prediction.scores[prediction.index]), 6),
        zero_shot_label=adapter.classes[int(prediction.zero_shot_scores.argmax())],
        changed=prediction.changed,
        entropy=round(prediction.entropy, 6),
        refused=prediction.refused,
        seen=seen,
        track=track,
        frames=prediction.frames,
        unknown=None if prediction.unknown_score is None else prediction.unknown,
        unknown_score=None if prediction.unknown_score is None else round(prediction.unknown_score, 6),
    )


def _count(counts: AnswerCounts, row: rows.AnswerRow) -> None:
    counts.left = None if counts.left is None else counts.left - 1
    counts.failed += row.error is not None
    counts.answered += row.error is None
    counts.changed += bool(row.changed)
    counts.unknown += bool(row.unknown)
    counts.refused += bool(row.refused)


def _summary(counts: AnswerCounts, args: Namespace) -> None:
    parts = [f"{counts.answered} images classified, {counts.changed} changed by adaptation"]
    if args.unknown != "off":
        parts.append(f"{counts.unknown} called unknown")
    if counts.failed:
        parts.append(f"{counts.failed} failed")
    if counts.refused:
        parts.append(f"{counts.refused} adapted answers were not finite and zero-shot's were taken")
    if counts.skipped:
        parts.append(f"{counts.skipped} were already done")
    if counts.left != 0:
        how = "run the same command to go on" if args.state else "without --state it cannot be continued"
        parts.append(f"{'an unknown number' if counts.left is None else counts.left} left: interrupted, {how}")
    say(f"lessmore classify: {'; '.join(parts)}", error=True)
