"""Which images are meant by a path, a pattern, a folder or a `file:` URL."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from PIL import Image

from lessmore.data.formats import ENDINGS
from lessmore.data.image_files import local_path
from lessmore.errors import ConfigError, ImageError


def find_images(inputs: Sequence[str]) -> list[str]:
    """Files as they are given, and the images below folders, each once however it is spelled.

    Args:
        inputs: Files, folders, `file:` URLs, and patterns such as `photos/*.jpg`, which a shell did not expand.

    Returns:
        Paths in the order of `inputs`; folders are searched in sorted order. A folder that may not be searched stands
        in the list itself, so that whoever reads the images meets it and says so.

    Raises:
        ConfigError: An input does not exist, or holds no images.
    """
    found: dict[str, str] = {}
    for name in inputs:
        for path in _meant(local_path(name)):
            found.setdefault(same_place(path), path)
    return list(found.values())


def each_image(source: Any) -> Iterable[Any]:
    """The images that a source stands for, in order.

    Args:
        source: A file, folder, pattern or `file:` URL, whose images are looked up now; `hf:` and a Hugging Face data
            set, which is read while it is answered; one image in memory; or several images, which are left as they are,
            so that each has one answer.

    Raises:
        ConfigError: A path or pattern stands for nothing.
    """
    if isinstance(source, str) and source.startswith("hf:"):
        from lessmore.data.hf_stream import open_hf_stream

        return (row.image for row in open_hf_stream(source).rows())
    if isinstance(source, (str, os.PathLike)):
        return find_images([os.fspath(source)])
    alone = isinstance(source, (bytes, bytearray, Image.Image)) or getattr(source, "ndim", 4) < 4
    if alone or not isinstance(source, Iterable):
        return [source]  # what is no image at all is refused where images are read
    return source


def stands_for_several(name: str) -> bool:
    """Whether a path or `file:` URL is that of a folder, or a pattern and no file of that name."""
    path = local_path(name)
    return os.path.isdir(path) or (glob.has_magic(path) and not os.path.lexists(path))


def one_file(name: str) -> str:
    """The file of one image: a pattern or folder may stand for it. A name that stands for nothing is left as it is.

    Args:
        name: A path, pattern, folder or `file:` URL.

    Raises:
        ImageError: It stands for several images.
    """
    if not stands_for_several(name):
        return local_path(name)
    name = local_path(name)
    try:
        found = find_images([name])
    except ConfigError:
        return name  # whoever opens it says what is wrong
    if len(found) > 1:
        raise ImageError(f"{name} stands for {len(found):,} images; give it to stream(), or name one of them")
    return found[0]


def same_place(path: str) -> str:
    """A path by which all spellings of one file agree; a link is a file of its own, a linked folder is not."""
    folder, name = os.path.split(path)
    return os.path.join(os.path.realpath(folder), name)


def _meant(name: str) -> list[str]:
    if os.path.isdir(name):
        return _inside(name)
    if os.path.lexists(name):
        return [name]
    matches = sorted(glob.glob(name, recursive=True)) if glob.has_magic(name) else []
    if not matches:
        what = "nothing fits the pattern" if glob.has_magic(name) else "there is no file or folder"
        raise ConfigError(f"{what} {name}; check the path")
    return [path for match in matches for path in (_inside(match) if os.path.isdir(match) else [match])]


def _inside(folder: str) -> list[str]:
    found = list(_search(folder))
    if not found:
        raise ConfigError(f"there are no images in {folder}; known endings are {', '.join(ENDINGS)}")
    return found


def _search(folder: str) -> Iterator[str]:
    closed: list[OSError] = []
    for place, folders, files in os.walk(folder, onerror=closed.append):
        folders.sort()
        yield from (os.path.join(place, name) for name in sorted(files) if name.lower().endswith(ENDINGS))
    yield from (str(error.filename) for error in closed)
