"""The decoder in a process of its own: the same images, and whatever goes wrong there stays there."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lessmore.data.decoder import MEMORY, Decoder, DecoderError
from lessmore.data.images import load_image
from lessmore.errors import ImageError
from tests.data.attack_images import ATTACKS, encoded
from tests.fuzz.images import originals

RED = encoded(Image.new("RGB", (5, 4), "red"), "PNG")
LARGE = encoded(Image.effect_noise((3_000, 2_000), 50).convert("RGB"), "PNG", compress_level=1)
CHOSEN = list(ATTACKS) if os.environ.get("LESSMORE_SOAK") else [n for n in ATTACKS if "limit" in n or "canvas" in n]
on_linux = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is limited and measured by /proc")


@pytest.fixture(scope="module")
def decode() -> Iterator[Decoder]:
    with Decoder(seconds=60) as decoder:
        yield decoder


def pid(decoder: Decoder) -> int:
    """Of its only process, while that is idle."""
    process = decoder._idle.get()
    decoder._idle.put(process)
    assert process is not None
    return process._process.pid


def kilobytes(process: int, name: str) -> int:
    return int(Path(f"/proc/{process}/status").read_text().split(f"{name}:")[1].split()[0])


def found(decoder: Callable[[bytes], Image.Image], data: bytes) -> tuple[object, bytes]:
    """Size and pixels, or the reason against them."""
    try:
        image = decoder(data)
    except ImageError as error:
        return (type(error), str(error)), b""
    assert image.mode == "RGB"
    return image.size, image.tobytes()


def test_pictures_of_every_format_are_the_same(decode: Decoder, tmp_path: Path) -> None:
    for data in originals():
        assert found(decode, data) == found(load_image, data)
    (tmp_path / "red.png").write_bytes(RED)
    assert decode(tmp_path / "red.png").getpixel((0, 0)) == (255, 0, 0)


def test_a_large_picture_in_strips(decode: Decoder) -> None:
    assert np.array_equal(np.asarray(decode(LARGE)), np.asarray(load_image(LARGE)))


@on_linux
@pytest.mark.parametrize("name", CHOSEN)
def test_an_attack_ends_in_a_picture_or_a_reason_within_the_memory(name: str, decode: Decoder) -> None:
    decode(RED)
    data, process = ATTACKS[name](), pid(decode)
    before = kilobytes(process, "VmRSS")
    assert found(decode, data)[0] == found(load_image, data)[0]
    assert pid(decode) == process, "the screens refused it; its decoder was never lost"
    assert (kilobytes(process, "VmHWM") - before) * 1024 <= MEMORY


def test_one_that_takes_too_long_is_given_up_and_the_next_one_answers() -> None:
    with Decoder(seconds=60) as decoder:
        decoder(RED)
        slow, first = Decoder(seconds=1e-4), pid(decoder)
        with pytest.raises(ImageError, match=r"takes more than 0\.0001 s to decode"):
            slow(LARGE)
        slow.close()
        assert decoder(RED).size == (5, 4) and pid(decoder) == first


@on_linux
def test_one_that_takes_too_much_memory() -> None:
    with Decoder(seconds=60, memory=8 * 10**6) as decoder:
        assert decoder(RED).size == (5, 4)
        first = pid(decoder)
        with pytest.raises(ImageError, match="damaged or cut short|memory"):
            decoder(LARGE)
        assert decoder(RED).size == (5, 4)
        assert first


def test_a_process_that_dies_while_it_decodes() -> None:
    with Decoder(seconds=60) as decoder:
        decoder(RED)
        first = pid(decoder)
        os.kill(first, signal.SIGSTOP)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(decoder, RED)
            time.sleep(0.2)
            os.kill(first, signal.SIGKILL)
            with pytest.raises(ImageError, match=r"made its decoder fail \(exit code -9\)"):
                waiting.result()
        assert decoder(RED).size == (5, 4) and pid(decoder) != first


def test_a_process_that_died_while_it_was_idle_is_replaced() -> None:
    with Decoder(seconds=60) as decoder:
        decoder(RED)
        first = pid(decoder)
        os.kill(first, signal.SIGKILL)
        time.sleep(0.2)
        assert decoder(RED).size == (5, 4) and pid(decoder) != first


def test_an_image_is_not_blamed_for_a_process_that_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    with Decoder(seconds=60) as decoder:
        for name, value in (("_CODE", "raise SystemExit(1)"), ("sys.executable", "/nothing")):
            with monkeypatch.context() as patch:
                patch.setattr(f"lessmore.data.decoder.{name}", value)
                with pytest.raises(DecoderError, match="can be started"):
                    decoder(RED)
        assert decoder(RED).size == (5, 4)


def test_threads_share_two_processes() -> None:
    pictures = [encoded(Image.new("RGB", (8, 8), (i, 255 - i, 7)), "PNG") for i in range(60)]
    with Decoder(processes=2, seconds=60) as decoder, ThreadPoolExecutor(8) as pool:
        made = list(pool.map(decoder, pictures))
    assert [image.getpixel((3, 3)) for image in made] == [(i, 255 - i, 7) for i in range(60)]


def _decoded(decoder: Decoder) -> tuple[int, int]:
    size = decoder(RED).size
    decoder.close()
    return size


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="there is no fork here")
def test_forks_and_copies_have_processes_of_their_own() -> None:
    with Decoder(seconds=60) as decoder:
        decoder(RED)
        first = pid(decoder)
        with multiprocessing.get_context("fork").Pool(1) as pool:
            assert pool.apply(decoder, (RED,)).size == (5, 4)
        assert _decoded(pickle.loads(pickle.dumps(decoder))) == (5, 4)
        assert decoder(RED).size == (5, 4) and pid(decoder) == first


def test_nothing_is_left_behind() -> None:
    with Decoder(seconds=60) as decoder:
        decoder(RED)
        process = pid(decoder)
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


@pytest.mark.parametrize("name", ["", "x" * 5_000, "/dev/zero", "nothing.png", "."])
def test_what_is_no_file_is_refused_here(name: str, decode: Decoder) -> None:
    with pytest.raises(ImageError):
        decode(name)
