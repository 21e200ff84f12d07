"""Which files the words of a command line mean."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from PIL import Image

from lessmore.cli import main, rows
from lessmore.data.find import find_images, same_place
from lessmore.errors import ConfigError

BASE = ["--classes", "fox,owl", "--model", "tiny", "--quiet"]


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mix" / "more").mkdir(parents=True)
    for name in ("b.png", "a.JPG", "more/c.png", "notes.txt"):
        Image.new("RGB", (40, 40)).save(tmp_path / "mix" / name, "PNG")
    return tmp_path


def test_folders_files_and_patterns(photos: Path) -> None:
    everything = ["mix/a.JPG", "mix/b.png", "mix/more/c.png"]
    assert find_images(["mix"]) == everything
    assert find_images(["mix/*.png"]) == ["mix/b.png"]
    assert find_images(["mix/**/*.png"]) == ["mix/b.png", "mix/more/c.png"]
    assert find_images(["mix/notes.txt"]) == ["mix/notes.txt"], "a file given by name may have any ending"
    assert find_images(["m*"]) == everything


def test_one_file_is_one_input_however_it_is_spelled(photos: Path) -> None:
    (photos / "link").symlink_to("mix")
    (photos / "mix" / "d.png").symlink_to("b.png")
    spellings = ["mix", "./mix/", "mix/../mix", str(photos / "mix"), "link", "mix/b.png"]
    assert find_images(spellings) == ["mix/a.JPG", "mix/b.png", "mix/d.png", "mix/more/c.png"]
    assert same_place("mix/d.png") != same_place("mix/b.png"), "a link to a file has a row of its own"


def test_a_name_with_brackets_is_a_name_where_it_exists(photos: Path) -> None:
    (photos / "a[1].png").write_bytes((photos / "mix" / "b.png").read_bytes())
    assert find_images(["a[1].png"]) == ["a[1].png"]


@pytest.mark.parametrize(
    ("name", "message"),
    [("none", "no file or folder"), ("*.gif", "nothing fits the pattern"), ("empty", "no images in")],
)
def test_what_is_not_there_is_said(name: str, message: str, photos: Path) -> None:
    (photos / "empty").mkdir()
    with pytest.raises(ConfigError, match=message):
        find_images([name])


def test_a_folder_that_may_not_be_searched_has_a_row(
    photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real, access = os.scandir, os.access

    def closed(path: str) -> object:
        if str(path).endswith("more"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", closed)  # root, which may run this, may search everywhere
    monkeypatch.setattr(os, "access", lambda path, mode: not str(path).endswith("more") and access(path, mode))
    assert find_images(["mix"]) == ["mix/a.JPG", "mix/b.png", "mix/more"]
    assert main(["classify", "mix", *BASE, "--output", "out.csv"]) == 3
    assert "may not be searched" in Path("out.csv").read_text().splitlines()[-1]
    capsys.readouterr()


def test_going_on_knows_files_by_their_place(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = [*BASE, "--output", "out.csv", "--state", "s.safetensors"]
    assert main(["classify", "mix", *more]) == 0
    before = Path("out.csv").read_bytes()
    assert main(["classify", "./mix/", str(photos / "mix" / "b.png"), *more]) == 0
    assert Path("out.csv").read_bytes() == before
    assert [row.path for row in rows.read_answers(Path("out.csv"))] == find_images(["mix"])
    capsys.readouterr()
