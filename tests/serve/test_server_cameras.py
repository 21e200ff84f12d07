"""A server that watches a real RTSP camera, which is killed and comes back; and the server is killed, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("av", reason="needs the extra camera")

from tests.cameras.scenes import NAMES
from tests.cameras.test_camera_services import broker, rtsp, told_by
from tests.serve.server import pictures, running
from tests.serve.test_cameras import camera_of, configured, until

pytestmark = pytest.mark.services
__all__ = ["broker", "rtsp"]


def test_an_rtsp_camera_and_the_server_are_killed_and_come_back(rtsp: Any, broker: Any, tmp_path: Path) -> None:
    entry = {"source": rtsp.address, "stream": "cam", "classes": NAMES, "every": 0.3}
    flags = configured(tmp_path, {**entry, "mqtt": f"mqtt://127.0.0.1:{broker.port}/home"})
    with running(tmp_path / "store", *flags) as server:

        def seq() -> int:
            return int(server.client.get("/v1/streams/cam").json()["seq"])

        until(lambda: seq() >= 4)
        server.create("other")
        rtsp.kill()
        until(lambda: camera_of(server, "cam")["condition"] == "lost")
        assert told_by(broker.port)["home/cam/live"] == "OFF"
        assert server.send("other", pictures()[0])["seq"] == 1, "others are answered meanwhile"
        before = seq()
        rtsp.start()
        until(lambda: camera_of(server, "cam")["condition"] == "live" and seq() >= before + 4)
        assert server.metrics()["lessmore_camera_reconnects_total"] >= 1
        report = camera_of(server, "cam")
        assert "secret" not in server.client.get("/v1/streams").text and report["dropped"]["every"] > 0
        before = seq()
        server.kill()
    with running(tmp_path / "store", *flags) as server:
        until(lambda: seq() >= before + 4)
        status = server.client.get("/v1/streams/cam").json()
        assert status["health"]["seen"] == status["seq"], "a frame was lost or counted twice"
        assert told_by(broker.port)["home/cam/live"] == "ON"
        assert server.stop() == 0
    assert "secret" not in server.log.read_text()
    assert told_by(broker.port)["home/availability"] == "offline"
