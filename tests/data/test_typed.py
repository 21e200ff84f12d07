"""What people type: each limit and each trap of YAML and JSON has its error, with the line and a remedy."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lessmore.data.typed import (
    MAX_ALIASES,
    MAX_DEPTH,
    MAX_YAML,
    parse_json,
    parse_yaml,
    read_lines,
    read_text,
    read_yaml,
)
from lessmore.errors import ConfigError

LAUGHS = "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n"
MANY = "a: &a x\nb: [" + ", ".join(["*a"] * (MAX_ALIASES + 1)) + "]\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (LAUGHS, r"\(line 3\): aliases \(\*b\) may not be nested"),
        (MANY, rf"\(line 2\): aliases .* {MAX_ALIASES} are the most"),
        ("a: &a [*a]\n", r"\(line 1\): aliases"),
        ("a: 1\nb: 2\na: 3\n", r"\(line 3\): the key 'a' appears twice"),
        ("a:\n  b: 1\n  b: 2\n", r"\(line 3\): the key 'b' appears twice"),
        ("x: " + "[" * (MAX_DEPTH + 1), rf"nested more than {MAX_DEPTH} deep"),
        ("x: " + "{a: " * 60_000, rf"nested more than {MAX_DEPTH} deep"),
        ("a: !!python/name:os.system x\n", r"\(line 1\): tags such as .*python.* are not supported"),
        ("a: !include x\n", "tags such as !include"),
        ("{[a]: b}", "unhashable"),
        ("a: [", r"\(line [12]\)"),
        ("a: \x01", "control characters are not allowed"),
    ],
)
def test_yaml_that_is_refused(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=rf"(?s)the text is not usable YAML.*{says}.*; correct it$"):
        parse_yaml(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"),
        ("007", "007"),
        ("2001-01-01", "2001-01-01"),
        ("0x1f", "0x1f"),
        ("1_000", "1_000"),
        ("1:30", "1:30"),
        ("9" * 100, "9" * 100),
        ("true", True),
        ("~", None),
        ("-3", -3),
        ("2.5e1", 25.0),
        ("a: &x 1\nb: *x", {"a": 1, "b": 1}),
    ],
)
def test_plain_words_are_what_they_look_like(text: str, value: object) -> None:
    found = parse_yaml(text)
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"a: 1\nb: \xff\n", r"not UTF-8 text \(line 2\); save it as UTF-8"),
        ("a: 1\n".encode("utf-16"), "not UTF-8 text"),
        (b"a: 1\nb: \0\n", r"holds binary data \(line 2\); give a text file"),
        (b"#" * (MAX_YAML + 1), "larger than 1,048,576 bytes; split it"),
    ],
)
def test_bytes_that_are_no_text(data: bytes, says: str, tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_bytes(data)
    with pytest.raises(ConfigError, match=says):
        read_yaml(file, "the grid")


def test_what_editors_of_windows_write_is_read(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(b"\xef\xbb\xbfa: 1\r\nb: \xc3\xa9\r\n")
    assert read_yaml(file, "the grid") == {"a": 1, "b": "é"}
    file.write_bytes(b"\xef\xbb\xbffox\r\n# note\r\n\r\nowl\r\n")
    assert read_lines(file, "the class list") == ["fox", "owl"]


def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", "/dev/zero", tmp_path / "none", tmp_path / ("x" * 5_000), "a\0b"):
        with pytest.raises(ConfigError, match=r"the list\b.*; (check|save)|\(the list\); check"):
            read_text(Path(path), "the list")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"a": 1,\n "a": 2}', "'a' appears twice"),
        ("[NaN]", "NaN is not a value"),
        ("[-Infinity]", "-Infinity is not a value"),
        ("[1,\n", r"line 2"),
        ("[" * 100_000, "nested too deeply"),
        ("9" * 5_000, "usable JSON"),
    ],
)
def test_json_that_is_refused(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=rf"(?s)x\.json.*{says}.*; correct it$"):
        parse_json(text, "x.json")
