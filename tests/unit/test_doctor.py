"""`lessmore doctor` and `lessmore completion`."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from lessmore.cli import COMMANDS, main
from lessmore.lab import doctor

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def test_golden_answers_hold_and_a_wrong_one_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(doctor.GOLDEN) == 12 and len({label for label, _ in doctor.GOLDEN}) > 3
    for name in ("eager", "cpu"):
        assert doctor.check_one_engine(name).works
    wrong = (("another", 0.5), *doctor.GOLDEN[1:])
    monkeypatch.setattr(doctor, "GOLDEN", wrong)
    found = doctor.check_one_engine("eager")
    assert not found.works and found.says == "11 of 12 golden answers"
    assert main(["doctor"]) == 1


def test_what_scripts_read(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(doctor.EXTRAS, "made-up", ("no-such-package",))
    monkeypatch.setattr(doctor, "check_engines", lambda: [doctor.check_one_engine("eager")])
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["extras"]["made-up"] == {"no-such-package": None} and found["engines"][0]["works"] is True
    assert main(["doctor"]) == 0
    assert "missing no-such-package: pip install 'lessmore[made-up]'" in capsys.readouterr().out


def test_every_extra_named_is_one() -> None:
    assert all(re.search(rf"^{extra} = \[", PROJECT.read_text(), re.MULTILINE) for extra in doctor.EXTRAS)


def test_the_script_for_bash_knows_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("shtab")
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    assert subprocess.run(["bash", "-n"], input=script, text=True, timeout=60).returncode == 0
    assert [name for name in COMMANDS if name not in script] == [] and "--dtype" in script
