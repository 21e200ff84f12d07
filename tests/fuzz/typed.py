"""What people type or may edit: YAML, lists, splits, keys, options, rows, tables; damaged, and made to be hostile."""

from __future__ import annotations

import contextlib
import io
import json
import random
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lessmore.cameras.answer import CameraAnswer
from lessmore.cli import parse
from lessmore.cli.common import read_classes
from lessmore.cli.rows import AnswerRow, read_answers
from lessmore.cli.watch_rows import continue_rows
from lessmore.config import Adaptation
from lessmore.data.coop import _parts
from lessmore.data.manifest import read_manifest
from lessmore.data.typed import parse_json, parse_yaml
from lessmore.data.userfile import read_user_file
from lessmore.lab.report.escape import csv_table
from lessmore.lab.spec import RunSpec
from lessmore.lab.sweep import read_grid
from lessmore.paper.stored import read_table
from lessmore.serve.auth import read_keys
from tests.fuzz.mutate import damaged
from tests.fuzz.outcomes import Outcome, Trial

GRID = b"""grid:
  - model: tiny
    dataset: 'folder:photos'
    method: [zeroshot, tca]
    seed: [0, 1]
    corruption: [none, fog:3]
exclude: [{method: zeroshot, seed: 1}]
cpus: 2
gpus: 0.5
"""
DATA = b"""name: birds
reader: manifest
path: list.csv
classes: [fox, owl]
templates: ["a photo of a {}.", 'a bird: {c}']
anywhere: false
"""
CONFIG = b"""model: tiny
dataset: [eurosat]
method: [tca, zeroshot]
options: {lam: 2.5, K: 3, M: 5}
limit: 0.5
seed: [0, 1]
"""
CSV = 'path,label,classname\na/1.png,0,fox\na/2.png,1,owl\n"b,3.png",1,owl\nü.png,0,fox\n'.encode()
ROWS = [{"path": "a/1.png", "label": 0, "classname": "fox"}, {"path": "2.png", "label": 1, "classname": "owl"}]
KEYS = b"keys:\n  - name: me\n    sha256: " + b"0" * 64 + b"\n    scopes: [read, classify]\n"
SPLIT = json.dumps({part: [["a/1.png", 0, "fox"], ["b.png", 1, "owl"]] for part in ("train", "test")}).encode()
ANSWERED = [asdict(AnswerRow(f"{i}.png", "fox", 0, 0.5, "fox", False, 0.1, False, i)) for i in range(1, 4)]
ANSWER_LINES = "".join(json.dumps(row) + "\n" for row in ANSWERED).encode()
ANSWERS = csv_table(ANSWERED).encode()
FRAMES = [asdict(CameraAnswer("cam", n, "", n, None, None, "x", 0, 1.0)) for n in range(1, 4)]
FRAME_LINES = "".join(json.dumps(row) + "\n" for row in FRAMES).encode()
LINES = "\n".join(map(json.dumps, ROWS)).encode()
CLASSES = "# birds\nfox\nowl\nüber bird\n\nplain sparrow\n".encode()
SCALARS = (
    *("null", "~", ".nan", "-.inf", "1e400", "9" * 5_000, "0x1f", "007", "no", "2001-01-01", "''", "[]", "{}", "true"),
    *("!!python/name:os.x", "*a", "&a x", "<<", "? x", "\\ud800", '"\\ud800"', "|", "%", "@", "`", "1_000", "1:30"),
    *("=", "- -", "\t"),
)
LABELS = ("nan", "-1", "1e9", "9" * 5_000, "٣", "²", "--5", "-", " ", "1.0", "\ud83d", "=1+1", "inf")
PATHS = ("../x", "/etc/passwd", "C:\\x", "a\0b", "x" * 5_000, "\\\\host\\x", "", "a\nb", "~/x", "CON")
JSON_LABELS = (b"NaN", b"Infinity", b"true", b"1.5", b"[0]", b"{}", b"-0", b"1e5", b"9" * 5_000)
JSON_PATHS = (b"0", b"true", b"[]", b'["a"]', b"{}", b"1.5")
VALUES = (*SCALARS, "[1,2]", "{a: 1}", "-1", "2.5", "0", "1e-320", "x", "a b", "🦊", "None", "[" * 5_000)
NAMES = (*Adaptation.__dataclass_fields__, "window", "R", "", "a.b", "__class__", "x" * 300)
TABLE = b'{"schema": "lessmore.table/1", "table": "beta", "rows": [], "columns": []}'
RUN = ("run", "--model", "tiny", "--dataset", "x", "--output", "o")


def hostile_yaml(dice: random.Random, good: bytes) -> bytes:
    """Texts that have broken readers of YAML elsewhere."""
    depth = dice.choice([30, 3_000, 60_000])
    fan = dice.randint(5, 10)
    laughs = "a: &a [x, x, x]\n" + "".join(
        f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join([f'*{chr(97 + i)}'] * 9)}]\n" for i in range(fan)
    )
    lines = good.decode().splitlines()
    place = dice.randrange(len(lines))
    key, colon, _ = lines[place].partition(":")
    lines[place] = f"{key}{colon} {dice.choice(SCALARS)}"
    return dice.choice(
        [
            laughs.encode() + good,
            good + b"options: {lam: " + b"[" * depth + b"}",
            good + b"x: " + b"{a: " * depth,
            b"- " * depth,
            good + good,
            b"\xef\xbb\xbf" + good,
            good.decode().encode("utf-16"),
            good.replace(b"\n", b"\r\n"),
            good + b"\0",
            b"#" * (2**20 + 1),
            b"a: &x [*x]\n" + good,
            b"? [a, b]\n: c\n" + good,
            b"{? {a: b} : c}",
            b"<<: [{a: 1}, *x]\n" + good,
            "\n".join(lines).encode(),
            "\n".join(lines).encode(),
            "\n".join(lines).encode(),
        ]
    )


