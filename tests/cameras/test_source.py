"""What words of the command line mean, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from lessmore.cameras.source import hidden, read_sources
from lessmore.errors import ConfigError


@pytest.mark.parametrize(
    ("word", "name", "kind"),
    [
        ("0", "camera-0", "webcam"),
        ("rtsp://10.0.0.5:8554/yard/1", "10-0-0-5-yard-1", "address"),
        ("HTTP://cam.local/video.mjpg?x=y", "cam-local-video-mjpg", "address"),
        ("door=rtsp://me:secret@10.0.0.5/a?b=c", "door", "address"),
        ("-", "stdin", "stdin"),
    ],
)
def test_kinds_and_names(word: str, name: str, kind: str) -> None:
    (source,) = read_sources([word])
    assert (source.name, source.kind, source.live) == (name, kind, True)
    assert "secret" not in source.shown


def test_files_and_folders(tmp_path: Path) -> None:
    (tmp_path / "a=b").mkdir()
    (tmp_path / "clip one.mp4").write_bytes(b"")
    found = read_sources([f"{tmp_path}/a=b", f"{tmp_path}/clip one.mp4", f"x={tmp_path}"])
    assert [(one.name, one.kind, one.live) for one in found] == [
        ("a-b", "folder", False),
        ("clip-one", "file", False),
        ("x", "folder", False),
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["ftp://x/y"], "use one of rtsp"),
        (["rtsp://"], "write scheme://host"),
        (["rtsp://x:99999/y"], "is no address"),
        (["http://x/a\nb"], "is no address"),
        (["nothing-here.mp4"], "there is no file or folder nothing-here.mp4"),
        (["0", "0"], "stands there twice"),
        (["a=0", "a=1"], "two sources are called a"),
        (["rtsp://h/a", "rtsp://u:p@h/a"], "give it a name"),
        (["/dev/null"], "no regular file"),
    ],
)
def test_what_is_refused(words: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_sources(words)


def test_a_picture_is_no_video(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"")
    with pytest.raises(ConfigError, match="lessmore classify"):
        read_sources([str(tmp_path / "a.png")])


def test_passwords_are_hidden() -> None:
    assert hidden("rtsp://me:p@ss/w@host:1/x@y") == "rtsp://me:p@ss/w@host:1/x@y".replace("me:p@", "")
    assert hidden("rtsp://me:secret@host/x@y") == "rtsp://host/x@y"
