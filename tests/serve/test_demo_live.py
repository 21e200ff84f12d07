"""`lessmore demo --live`: one line with an address, and a server behind it that keeps nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import httpx
import pytest

from lessmore.cli import main


def test_it_prints_an_address_and_ends_with_ctrl_c() -> None:
    command = [sys.executable, "-m", "lessmore", "demo", "--live", "--no-browser"]
    given = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, env=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stderr is not None
            line = process.stdout.readline()
            address = line.split(" is on ")[1].split("/#try")[0]
            assert 'data-thumbnails="true"' in httpx.get(f"{address}/", timeout=60).text
            frames = httpx.get(f"{address}/v1/camera", params={"count": 2}, timeout=60).json()
            assert len(frames["frames"]) == 2
            assert httpx.post(f"{address}/v1/streams", json=frames["stream"], timeout=60).status_code == 201
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
            assert process.stderr.read() == ""
        finally:
            process.kill()


def test_without_the_extra_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [one for one in sys.modules if one.startswith("lessmore.serve")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "fastapi", None)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(["demo", "--live"]) == 1
    assert "pip install 'lessmore[serve]'" in capsys.readouterr().err
