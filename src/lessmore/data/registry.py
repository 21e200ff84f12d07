"""Data sets by name: published ones, groups of them, a user's YAML file, and plain folders and lists."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from lessmore.data import cifar_c, coop, folder, hf, manifest, userfile
from lessmore.data import spec as facts
from lessmore.data.dataset import Dataset
from lessmore.data.spec import Spec
from lessmore.errors import ConfigError, unknown
from lessmore.registry import Registry

Reader = Callable[[Spec, Path], Dataset]
"""Opens the data set of a `Spec` below a root folder."""


class RegisteredDataset(NamedTuple):
    """A data set as the registry holds it."""

    spec: Spec
    read: Reader


DATASETS: Registry[RegisteredDataset] = Registry("data set", "lessmore.datasets")
"""Every data set by name. An entry point names a reader decorated with `register_dataset`."""


def register_dataset(spec: Spec) -> Callable[[Reader], Reader]:
    """Decorator: register a data set under `spec.name`; the decorated function opens it.

    Args:
        spec: What is known of the data set before a file of it is seen.

    Raises:
        ConfigError: The name belongs to another data set.
    """

    def add(read: Reader) -> Reader:
        DATASETS.add(spec.name, RegisteredDataset(spec, read), source=read)
        return read

    return add


def _read_cifar(spec: Spec, root: Path) -> Dataset:
    raise ConfigError(f"{spec.name} has many members; name one, such as {spec.name}/fog/3")


_READERS: dict[str, Reader] = {
    "split": coop.read_split,
    "aircraft": coop.read_aircraft,
    "classes": folder.read_class_folders,
    "manifest": manifest.read_listed,
    "cifar_c": _read_cifar,
}
for _spec in facts.specs().values():
    DATASETS.add(_spec.name, RegisteredDataset(_spec, _READERS[_spec.reader]), source=f"lessmore.data.{_spec.name}")

_CIFAR = "cifar100c"
_DIRECT = ("folder:", "manifest:", "hf:")


def open_dataset(name: str, root: Path | None = None, network: bool = True) -> Dataset:
    """A data set by name, or described by a path. No image is read.

    Args:
        name: A registered name or alias, a path ending in .yaml, folder:PATH, manifest:PATH, or what
            `hf.parse_place` reads after hf:.
        root: The folder that holds the data sets; only registered names need it.
        network: Whether a Hugging Face data set may be looked up on the network.

    Raises:
        ConfigError: The name is unknown, or the files are missing or damaged.
    """
    if is_direct(name):
        return _open_direct(name, network)
    name = canonical(name)
    spec, read = DATASETS.find(name.partition("/")[0])
    if root is None:
        raise ConfigError(f"{name} needs a root: give the folder that holds {spec.folders[0]} (--root)")
    if not Path(root).is_dir():
        raise ConfigError(f"the root {root} is not a folder; give the folder that holds {spec.folders[0]}")
    if spec.reader == "cifar_c":
        return cifar_c.read_variant(spec, Path(root), name.partition("/")[2])
    return read(spec, Path(root))


def list_datasets() -> list[str]:
    """Every registered name; a file, a folder or a hub name need not be registered."""
    plain = [name for name in dict.fromkeys([*DATASETS.own(), *DATASETS.names()]) if name != _CIFAR]
    return plain + [f"{_CIFAR}/{variant}" for variant in cifar_c.VARIANTS]


def list_groups() -> dict[str, list[str]]:
    """Names of the groups, each with its members."""
    named = {name: list(members) for name, members in facts.groups().items()}
    return {**named, _CIFAR: [name for name in list_datasets() if name.startswith(f"{_CIFAR}/")]}


def expand_names(names: Sequence[str]) -> list[str]:
    """Groups and patterns such as `imagenet*` or `cifar100c/*/5` → names, each once, in the order given."""
    return list(dict.fromkeys(member for name in names for member in _members(name)))


def spec_of(name: str) -> Spec:
    """What is known of a registered data set."""
    return DATASETS.find(canonical(name).partition("/")[0]).spec


def is_direct(name: str) -> bool:
    """Whether the name says where the images are, instead of being a registered one."""
    return name.startswith(_DIRECT) or name.lower().endswith((".yaml", ".yml"))


def canonical(name: str) -> str:
    """The registered name for any spelling of it: `ImageNet-A`, `cars`, `CIFAR100C/fog/3`."""
    known = {_key(name): name for name in list_datasets()}
    known |= {_key(alias): spec.name for spec, _ in DATASETS.own().values() for alias in spec.aliases}
    found = known.get(_key(name))
    if found is None:
        raise ConfigError(unknown("data set", name, {*list_groups(), *known.values()}))
    return found


def _key(name: str) -> str:
    return re.sub(r"[^a-z0-9/]", "", name.lower())


def _members(name: str) -> list[str]:
    if is_direct(name):
        return [name]
    group = next((members for known, members in list_groups().items() if _key(known) == _key(name)), None)
    if group is not None:
        return group
    if not re.search(r"[*?\[]", name):
        return [canonical(name)]
    matches = [known for known in list_datasets() if fnmatchcase(known, name.lower())]
    if not matches:
        raise ConfigError(f"no data set fits the pattern {name!r}; `lessmore ls datasets` lists all")
    return matches


def _open_direct(name: str, network: bool) -> Dataset:
    kind, _, place = name.partition(":") if name.startswith(_DIRECT) else ("yaml", "", name)
    if not place:
        raise ConfigError(f"{name!r} names nothing; write {kind}:PATH")
    if kind == "folder":
        return folder.read_folder(Path(place))
    if kind == "manifest":
        return manifest.read_manifest(Path(place))
    if kind == "hf":
        return hf.read_hf(hf.parse_place(place), network)
    return userfile.read_user_file(Path(place), network)