def hostile_rows(dice: random.Random, good: bytes) -> bytes:
    """Manifests with odd rows."""
    label, path = dice.choice(LABELS), dice.choice(PATHS)
    row: dict[str, Any] = {"path": path, "label": label, "classname": dice.choice(["fox", "", "x" * 9_999, None])}
    odd = json.dumps(row).encode()
    return dice.choice(
        [
            good + b"\n" + odd,
            b"[" + odd + b"]",
            b"[" * 60_000,
            b'{"a":' * 60_000,
            f'path,label,classname\n"{path}",{label},fox\n'.encode(errors="surrogatepass"),
            f"path,label\n{path},{label}\n".encode(errors="surrogatepass"),
            b"path,label\n1.png," + b"9" * 140_000,
            b"path;label\n1.png;0\n",
            b"path,label,path\na,0,b\n",
            b"path,label\n" + b"a,0,1,2,3\n",
            b"\xef\xbb\xbf" + good,
            good.replace(b"\n", b"\r"),
            b'[{"path": "a", "label": %s}]'
            % dice.choice([b"NaN", b"Infinity", b"true", b"1.5", b"[0]", b"{}", b"-0", b"1e5", b"9" * 5_000]),
            b'[{"path": %s, "label": 0}]' % dice.choice([b"0", b"true", b"[]", b'["a"]', b"{}", b"1.5"]),
        ]
    )


def hostile_options(dice: random.Random) -> list[str]:
    name, value = dice.choice(NAMES), dice.choice(VALUES)
    return [f"--options.{name}", value] if dice.random() < 0.5 else ["--options", f"{name}={value}"]


def typed_files(folder: Path, crafted: bool) -> Trial:
    """Accepted means usable: what is typed has no original to compare with."""
    readers: dict[str, tuple[bytes, Callable[[Path], object], Callable[..., bytes]]] = {
        "grid.yaml": (GRID, read_grid, hostile_yaml),
        "data.yaml": (DATA, read_user_file, hostile_yaml),
        "config.yaml": (CONFIG, _config, hostile_yaml),
        "options.yaml": (b"lam: 2\nK: 3\nbeta: 1.5\n", _options_file, hostile_yaml),
        "list.csv": (CSV, read_manifest, hostile_rows),
        "list.json": (json.dumps(ROWS).encode(), read_manifest, hostile_rows),
        "list.jsonl": (LINES, read_manifest, hostile_rows),
        "classes.txt": (CLASSES, lambda path: read_classes(str(path)), hostile_rows),
        "words": (CLASSES, lambda path: read_classes(path.read_text("utf-8", "surrogateescape")), hostile_rows),
        "text.yaml": (GRID, lambda path: parse_yaml(path.read_text("utf-8", "surrogateescape")), hostile_yaml),
        "text.json": (LINES, lambda path: parse_json(path.read_text("utf-8", "surrogateescape"), "x"), hostile_rows),
        "keys.yaml": (KEYS, read_keys, hostile_yaml),
        "split.json": (SPLIT, _parts, hostile_rows),
        "answers.csv": (ANSWERS, read_answers, hostile_rows),
        "answers.jsonl": (ANSWER_LINES, read_answers, hostile_rows),
        "frames.jsonl": (FRAME_LINES, lambda path: continue_rows(path, [], resume=True), hostile_rows),
        "tables/x.json": (TABLE, lambda path: read_table(path.parent), hostile_rows),
    }
    (folder / "tables").mkdir()
    (folder / "list.csv").write_bytes(CSV)

    def trial(dice: random.Random) -> tuple[Callable[[], bool | Outcome], str]:
        if crafted and dice.random() < 0.25:
            words = hostile_options(dice)
            return (lambda: _command(["run", "--model", "tiny", "--dataset", "x", "--output", "o", *words])), str(
                words
            )[:99]
        name = dice.choice(list(readers))
        good, read, hostile = readers[name]
        (folder / "list.csv").write_bytes(CSV)
        data = hostile(dice, good) if crafted else damaged(good, dice)
        (folder / name).write_bytes(data)

        def use() -> bool | Outcome:
            found = read(folder / name)
            return found if isinstance(found, Outcome) else True

        return use, f"{name} {data[:200]!r}"

    return trial


def _options_file(path: Path) -> object:
    return _command([*RUN, "--options", str(path)])


def _config(path: Path) -> object:
    return _command(["run", "--config", str(path), "--output", "o"])


def _command(words: list[str]) -> bool | Outcome:
    """The words of a command line up to a run's settings; wrong usage is refused, too."""
    told = io.StringIO()
    try:
        with contextlib.redirect_stderr(told):
            args = parse(words)["run"]
    except SystemExit as end:
        return Outcome.REFUSED if end.code == 2 and told.getvalue().strip() else Outcome.SILENT
    RunSpec("tiny", "folder:x", options=args.options)
    return True
