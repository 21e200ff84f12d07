"""Watching: the answers are an adapter's, streams never touch, and a watch that went away goes on exactly."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from PIL import Image

from lessmore.adapter import Adapter
from lessmore.cameras.answer import CameraAnswer, Sink
from lessmore.cameras.reader import ReadingOptions
from lessmore.cameras.selection import SelectionRules
from lessmore.cameras.source import read_sources
from lessmore.cameras.video import DecodingOptions, Video
from lessmore.cameras.watch import Watch, WatchOptions
from lessmore.errors import ConfigError, StateError
from tests.cameras.scenes import fresh, pictures, write_video


class Kept(Sink):
    """A sink that keeps what it is given, and may ask the watch to stop."""

    def __init__(self, most: int = 10**9) -> None:
        super().__init__()
        self.answers: list[CameraAnswer] = []
        self.told_of: list[tuple[str, str]] = []
        self.most, self.synced = most, 0

    def put(self, answer: CameraAnswer, image: Image.Image | None) -> None:
        assert (image is None) == (answer.error is not None and answer.label is None)
        self.answers.append(answer)

    def told(self, source: str, condition: str, why: str) -> None:
        self.told_of.append((source, condition))

    def sync(self) -> None:
        self.synced = len(self.answers)

    @property
    def full(self) -> bool:
        return len(self.answers) >= self.most

    def of(self, source: str) -> list[CameraAnswer]:
        return [one for one in self.answers if one.source == source]


def watched(words: Sequence[object], kept: Kept, adapter: Adapter | None = None, **options: object) -> Watch:
    reading = options.pop("reading", ReadingOptions(once=True))
    sources = read_sources([str(word) for word in words])
    watch = Watch(adapter or fresh(), sources, WatchOptions(reading=reading, **options), [kept])  # type: ignore[arg-type]
    watch.run(lambda: kept.full)
    return watch


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_video(tmp_path_factory.mktemp("clip") / "clip.mp4", pictures(), repeat=3)


@pytest.fixture(scope="module")
def uploads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("uploads")
    for i, image in enumerate(pictures(8, seed=3)):
        image.save(folder / f"{i}.png")
    (folder / "5b.png").write_bytes(b"no image")
    return folder


def frames_of(clip: Path) -> list[Image.Image]:
    (source,) = read_sources([str(clip)])
    return [frame.image for frame in Video(source, DecodingOptions()).frames()]


def said(answers: Sequence[CameraAnswer]) -> list[tuple[object, ...]]:
    return [(one.label, one.score, one.zero_shot_label, one.frames, one.error) for one in answers]


def test_answers_are_those_of_an_adapter(clip: Path) -> None:
    kept, adapter = Kept(), fresh()
    watch = watched([clip], kept)
    assert [one.number for one in kept.answers] == [one.frame for one in kept.answers] == list(range(1, 37))
    for image, answer in zip(frames_of(clip), kept.answers, strict=True):
        expected = adapter(image)
        assert (answer.label, answer.score, answer.changed) == (
            *(expected.label, round(expected.confidence, 6)),
            expected.changed,
        )
    assert kept.told_of == [("clip", "live"), ("clip", "ended")]
    assert watch.streams[0].counts["answered"] == 36


def test_sources_together_do_not_touch(clip: Path, uploads: Path) -> None:
    both = Kept()
    watched([clip, uploads], both)
    for path in (clip, uploads):
        alone, name = Kept(), read_sources([str(path)])[0].name
        watched([path], alone)
        for one, other in zip(both.of(name), alone.answers, strict=True):
            assert (one.label, one.file, one.frame, one.error) == (other.label, other.file, other.frame, other.error)
            assert one.score == pytest.approx(other.score, abs=1e-4)
    exact, alone = Kept(), Kept()
    watched([clip, uploads], exact, max_batch=1)
    watched([clip], alone)
    assert said(exact.of("clip")) == said(alone.answers)


def test_an_image_that_is_broken_is_said_and_skipped(uploads: Path) -> None:
    kept = Kept()
    watch = watched([uploads], kept)
    (bad,) = [one for one in kept.answers if one.error]
    assert bad.file == "5b.png" and "not a readable image" in str(bad.error)
    assert len(kept.answers) == 9
    assert watch.streams[0].adapter.health().refused == 1


@pytest.mark.parametrize("rules", [{}, {"every": 0.3}, {"motion": True}, {"track": True}], ids=str)
def test_a_watch_that_stopped_goes_on_exactly(
    rules: dict[str, float], clip: Path, uploads: Path, tmp_path: Path
) -> None:
    reading = ReadingOptions(SelectionRules(**rules), once=True)
    whole, first, rest = Kept(), Kept(most=9), Kept()
    watched([clip, uploads], whole, reading=reading, max_batch=1)
    watched([clip, uploads], first, reading=reading, max_batch=1, state=tmp_path / "s")
    assert first.synced == len(first.answers) < len(whole.answers)
    watch = watched([clip, uploads], rest, reading=reading, max_batch=1, state=tmp_path / "s", resume=True)
    for name in (read_sources([str(one)])[0].name for one in (clip, uploads)):
        joined = first.of(name) + rest.of(name)
        assert [(one.number, one.frame) for one in joined] == [(one.number, one.frame) for one in whole.of(name)]
        assert said(joined) == said(whole.of(name))
    again = Kept()
    watched([clip, uploads], again, reading=reading, max_batch=1, state=tmp_path / "s", resume=True)
    assert again.answers == []
    fused = [one.frames for one in whole.of("clip")]
    assert (max(fused) > 1) == ("track" in rules), fused  # type: ignore[type-var]
    assert all(stream.kept.answers for stream in watch.streams)


def test_images_without_motion_are_not_looked_at_again(tmp_path: Path) -> None:
    folder = tmp_path / "up"
    folder.mkdir()
    for i, which in enumerate([0, 0, 0, 1, 1, 2, 2, 0]):
        pictures()[which].save(folder / f"{i}.png")
    reading = ReadingOptions(SelectionRules(motion=True), once=True)
    first, rest = Kept(most=2), Kept()
    watched([folder], first, reading=reading, max_batch=1, state=tmp_path / "s")
    watched([folder], rest, reading=reading, max_batch=1, state=tmp_path / "s", resume=True)
    assert [one.file for one in first.answers + rest.answers] == ["0.png", "3.png", "5.png", "7.png"]


def test_states_are_not_taken_unasked_or_from_another_source(clip: Path, uploads: Path, tmp_path: Path) -> None:
    watched([clip], Kept(), state=tmp_path)
    with pytest.raises(ConfigError, match="add --resume"):
        watched([clip], Kept(), state=tmp_path)
    with pytest.raises(ConfigError, match="another kind of source"):
        watched([f"clip={uploads}"], Kept(), state=tmp_path, resume=True)
    other = write_video(tmp_path / "clip.mp4", pictures()[:4])
    with pytest.raises(ConfigError, match="has changed"):
        watched([other], Kept(), state=tmp_path, resume=True)
    with pytest.raises(StateError, match="K="):
        watched([clip], Kept(), fresh(K=3), state=tmp_path, resume=True)
    with pytest.raises(ConfigError, match="--state where they are"):
        WatchOptions(resume=True)
    data = bytearray((tmp_path / "clip.safetensors").read_bytes())
    data[-7] ^= 1
    (tmp_path / "clip.safetensors").write_bytes(data)
    with pytest.raises(StateError, match="damaged"):
        watched([clip], Kept(), state=tmp_path, resume=True)


def test_a_state_is_an_adapters(clip: Path, tmp_path: Path) -> None:
    watch = watched([clip], Kept(), state=tmp_path)
    adapter = fresh()
    adapter.restore(tmp_path / "clip.safetensors")
    assert adapter.health() == watch.streams[0].adapter.health()
    assert adapter.health().seen == 36


def test_rows_that_cannot_be_written_keep_the_state_behind(clip: Path, tmp_path: Path) -> None:
    class Full(Kept):
        def put(self, answer: CameraAnswer, image: Image.Image | None) -> None:
            if answer.number == 5:
                raise OSError(28, "No space left on device")
            super().put(answer, image)

    kept = Full()
    with pytest.raises(OSError, match="No space"):
        watched([clip], kept, state=tmp_path)
    adapter = fresh()
    adapter.restore(tmp_path / "clip.safetensors")
    assert adapter.health().seen == 0
    rest = Kept()
    watched([clip], rest, state=tmp_path, resume=True)
    assert [one.number for one in rest.answers] == list(range(1, 37))


def test_the_newest_frame_is_taken_and_the_others_are_counted(clip: Path) -> None:
    class Slow(Kept):
        def put(self, answer: CameraAnswer, image: Image.Image | None) -> None:
            super().put(answer, image)
            time.sleep(0.5)

    kept = Slow()
    watch = watched([clip], kept, reading=ReadingOptions(frames="newest"))
    late = watch.streams[0].reader.selection.dropped["newer"]
    assert late > 10 and late + len(kept.answers) == 36
    steps = [one.frame for one in kept.answers]
    assert steps == sorted(set(steps)) and steps[-1] == 36


def test_a_folder_is_watched_while_images_come(tmp_path: Path) -> None:
    pictures()[0].save(tmp_path / "a.png")
    kept = Kept(most=2)
    threading.Timer(1.0, lambda: pictures()[1].save(tmp_path / "b.png")).start()
    watched([tmp_path], kept, reading=ReadingOptions())
    assert [one.file for one in kept.answers] == ["a.png", "b.png"]


def test_a_folder_that_goes_away_is_lost_and_comes_back(tmp_path: Path) -> None:
    folder, away = tmp_path / "up", tmp_path / "away"
    folder.mkdir()

    class Share(Kept):
        def told(self, source: str, condition: str, why: str) -> None:
            super().told(source, condition, why)
            if condition == "live" and len(self.told_of) == 1:
                folder.rename(away)  # without an image it is live, too
            elif condition == "lost":
                pictures()[1].save(away / "b.png")
                away.rename(folder)

    kept = Share(most=1)
    watched([folder], kept, reading=ReadingOptions())
    assert [one.file for one in kept.answers] == ["b.png"]
    assert [what for _, what in kept.told_of][:3] == ["live", "lost", "live"]


def test_a_damaged_file_fails_and_the_others_go_on(clip: Path, tmp_path: Path) -> None:
    path = write_video(tmp_path / "cut.mkv", pictures(), repeat=4, codec="mjpeg")
    path.write_bytes(path.read_bytes()[: int(0.6 * path.stat().st_size)])
    (tmp_path / "empty.mp4").write_bytes(b"")
    kept = Kept()
    watch = watched([path, clip, tmp_path / "empty.mp4"], kept)
    conditions = {stream.source.name: stream.reader.condition for stream in watch.streams}
    assert conditions == {"clip": "ended", "empty": "failed", "cut": "failed"}
    assert 24 <= len(kept.of("cut")) < 48 and len(kept.of("clip")) == 36


def test_a_size_that_changes_is_answered_on(tmp_path: Path) -> None:
    sizes = [(96, 96), (160, 64)]
    parts = [
        write_video(tmp_path / f"{i}.ts", pictures()[:4], size=size, form="mpegts").read_bytes()
        for i, size in enumerate(sizes)
    ]
    (tmp_path / "joined.ts").write_bytes(b"".join(parts))
    kept = Kept()
    watched([tmp_path / "joined.ts"], kept)
    assert len(kept.answers) == 8 and not any(one.error for one in kept.answers)


def test_a_camera_that_turns_grey_is_not_learned_from(tmp_path: Path) -> None:
    grey = [Image.new("RGB", (96, 96), (128, 128, 128))] * 10
    path = write_video(tmp_path / "clip.mp4", [*pictures()[:6], *grey, *pictures()[6:]])
    kept, adapter = Kept(), fresh()
    watch = watched([path], kept)
    assert watch.streams[0].reader.selection.dropped["blank"] == 10
    for i, image in enumerate(frames_of(path)):
        if not 6 <= i < 16:
            adapter(image)
    assert watch.streams[0].adapter.health() == adapter.health()
