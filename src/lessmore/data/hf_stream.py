"""Hugging Face data sets as streams: rows are read one after another, and nothing is downloaded before it is needed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from lessmore.data.hf import (
    HubPlace,
    cell_image,
    class_names_of,
    encoded,
    image_column,
    label_column,
    open_table,
    parse_place,
)
from lessmore.errors import ConfigError, ImageError


class HubRow(NamedTuple):
    """A row of a stream."""

    number: int
    """Its position in the split, from 0."""
    image: Any
    """Encoded bytes, or a path, as an adapter takes them; no bytes where the cell is empty."""
    label: int | str | None
    """Index into `classes`, or a text where the set has no classes; None without a column of labels."""


@dataclass(frozen=True)
class HubStream:
    """Rows in the set's own order. Iterating again begins again."""

    name: str
    """Set and split, such as `birds@test`."""
    classes: tuple[str, ...] | None
    """Names of the classes; None where there are no labels, or texts."""
    table: Any
    image: str
    label: str | None

    def rows(self, start: int = 0) -> Iterator[HubRow]:
        """Rows from a position on.

        Args:
            start: Rows that are skipped: to go on, how many were answered before. Parquet files before it are not read.

        Raises:
            ConfigError: A row cannot be read, because the connection is lost or a file is damaged; it says which.
        """
        row, rows = start, iter(self.table.skip(start) if start else self.table)
        while True:
            try:
                cells = next(rows)
            except StopIteration:
                return
            except Exception as error:  # of the hub, the network, the file system and arrow
                raise ConfigError(f"row {row} of {self.name} cannot be read ({error}); go on from there") from error
            label = None if self.label is None else cells[self.label]
            yield HubRow(row, _image(cells[self.image], row), label)
            row += 1


def open_hf_stream(place: str | HubPlace, network: bool = True) -> HubStream:
    """Open a Hugging Face data set for reading row by row.

    Args:
        place: A text such as `NAME@SPLIT?image=COLUMN`, with or without `hf:` before it (see `parse_place`).
        network: Whether a name may be looked up on the hub.

    Raises:
        ConfigError: The set cannot be opened, the split is unknown, or a column is missing or not unique.
    """
    place = parse_place(place.removeprefix("hf:")) if isinstance(place, str) else place
    table, split = open_table(place, network, streaming=True)
    image, label = image_column(table, place), label_column(table, place)
    names = None if label is None else class_names_of(table, label)
    table = encoded(table.select_columns([image] if label is None else [image, label]), image)
    return HubStream(f"{place.title}@{split}", None if names is None else tuple(names), table, image, label)


def _image(cell: Any, row: int) -> Any:
    """An empty cell becomes bytes that are no image, so that its row has an error like that of any other bad image."""
    try:
        return cell_image(cell, row)
    except ImageError:
        return b""
