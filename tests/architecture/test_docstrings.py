"""Docstrings that an API reference can be made of: Google form, every argument of a public function explained."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.architecture.test_shape import SOURCE

ROOMS: tuple[str, ...] = (
    # rooms whose docstrings are complete
    "__init__.py",
    "adapter.py",
    "assets",
    "cameras",
    "cli",
    "config.py",
    "core",
    "data",
    "engines",
    "errors.py",
    "lab",
    "methods",
    "models",
    "paper",
    "prediction.py",
    "prompts.py",
    "registry.py",
    "serve",
    "storage",
)


def public_functions(body: list[ast.stmt]) -> Iterator[ast.FunctionDef]:
    """Public functions and methods that take two arguments or more; one argument fits into the first sentence."""
    for node in body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from public_functions(node.body)
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and len(arguments(node)) >= 2:
            yield node


def arguments(node: ast.FunctionDef) -> list[str]:
    """Names of the arguments, with stars where they have some, without `self` and `cls`."""
    given = node.args
    names = [one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs) if one.arg not in ("self", "cls")]
    stars = [f"{stars}{one.arg}" for stars, one in (("*", given.vararg), ("**", given.kwarg)) if one]
    return names + stars


def explained(node: ast.FunctionDef) -> set[str]:
    """Names of the arguments that the section `Args` explains."""
    section = re.search(r"^Args:\n((?:[ ]{4}.*\n?|\n)*)", ast.get_docstring(node) or "", re.MULTILINE)
    lines = section[1].splitlines() if section else []
    heads = [re.match(r" {4}([\w*, ]+):", line) for line in lines]
    return {name.strip() for head in heads if head for name in head[1].split(",")}


def overload(node: ast.FunctionDef) -> bool:
    return any(isinstance(one, ast.Name) and one.id in ("overload", "override") for one in node.decorator_list)


@pytest.mark.parametrize("room", ROOMS)
def test_every_argument_is_explained(room: str) -> None:
    files = [SOURCE / room] if room.endswith(".py") else sorted((SOURCE / room).rglob("*.py"))
    assert files
    missing = []
    for file in files:
        for node in public_functions(ast.parse(file.read_text(encoding="utf-8")).body):
            left = [] if overload(node) else [name for name in arguments(node) if name not in explained(node)]
            if left:
                missing.append(f"{file.relative_to(SOURCE)}:{node.lineno} {node.name}: {', '.join(left)}")
    assert missing == []
