"""Streams of the server that tell unknown images: as an Adapter does, also after a kill, a snapshot and a fork."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from lessmore.engines import unknown_gate
from lessmore.serve.answer import Asked
from lessmore.serve.errors import DamagedStreamError
from lessmore.serve.registry import StreamRow
from lessmore.serve.schemas import NewStream
from lessmore.serve.streams import Look
from lessmore.storage import sealed
from lessmore.storage.state import SCHEMA
from tests.serve.server import Server, fresh_adapter, pictures
from tests.serve.test_schedules import CONFIG, NAMES, closed, opened


@pytest.mark.parametrize("snapshot_every", [7, 1000])
def test_a_killed_stream_goes_on_exactly(snapshot_every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("START", 12), ("SPREADS", 0.5), ("MOST", 0.4)):  # so that a short stream has unknown images
        monkeypatch.setattr(unknown_gate, name, value)
    adapter = fresh_adapter(classes=NAMES, templates=["a {}."], unknown="auto")
    streams, told = opened(tmp_path, snapshot_every=snapshot_every), 0
    streams.registry.add(StreamRow("s", "", None, {**CONFIG, "unknown": "auto"}))
    images = [*pictures(24), *pictures(24, seed=6, kind="noise")]
    for i, image in enumerate(images):
        track = "cup" if i % 7 == 6 else None
        pixels, wanted = adapter.pixels(image), adapter(image, track=track)
        (answer,) = streams.answer([Look("s", pixels, Asked(track=track))])
        assert isinstance(answer, dict)
        assert (answer["unknown"], answer["unknown_score"]) == (wanted.unknown, wanted.unknown_score)
        told += answer["unknown"]
        if i in (10, 20, 35, 40):
            closed(streams)
            streams = opened(tmp_path, snapshot_every=snapshot_every)
    assert told > 0
    assert streams.get("s").adapter.health() == adapter.health()
    streams.get("s").save()
    closed(streams)
    path = tmp_path / "store" / "streams" / "s" / "snapshot.safetensors"
    tensors, facts = sealed.read_tensors(path, SCHEMA, 1 << 30, "")
    facts["facts"]["unknown"] = {"scores": ["many"]}
    sealed.write_tensors(path, tensors, SCHEMA, facts)
    streams = opened(tmp_path)
    with pytest.raises(DamagedStreamError, match="scores of unknown images are none"):
        streams.get("s")
    closed(streams)


def test_the_rule_changes_in_flight(shared_server: Server) -> None:
    """What was learned stays, and the next image is judged by the new rule; a method that cannot is refused."""
    shared_server.create("rule", classes=NAMES)
    adapter = fresh_adapter(classes=NAMES)
    for rule, images in (("off", pictures(24)[:4]), (0.0, pictures(24)[4:7]), ("off", pictures(24)[7:9])):
        change = shared_server.client.patch("/v1/streams/rule", json={"unknown": rule})
        assert change.status_code == 204, change.text
        for image in images:
            adapter.answerer.gate = unknown_gate.UnknownGate(rule)
            told, own = shared_server.send("rule", image, top=len(NAMES)), adapter(image)
            assert (told["label"], told["score"], told["unknown"]) == (own.label, own.confidence, rule == 0.0)
    status = shared_server.client.get("/v1/streams/rule").json()
    assert (status["config"]["unknown"], status["health"]["unknown"], status["seq"]) == ("off", 3, 9)
    shared_server.create("deaf", classes=NAMES, method="tda")
    refused = shared_server.client.patch("/v1/streams/deaf", json={"unknown": "auto"})
    assert (refused.status_code, refused.json()["error"]["type"]) == (422, "invalid_settings")


def test_settings_of_a_stream() -> None:
    assert NewStream().unknown == "off"
    assert [NewStream(unknown=rule).unknown for rule in ("off", "auto", 0.8)] == ["off", "auto", 0.8]
    for rule in ("on", None, float("nan")):
        with pytest.raises(ValidationError):
            NewStream(unknown=rule)
