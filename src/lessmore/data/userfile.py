"""A user's own data set, described by one small YAML file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from lessmore.data.dataset import Dataset
from lessmore.data.folder import read_folder
from lessmore.data.hf import HubPlace, read_hf
from lessmore.data.manifest import read_manifest
from lessmore.data.typed import read_yaml
from lessmore.errors import ConfigError, unknown
from lessmore.prompts import class_names, resolve_templates, spoken

READERS = ("folder", "manifest", "hf")


@dataclass(frozen=True)
class Description:
    """The fields of the file."""

    name: str
    reader: str
    """`folder`, `manifest` or `hf`."""
    path: str
    """Folder or manifest, relative to the file; or a name on the Hugging Face hub."""
    classes: list[str] | dict[str, str] | None = None
    """Names in the order of the labels, or new names for single classes."""
    templates: str | list[str] | None = None
    """Prompts with {} for the class's name."""
    split: str | None = None
    """Only for hf, as the next three; see `HubPlace`."""
    config: str | None = None
    image: str | None = None
    label: str | None = None
    anywhere: bool = False
    """Only for manifests: their paths may be absolute or leave the folder."""


def read_user_file(file: Path, network: bool = True) -> Dataset:
    """The data set that a YAML file describes.

    Args:
        file: The description.
        network: Whether a Hugging Face data set may be looked up on the hub.

    Raises:
        ConfigError: The file or what it describes cannot be read.
    """
    given = _description(file)
    dataset = _read(given, file, network)
    if given.classes is not None:
        dataset = replace(dataset, classes=_renamed(dataset.classes, given.classes, file))
    return replace(dataset, name=given.name, templates={**_own(given), **dataset.templates})


def _description(file: Path) -> Description:
    content = read_yaml(file, "the data set")
    if not isinstance(content, dict):
        raise ConfigError(f"{file} is not a list of fields; write name, reader and path, each with its value")
    _check(content, file)
    return Description(**content)


def _check(content: dict[Any, Any], file: Path) -> None:
    known = [field.name for field in fields(Description)]
    for key in content:
        if key not in known:
            raise ConfigError(f"{file}: {unknown('field', str(key), known)}")
    for key in ("name", "reader", "path"):
        if not isinstance(content.get(key), str) or not content[key]:
            raise ConfigError(f"{file} needs the field {key}, a text")
    if content["reader"] not in READERS:
        raise ConfigError(f"{file}: {unknown('reader', content['reader'], READERS)}")
    _check_kind(content, "classes", (list, dict), "a list of names, or a mapping from old to new ones", file)
    _check_kind(content, "templates", (str, list), "a text or a list of texts", file)
    for key in ("split", "config", "image", "label"):
        _check_kind(content, key, (str,), f"the name of a {'column' if key in ('image', 'label') else key}", file)
    _check_kind(content, "anywhere", (bool,), "true or false", file)


def _check_kind(content: dict[Any, Any], key: str, kinds: tuple[type, ...], wanted: str, file: Path) -> None:
    value = content.get(key)
    parts = [*value, *(value.values() if isinstance(value, dict) else ())] if isinstance(value, (list, dict)) else []
    if value is not None and not (isinstance(value, kinds) and all(isinstance(part, str) for part in parts)):
        raise ConfigError(f"{file}: {key} must be {wanted}; put quotes around names that look like numbers")


def _read(given: Description, file: Path, network: bool) -> Dataset:
    place = file.parent / given.path
    if given.reader == "folder":
        return read_folder(place)
    if given.reader == "manifest":
        names = given.classes if isinstance(given.classes, list) else None
        return read_manifest(place, names, given.anywhere)
    name = str(place) if place.is_dir() else given.path
    return read_hf(HubPlace(name, given.split, given.config, given.image, given.label), network)


def _renamed(classes: tuple[str, ...], wanted: list[str] | Mapping[str, str], file: Path) -> tuple[str, ...]:
    if isinstance(wanted, list):
        if len(wanted) != len(classes):
            raise ConfigError(f"{file} names {len(wanted)} classes, but there are {len(classes)}; name every one")
        return tuple(class_names(wanted))
    new = {spoken(old): name for old, name in zip(class_names(wanted), wanted.values(), strict=True)} if wanted else {}
    strange = next((old for old in new if old not in map(spoken, classes)), None)
    if strange is not None:
        raise ConfigError(f"{file}: {unknown('class', strange, classes)}")
    return tuple(class_names(new.get(spoken(name), name) for name in classes))


def _own(given: Description) -> dict[str, tuple[str, ...]]:
    if given.templates is None:
        return {}
    texts = [given.templates] if isinstance(given.templates, str) else given.templates
    resolve_templates(texts)
    return {"own": tuple(texts)}
