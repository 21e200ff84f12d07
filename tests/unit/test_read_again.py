"""Files that are read again and are not what was written: refused with a remedy, or made again, never a traceback."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path

import pytest
import torch

import lessmore
from lessmore.cli.watch_rows import COLUMNS, continue_rows
from lessmore.engines import quantised
from lessmore.engines.stream_file import write_stream
from lessmore.errors import ConfigError, StateError
from lessmore.paper.pace import SCHEMA, read_pace, write_pace
from lessmore.storage import sealed

NAMES = ["red circle", "blue square", "green star"]
PACE = {"tca": {"ms": 1.5, "relative": 1.0, "state_mb": 0.25}}


def test_the_pace_of_rows_is_sealed(tmp_path: Path) -> None:
    file = tmp_path / "kinds-pace.json"
    write_pace(file, PACE)
    assert read_pace(file) == PACE
    file.write_text(file.read_text().replace("1.5", "1.6"))
    with pytest.raises(StateError, match=r"checksum does not match; remove it"):
        read_pace(file)
    for odd in (None, {"tca": 1}, {"tca": {"ms": 1.0}}, {"tca": {**PACE["tca"], "ms": "1"}}):
        sealed.write_sealed_json(file, {"schema": SCHEMA, "rows": odd})
        with pytest.raises(StateError, match="makes no sense"):
            read_pace(file)


@pytest.mark.parametrize(
    "line", ['{"number": 1}', '{"source": "a", "number": "x"}', '{"source": [], "number": 1}', "[]"]
)
def test_rows_that_no_watch_wrote(line: str, tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    output.write_text(line + "\n")
    with pytest.raises(ConfigError, match="was not written by lessmore watch; choose another"):
        continue_rows(output, [], resume=True)
    csv = tmp_path / "out.csv"
    csv.write_text(",".join(COLUMNS) + "\n" + ",".join("x" for _ in COLUMNS) + "\n")
    with pytest.raises(ConfigError, match="was not written by lessmore watch"):
        continue_rows(csv, [], resume=True)
    assert output.read_text() == line + "\n", "what is refused stays as it was"


def test_a_stream_does_not_go_on_with_the_state_of_another(tmp_path: Path) -> None:
    vlm = lessmore.load("tiny")
    side = vlm.vision.shape.image_size
    streams = lessmore.Streams(lessmore.adapt(vlm, NAMES, cache=False))
    for i, name in enumerate(("one", "two")):
        streams(name, torch.rand(3, side, side, generator=torch.Generator().manual_seed(i)))
    streams.save(tmp_path)
    streams.restore(tmp_path)
    first, second = sorted(tmp_path.glob("*.safetensors"))
    shutil.copy(first, second)
    with pytest.raises(StateError, match=r"is not the state of '(one|two)'; put the files back"):
        streams.restore(tmp_path)
    assert set(streams.names) == {"one", "two"}


def test_a_watch_whose_state_names_no_images(tmp_path: Path) -> None:
    pytest.importorskip("av")
    from lessmore.cameras.memory import Memory
    from lessmore.cameras.source import read_sources

    (tmp_path / "photos").mkdir()
    (source,) = read_sources([str(tmp_path / "photos")])
    adapter, memory = lessmore.adapt("tiny", NAMES, cache=False), Memory(tmp_path)
    note = {"kind": source.kind, "size": None, "place": {"number": 0, "pts": None}, "answers": 3, "ended": False}
    for files in ("abc", 7, [1], None):
        write_stream(memory.path(source), adapter.answerer, adapter.identity, {**note, "files": files})
        with pytest.raises(StateError, match="does not say where its source stands"):
            memory.load(source, adapter)


@pytest.mark.skipif(importlib.util.find_spec("openvino") is None, reason="openvino is not installed")
@pytest.mark.parametrize("graph", [b"", b"no program", b"<net></net>"])
def test_a_quantised_program_that_is_none_is_made_again(
    graph: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "key.safetensors"
    stored = {"graph": torch.frombuffer(bytearray(graph or b" "), dtype=torch.uint8), "weights": torch.zeros(4).byte()}
    sealed.write_tensors(file, stored, quantised.SCHEMA, {"key": "key"})
    assert quantised._read(file) is None and not file.exists()
    assert "holds no program" in caplog.text and caplog.text.strip().endswith("it is quantised again")


@pytest.mark.parametrize("scopes", ["[[]]", "[{}]", "read", "[]", "[1]"])
def test_a_key_file_with_odd_scopes(scopes: str, tmp_path: Path) -> None:
    pytest.importorskip("fastapi")
    from lessmore.serve.auth import read_keys

    file = tmp_path / "keys.yaml"
    file.write_text(f"keys:\n  - {json.dumps({'name': 'me', 'sha256': '0' * 64})[:-1]}, scopes: {scopes}}}\n")
    with pytest.raises(ConfigError, match="has the scopes"):
        read_keys(file)
