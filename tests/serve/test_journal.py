"""The form of a journal: what was cut off is cut, what is damaged is said, and nothing is made up."""

from __future__ import annotations

import errno
import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lessmore.errors import ConfigError, StateError
from lessmore.serve.errors import UnavailableError
from lessmore.serve.journal import pack_record, read_records
from lessmore.serve.store import FolderStore

RECORDS = [pack_record({"number": i}, {"x": torch.arange(i + 1.0)}) for i in range(5)]
WHOLE = b"".join(RECORDS)
ENDS = [sum(map(len, RECORDS[:i])) for i in range(6)]


def numbers(data: bytes) -> list[int]:
    return [record.facts["number"] for record in read_records(data, "it")[0]]


@pytest.mark.parametrize("cut", range(0, len(WHOLE) + 1, 7))
def test_a_torn_end_is_cut(cut: int) -> None:
    records, length = read_records(WHOLE[:cut], "it")
    assert length == max(end for end in ENDS if end <= cut) and len(records) == ENDS.index(length)
    for i, record in enumerate(records):
        assert torch.equal(record.tensors["x"], torch.arange(i + 1.0))


@pytest.mark.parametrize("zeros", [1, 11, 12, 5000])
def test_an_end_of_zeros_is_cut(zeros: int) -> None:
    assert read_records(WHOLE + b"\0" * zeros, "it")[1] == len(WHOLE)


@settings(max_examples=300)
@given(st.integers(0, 8 * len(WHOLE) - 1))
def test_no_flipped_bit_goes_unnoticed(bit: int) -> None:
    data = bytearray(WHOLE)
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(StateError, match="damaged at byte"):
        read_records(bytes(data), "it")


@settings(max_examples=200)
@given(st.binary(max_size=300))
def test_garbage_is_never_a_record(data: bytes) -> None:
    with suppress(StateError):
        assert numbers(data) == []


def test_a_missing_record_is_noticed_by_its_number() -> None:
    assert numbers(RECORDS[0] + RECORDS[2]) == [0, 2]  # the form is right; the stream's own loader counts


def test_a_full_disk_leaves_the_journal_as_it_was(tmp_path: Path) -> None:
    """On a file system that is full: /dev/full for the error, a limit on file sizes for the half-written record."""
    resource = pytest.importorskip("resource")
    store = FolderStore(tmp_path / "store", fsync=False)
    store.append("s", RECORDS[0])
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(RECORDS[0]) + 10, before[1]))
    try:
        with pytest.raises(UnavailableError, match=os.strerror(errno.EFBIG)):
            store.append("s", RECORDS[1])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert store.journal("s") == RECORDS[0]
    store.append("s", RECORDS[1])
    assert numbers(store.journal("s")) == [0, 1]


def test_a_store_that_is_gone_is_not_made_again(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "store", fsync=True)
    store.append("s", RECORDS[0])
    (tmp_path / "store").rename(tmp_path / "away")
    with pytest.raises(UnavailableError, match="store cannot be used"):
        store.append("s", RECORDS[1])
    (tmp_path / "away").rename(tmp_path / "store")
    store.append("s", RECORDS[1])
    assert numbers(store.journal("s")) == [0, 1]


def test_one_server_at_a_time(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "store", fsync=False)
    with pytest.raises(ConfigError, match="another server uses the store"):
        FolderStore(tmp_path / "store", fsync=False)
    store.close()
    FolderStore(tmp_path / "store", fsync=False).close()
