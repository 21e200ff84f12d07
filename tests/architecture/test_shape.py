"""Names and lengths: no two public things alike, and nothing that has grown beyond reading."""

from __future__ import annotations

import ast
import re
import statistics
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "lessmore"
SHARED = {("cli/", "parser"), ("cli/", "run"), ("paper/figures/", "measure"), ("paper/figures/", "draw")}
"""What every command and every figure offers under the same name; all other public names are unique."""
FILE_LINES, CORE_LINES, MEDIAN, LONGEST, LONGEST_KERNEL = 400, 2_000, 12, 60, 100


def modules() -> Iterator[tuple[str, ast.Module]]:
    for file in sorted(SOURCE.rglob("*.py")):
        yield file.relative_to(SOURCE).as_posix(), ast.parse(file.read_text(encoding="utf-8"))


def functions() -> Iterator[tuple[int, str]]:
    """Lines of every function without its docstring and its comments, and where it is."""
    for file, tree in modules():
        text = (SOURCE / file).read_text(encoding="utf-8").splitlines()
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                doc = node.body[0] if ast.get_docstring(node) is not None else None
                said = 0 if doc is None else (doc.end_lineno or 0) - doc.lineno + 1
                own = text[node.lineno - 1 : node.end_lineno]
                said += sum(line.lstrip().startswith("#") for line in own)
                yield len(own) - said, f"{file}:{node.lineno} {node.name}"


def test_no_two_public_things_share_a_name() -> None:
    homes: dict[str, set[str]] = defaultdict(set)
    for file, tree in modules():
        for node in tree.body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
                homes[node.name].add(next((room for room, name in SHARED if name == node.name and room in file), file))
    assert {name: sorted(files) for name, files in homes.items() if len(files) > 1} == {}


def test_files_are_short() -> None:
    lines = {file: (SOURCE / file).read_text(encoding="utf-8").count("\n") for file, _ in modules()}
    assert {file: count for file, count in lines.items() if count > FILE_LINES} == {}


def test_the_method_itself_is_short() -> None:
    assert sum(code_lines(tree) for file, tree in modules() if file.startswith("core/")) <= CORE_LINES


def code_lines(tree: ast.Module) -> int:
    """Lines with code on them; docstrings, comments and empty lines do not count."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            node.body = [one for one in node.body if not is_text(one)] or [ast.Pass()]
    return sum(1 for line in ast.unparse(tree).splitlines() if line.strip())


def is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def test_functions_are_short() -> None:
    lengths = sorted(functions(), reverse=True)
    assert statistics.median(length for length, _ in lengths) <= MEDIAN
    limit = {True: LONGEST_KERNEL, False: LONGEST}
    assert [(length, where) for length, where in lengths if length > limit["/kernels/" in where]] == []


def test_every_room_says_what_it_is() -> None:
    for package in sorted(SOURCE.glob("**/__init__.py")):
        room = package.parent
        if room == SOURCE:
            continue
        said = ast.get_docstring(ast.parse(package.read_text(encoding="utf-8"))) or ""
        first = re.search(r"^Read `([\w.]+)` first", said, re.MULTILINE)
        assert first, f"{room.relative_to(SOURCE)} does not say what to read first"
        assert (room / first[1]).is_file(), f"{room.relative_to(SOURCE)} names {first[1]}, which is not there"
        assert 4 <= len(said.splitlines()) <= 8
