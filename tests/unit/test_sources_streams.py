"""`lessmore.Streams`: one adapter per source, few of them in memory, all of them kept apart."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import lessmore
from lessmore.errors import ConfigError, ImageError, StateError

CLASSES = ["red circle", "blue square", "green triangle"]


@pytest.fixture(scope="module")
def start() -> lessmore.Adapter:
    return lessmore.adapt("tiny", CLASSES, cache=False)


def picture(i: int) -> Image.Image:
    return Image.new("RGB", (32, 32), (37 * i % 256, 91 * i % 256, 53 * i % 256))


def alone(start: lessmore.Adapter, images: list[int]) -> list[torch.Tensor]:
    one = start.fork()
    return [one(picture(i)).scores for i in images]


@pytest.mark.parametrize("resident", [1, 2, 64])
def test_every_source_answers_as_an_adapter_of_its_own(start: lessmore.Adapter, resident: int) -> None:
    streams, order = lessmore.Streams(start, resident), [(f"camera {i % 3}", i) for i in range(15)]
    answers: dict[str, list[torch.Tensor]] = {}
    for name, i in order:
        answers.setdefault(name, []).append(streams(name, picture(i)).scores)
        assert len(streams._resident) <= resident
    for name, found in answers.items():
        expected = alone(start, [i for other, i in order if other == name])
        assert all(map(torch.equal, found, expected)) and len(found) == 5, name
    assert start.health().seen == 0 and [streams.health(n).seen for n in streams.names] == [5, 5, 5]


def test_a_turn_is_one_image_of_each_and_errors_keep_their_place(start: lessmore.Adapter, tmp_path: Path) -> None:
    streams = lessmore.Streams(start, resident=2)
    for i in range(4):
        images: dict[str, Any] = {name: picture(7 * i + k) for k, name in enumerate("abc")}
        found = streams.turn(images | {"broken": tmp_path / "none.png"})
    assert list(found) == ["a", "b", "c", "broken"] and isinstance(found["broken"], ImageError)
    for k, name in enumerate("abc"):
        last, expected = found[name], alone(start, [7 * i + k for i in range(4)])[-1]
        assert isinstance(last, lessmore.Prediction)
        torch.testing.assert_close(last.scores, expected, atol=1e-5, rtol=0)
    assert streams.health("broken").refused == 4 and streams.health("a").seen == 4


def test_all_are_saved_and_go_on_bit_for_bit(start: lessmore.Adapter, tmp_path: Path) -> None:
    streams, names = lessmore.Streams(start, resident=2), ["door", "../../etc/passwd", "ä" * 300]
    for i in range(9):
        streams(names[i % 3], picture(i))
    streams.save(tmp_path / "states")
    again = lessmore.Streams(start)
    again("of before", picture(0))
    again.restore(tmp_path / "states")
    assert again.names == sorted(names) and len(list(tmp_path.rglob("*"))) == 5
    for name in names:
        assert torch.equal(again(name, picture(99)).scores, streams(name, picture(99)).scores)


def test_what_is_damaged_or_of_another_model_leaves_everything_as_it_is(
    start: lessmore.Adapter, tmp_path: Path
) -> None:
    streams = lessmore.Streams(start)
    streams("door", picture(1))
    streams.save(tmp_path)
    other = lessmore.Streams(lessmore.adapt("tiny", CLASSES[:2], cache=False))
    other("mine", picture(2))
    with pytest.raises(StateError, match="class list"):
        other.restore(tmp_path)
    with pytest.raises(StateError, match="holds no streams"):
        other.restore(tmp_path / "nowhere")
    (file,) = tmp_path.glob("*.safetensors")
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(StateError):
        streams.restore(tmp_path)
    assert other.names == ["mine"] and other.health("mine").seen == 1 and streams.health("door").seen == 1


def test_threads_may_share_it(start: lessmore.Adapter) -> None:
    """More sources than may stay in memory: streams leave it and return while others answer."""
    streams, failures = lessmore.Streams(start, resident=2), []

    def feed(worker: int) -> None:
        try:
            for i in range(12):
                streams(f"camera {(worker + i) % 4}", picture(i))
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=feed, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert not failures and [streams.health(name).seen for name in streams.names] == [12] * 4
    assert len(streams._resident) <= 2


def test_streams_that_do_not_exist_are_said_and_forgotten_ones_begin_again(start: lessmore.Adapter) -> None:
    streams = lessmore.Streams(start, resident=1)
    streams("a", picture(1))
    streams("b", picture(1))
    streams.remove("a")
    with pytest.raises(ConfigError, match="no stream 'a'"):
        streams.health("a")
    streams("a", picture(1))
    assert streams.health("a").seen == 1
    with pytest.raises(ConfigError, match="needs a name"):
        streams("", picture(1))
    with pytest.raises(ConfigError, match="resident must be at least 1"):
        lessmore.Streams(start, resident=0)
