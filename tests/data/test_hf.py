"""Hugging Face data sets with columns by name, of Parquet files, and as streams that go on from a position."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import lessmore
from lessmore.cli import main
from lessmore.data.hf_stream import HubStream, open_hf_stream
from lessmore.data.registry import open_dataset
from lessmore.errors import ConfigError
from tests.small_runs import NAMES, draw_folder

datasets = pytest.importorskip("datasets")
ROWS = 12


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two columns of images and two of labels, saved and as two Parquet files of a split, with plain bytes beside."""
    folder = tmp_path_factory.mktemp("hf")
    files = sorted(draw_folder(folder / "photos", ROWS).rglob("*.png"), key=lambda file: file.name)
    table = datasets.Dataset.from_dict(
        {
            "small": [Image.new("RGB", (2, 2)) for _ in files],
            "photo": [file.read_bytes() for file in files],
            "plain": [file.read_bytes() for file in files],
            "kind": [NAMES.index(file.parent.name.replace("_", " ")) for file in files],
            "mood": [i % 2 for i in range(ROWS)],
            "word": [file.parent.name for file in files],
        },
        features=datasets.Features(
            small=datasets.Image(), photo=datasets.Image(), plain=datasets.Value("binary"),
            kind=datasets.ClassLabel(names=NAMES), mood=datasets.ClassLabel(names=["calm", "wild"]),
            word=datasets.Value("string"),
        ),
    )  # fmt: skip
    table.save_to_disk(folder / "saved")
    (folder / "parquet").mkdir()
    for i in range(2):
        table.shard(2, i, contiguous=True).to_parquet(folder / "parquet" / f"test-{i:05}-of-00002.parquet")
    return folder


def test_columns_by_name(place: Path) -> None:
    at = f"hf:{place / 'saved'}"
    with pytest.raises(ConfigError, match=r"2 columns of the type Image \(small, photo\); name one, \?image=COLUMN"):
        open_dataset(at)
    by_class, by_word = (open_dataset(f"{at}?image=photo&label={label}") for label in ("kind", "word"))
    assert by_class.classes == tuple(NAMES) and by_class.image(3).size != (2, 2)
    assert by_word.classes == tuple(sorted({name.replace(" ", "_") for name in NAMES} & set(by_word.classes)))
    said = [by_word.classes[label].replace("_", " ") for label in by_word.labels]
    assert said == [by_class.classes[label] for label in by_class.labels]
    plain = open_dataset(f"{at}?image=plain&label=mood")
    assert plain.image(5).tobytes() == by_class.image(5).tobytes() and plain.labels == (0, 1) * 6
    file = place / "mine.yaml"
    file.write_text("{name: mine, reader: hf, path: saved, image: photo, label: kind}")
    assert open_dataset(str(file)).labels == by_class.labels


def test_parquet_files(place: Path) -> None:
    dataset = open_dataset(f"hf:{place / 'parquet'}@test?image=photo&label=kind")
    assert len(dataset) == ROWS and dataset.ids[-1] == "test/000011"


@pytest.mark.parametrize("kind", ["saved", "parquet"])
def test_a_stream_goes_on_from_a_position(place: Path, kind: str) -> None:
    whole = open_dataset(f"hf:{place / kind}?image=photo&label=kind")
    stream = open_hf_stream(f"hf:{place / kind}?image=photo&label=kind")
    rows = list(stream.rows())
    assert (stream.classes, [row.label for row in rows]) == (whole.classes, list(whole.labels))
    assert list(stream.rows(start=7)) == rows[7:] and rows[7].number == 7
    assert Image.open(io.BytesIO(rows[7].image)).convert("RGB").tobytes() == whole.image(7).tobytes()


def test_a_stream_reads_no_more_rows_than_it_answers(place: Path) -> None:
    read: list[int] = []

    def rows() -> Iterator[dict[str, Any]]:
        for i in range(ROWS):
            read.append(i)
            if i == 5:
                raise OSError("connection lost")
            yield {"photo": {"bytes": b"%d" % i, "path": None}}

    stream = HubStream("birds@test", None, datasets.IterableDataset.from_generator(rows), "photo", None)
    answers = stream.rows()
    assert [next(answers).image for _ in range(3)] == [b"0", b"1", b"2"] and max(read) <= 3
    with pytest.raises(ConfigError, match="row 5 of birds@test cannot be read .*connection lost.*go on from there"):
        list(answers)


def test_an_adapter_takes_it(place: Path) -> None:
    one, other = (lessmore.adapt("tiny", NAMES, cache=False) for _ in range(2))
    answers = [p.label for p in one.stream(f"hf:{place / 'parquet'}?image=photo")]
    rows = open_hf_stream(f"{place / 'saved'}?image=photo").rows()
    assert len(answers) == ROWS and answers == [other(row.image).label for row in rows]


def test_classify_goes_on_by_position(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    at, out, state = f"hf:{place / 'parquet'}?image=photo", tmp_path / "out.csv", tmp_path / "out.safetensors"
    asked = ["classify", at, "--model", "tiny", "--classes", ",".join(NAMES), "--output", str(out), "--quiet"]
    assert main([*asked, "--state", str(state), "--save-every", "5"]) == 0
    every = out.read_bytes()
    lines = every.splitlines(keepends=True)
    assert [row["path"] for row in csv.DictReader(every.decode().splitlines())][7] == "parquet@test/000007"
    out.unlink(), state.unlink()
    adapter = lessmore.adapt("tiny", NAMES, cache=False)
    for row in list(open_hf_stream(at).rows())[:7]:
        adapter(row.image)
    adapter.save(state)
    out.write_bytes(b"".join(lines[:8]))
    assert main([*asked, "--state", str(state)]) == 0 and out.read_bytes() == every
    assert main([*asked[:1], at, str(place), *asked[2:]]) == 1
    assert "is one stream; classify it alone" in capsys.readouterr().err
