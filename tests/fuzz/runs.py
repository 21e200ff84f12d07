"""Runs on the disk: interrupted ones that are resumed, finished ones that are built, reported and run again."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest.mock import patch

from jsonargparse import Namespace

import lessmore
from lessmore.cli import find_command, parse
from lessmore.lab import provenance
from lessmore.lab.job import prepare_job
from lessmore.lab.runner import run_one
from lessmore.lab.spec import RunSpec
from lessmore.lab.store import SCHEMA
from lessmore.storage import sealed, state
from tests.fuzz.craft import crafted_json, rewrite_tensors
from tests.fuzz.mutate import damaged
from tests.fuzz.outcomes import Outcome, Trial
from tests.small_runs import draw_folder, only_run, results

IMAGES = 4
_ENVIRONMENT = {"versions": {"torch": "0"}, "git": None, "hardware": {"cpu": "a", "gpu": None}, "threads": 1}


def quickly() -> contextlib.ExitStack:
    """Nothing waits for the disk, and nobody asks git, while mutations are tried."""
    stack = contextlib.ExitStack()
    stack.enter_context(patch.object(os, "fsync", lambda handle: None))
    stack.enter_context(patch.object(provenance, "environment", lambda device: dict(_ENVIRONMENT)))
    return stack


def spec_of(folder: Path) -> RunSpec:
    return RunSpec("tiny", f"folder:{draw_folder(folder / 'photos', IMAGES)}", device="cpu")


def craft_journal(run: Path, dice: random.Random) -> str:
    """A line of samples or timings that makes no sense, and a checkpoint or summary that vouches for it."""
    name = dice.choice(("samples", "timings"))
    file = run / f"{name}.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    place = dice.randrange(len(rows))
    rows[place], told = crafted_json(rows[place], dice)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    digest = [file.stat().st_size, sealed.hashlib.sha256(file.read_bytes()).hexdigest()]
    if (run / "summary.json").exists():
        summary = sealed.read_json(run / "summary.json", SCHEMA, "")
        summary["journals"][name] = digest
        sealed.write_sealed_json(run / "summary.json", summary)
    else:
        path = run / "checkpoint.safetensors"
        tensors, about = sealed.read_tensors(path, state.SCHEMA, 1 << 30, "")
        about["facts"][name] = digest
        sealed.write_tensors(path, tensors, state.SCHEMA, about)
    return f"{file.name}, line {place + 1}: {told}"


def craft_json_file(file: Path, dice: random.Random, *names: str) -> str:
    """Something odd in a sealed JSON file, below fields of these names."""
    value, told = crafted_json(sealed.read_json(file, SCHEMA, ""), dice, *names)
    sealed.write_sealed_json(file, value)
    return f"{file.name}: {told}"


def interrupted_runs(folder: Path, crafted: bool) -> Trial:
    """One of the files of a run that was cut off is changed, and the run goes on."""
    spec, vlm = spec_of(folder), lessmore.load("tiny")
    options = {"quiet": True, "vlm": vlm, "cache": folder / "cache", "checkpoints": 0}
    with quickly():
        run_one(spec, folder / "reference", **options)
        asked = iter(range(1))
        assert run_one(spec, folder / "cut", stop=lambda: next(asked, None) is None, **options) is None
    expected, good = results(folder / "reference"), only_run(folder / "cut")
    run = folder / "out" / good.name

    def use() -> bool:
        with quickly():
            run_one(spec, folder / "out", **options)
        return results(folder / "out") == expected

    def trial(dice: random.Random) -> tuple[Callable[[], bool | Outcome], str]:
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(good, run)
        if not crafted:
            file = dice.choice([run / name for name in _CUT])
            file.write_bytes(damaged(file.read_bytes(), dice))
            return use, file.name
        if dice.random() < 0.5:
            names = ("facts",)
            return use, rewrite_tensors(run / "checkpoint.safetensors", state.SCHEMA, dice, names)
        return use, craft_journal(run, dice)

    return trial


_CUT = ("spec.json", "samples.jsonl", "timings.jsonl", "checkpoint.safetensors", "checkpoint.safetensors")


def finished_runs(folder: Path, crafted: bool) -> Trial:
    """One of the files of a finished run is changed, and the run is built, reported, and run again."""
    spec, vlm = spec_of(folder), lessmore.load("tiny")
    with quickly():
        for method in ("tca", "zeroshot"):
            run_one(
                RunSpec("tiny", spec.dataset, method=method, device="cpu"),
                folder / "good",
                quiet=True,
                vlm=vlm,
                cache=folder / "cache",
            )
    name = prepare_job(RunSpec("tiny", spec.dataset, method="tca", device="cpu"), vlm).name
    out, run = folder / "out", folder / "out" / name
    commands = (
        ["build", str(out)],
        ["build", str(out), "--output", str(folder / "table.csv")],
        ["report", str(out), "--no-pictures", "--quiet", "--output", str(folder / "page.html")],
        ["run", "--model", "tiny", "--dataset", spec.dataset, *_RUN, "--output", str(out)],
    )
    shutil.copytree(folder / "good", out)
    parsed = [parse(words)[words[0]] for words in commands]
    monkey = patch("lessmore.cli.run.open_model", lambda spec: vlm)

    def said(number: int) -> tuple[int, str]:
        with monkey:
            return _said(commands[number], parsed[number])

    expected = [said(number) for number in range(len(commands))]
    assert all(code == 0 for code, _ in expected)

    def trial(dice: random.Random) -> tuple[Callable[[], bool | Outcome], str]:
        shutil.rmtree(out)
        shutil.copytree(folder / "good", out)
        number = dice.randrange(len(commands))
        if not crafted:
            file = dice.choice([run / name for name in _DONE])
            file.write_bytes(damaged(file.read_bytes(), dice))
            told = file.name
        elif dice.random() < 0.3:
            told = craft_journal(run, dice)
        elif dice.random() < 0.7:
            told = craft_json_file(run / "summary.json", dice, "spec", "dataset", "metrics", "cost", "provenance")
        else:
            told = craft_json_file(run / "spec.json", dice, "spec", "identity", "classes")

        def use() -> bool | Outcome:
            code, told = said(number)
            return Outcome.REFUSED if code else told == expected[number][1]

        return use, f"{commands[number][0]}, {told}"

    return trial


_RUN = ("--device", "cpu", "--workers", "0", "--quiet")
_DONE = ("spec.json", "samples.jsonl", "timings.jsonl", "summary.json", "summary.json")


def _said(words: Sequence[str], args: Namespace) -> tuple[int, str]:
    """Exit code of a command, what it printed, and what it wrote."""
    out, written = io.StringIO(), Path(args.output)
    if written.is_file():
        written.unlink()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()), quickly():
        code = find_command(words[0]).run(args)
    return code, out.getvalue() + (written.read_text() if written.is_file() else "")
