"""Sets whose test images a file lists: the split files of CoOp, and the variant lists of FGVC Aircraft."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lessmore.data.dataset import Dataset, Files
from lessmore.data.layout import image_folder, inside, split_file
from lessmore.data.spec import Spec
from lessmore.data.typed import parse_json, read_text
from lessmore.errors import ConfigError
from lessmore.prompts import class_names, spoken


def read_split(spec: Spec, root: Path, part: str = "test") -> Dataset:
    """One part of a set with a split file {train, val, test}, each a list of [path, label, class name].

    Args:
        spec: What is known of the set.
        root: The folder that holds the data sets.
        part: A key of the split file.

    Raises:
        ConfigError: The file is missing or damaged, or has no such part.
    """
    file = split_file(spec, root)
    parts = _parts(file)
    if part not in parts:
        raise ConfigError(f"{file} lists no images under {part!r}; download it again")
    # Published class lists differ in underscores alone; we name them as prompts do, the same for every source.
    named = names_by_label(((label, name) for rows in parts.values() for _, label, name in rows), file)
    classes = tuple(map(spoken, named))
    paths = inside((path for path, _, _ in parts[part]), file)
    labels = tuple(label for _, label, _ in parts[part])
    name = spec.name if part == "test" else f"{spec.name}@{part}"
    return Dataset(name, classes, paths, labels, Files(image_folder(spec, root, paths), paths), spec.templates)


def read_aircraft(spec: Spec, root: Path) -> Dataset:
    """FGVC Aircraft: a file of image numbers with their variants, and a list of the variants beside it.

    Args:
        spec: FGVC Aircraft's.
        root: The folder that holds the data sets.

    Raises:
        ConfigError: A file is missing or damaged.
    """
    file = split_file(spec, root)
    variants = _lines(file.with_name("variants.txt"))
    index = {variant: label for label, variant in enumerate(variants)}
    rows = [line.partition(" ")[::2] for line in _lines(file)]
    strange = next((variant for _, variant in rows if variant not in index), None)
    if strange is not None:
        raise ConfigError(f"{file} names the variant {strange!r}, not listed in variants.txt; download both again")
    paths = inside((f"{number}.jpg" for number, _ in rows), file)
    labels = tuple(index[variant] for _, variant in rows)
    source = Files(image_folder(spec, root, paths), paths)
    return Dataset(spec.name, tuple(map(spoken, class_names(variants))), paths, labels, source, spec.templates)


def names_by_label(pairs: Iterable[tuple[int, str]], file: Path) -> tuple[str, ...]:
    """Class names in the order of their labels, which must be 0, 1, 2, … and have one name each.

    Args:
        pairs: Label and name of every image.
        file: Where they were read, for errors.

    Raises:
        ConfigError: A label is missing or has two names.
    """
    names: dict[int, str] = {}
    for label, name in pairs:
        if names.setdefault(label, name) != name:
            raise ConfigError(f"{file} calls the label {label} both {names[label]!r} and {name!r}; correct it")
    gap = next((i for i in range(len(names)) if i not in names), None)
    if gap is not None:
        raise ConfigError(f"{file} has {len(names)} classes but none with the label {gap}; number them from 0 upwards")
    return tuple(class_names(names[i] for i in range(len(names))))


def _parts(file: Path) -> dict[str, list[Any]]:
    parts = parse_json(read_text(file, "the split file"), str(file))
    if not (isinstance(parts, dict) and "test" in parts and all(_is_part(part) for part in parts.values())):
        raise ConfigError(f"{file} is no split file: it has no list 'test' of [path, label, name]; download it again")
    return parts


def _is_part(part: Any) -> bool:
    return isinstance(part, list) and all(
        isinstance(row, list) and [type(value) for value in row] == [str, int, str] and row[0] for row in part
    )


def _lines(file: Path) -> list[str]:
    lines = (line.strip() for line in read_text(file, "the list of images or variants").splitlines())
    return [line for line in lines if line]
