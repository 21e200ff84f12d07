"""A disk that is full and a store that goes away under a running server: nothing is answered that is not kept."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lessmore import Adapter
from tests.serve.server import Server, expected, fresh_adapter, pictures, running, saved_state, scores_of

PNG = {"Content-Type": "image/png"}
FLAGS = ("--max-batch", "1", "--snapshot-every", "5")


def use(server: Server, adapter: Adapter, images: list[bytes]) -> list[int]:
    """Send images; the adapter sees those that were answered. The codes."""
    codes = []
    for image in images:
        answer = server.client.post("/v1/streams/door/images", params={"top": 48}, content=image, headers=PNG)
        codes.append(answer.status_code)
        if answer.status_code == 200:
            assert scores_of(answer.json()) == expected(adapter, image)
        else:
            assert (answer.status_code, answer.json()["error"]["type"]) == (503, "unavailable"), answer.text
            assert int(answer.headers["Retry-After"]) > 0
    return codes


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)], capture_output=True)
    if made.returncode:
        pytest.skip("a small disk can be mounted by root alone")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.services
def test_a_disk_that_is_full_and_has_room_again(small_disk: Path, tmp_path: Path) -> None:
    adapter, images, filler = fresh_adapter(), pictures(60), small_disk / "filler"
    with running(tmp_path / "log", "--store", str(small_disk / "store"), *FLAGS) as server:
        server.create("door")
        assert set(use(server, adapter, images[:7])) == {200}
        with open(filler, "wb", buffering=0) as file:
            try:
                while file.write(b"x" * 4096):
                    pass
            except OSError:
                pass
        assert set(use(server, adapter, images[7:12])) == {503}
        assert server.client.get("/readyz").status_code == 200
        assert server.client.get("/v1/streams/door").json()["seq"] == 7
        filler.unlink()
        assert set(use(server, adapter, images[12:20])) == {200}
        server.kill()
    with running(tmp_path / "log", "--store", str(small_disk / "store"), *FLAGS) as server:
        assert server.state("door") == saved_state(adapter, tmp_path)
        assert set(use(server, adapter, images[20:22])) == {200}
        assert "traceback" not in server.log.read_text()


def test_a_store_that_goes_away_and_comes_back(tmp_path: Path) -> None:
    adapter, images, place = fresh_adapter(), pictures(), tmp_path / "place" / "store"
    place.parent.mkdir()
    with running(tmp_path / "log", "--store", str(place), *FLAGS) as server:
        server.create("door")
        assert use(server, adapter, images[:3]) == [200] * 3
        place.rename(tmp_path / "away")
        assert use(server, adapter, images[3:6]) == [503] * 3
        (tmp_path / "away").rename(place)
        assert use(server, adapter, images[6:9]) == [200] * 3
        server.kill()
    with running(tmp_path / "log", "--store", str(place), *FLAGS) as server:
        assert server.state("door") == saved_state(adapter, tmp_path)
