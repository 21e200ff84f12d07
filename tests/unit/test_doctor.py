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


def test_every_extra_for_users_is_listed_with_its_packages() -> None:
    """`camera` and `traces` were missing."""
    part = PROJECT.read_text().partition("[project.optional-dependencies]\n")[2].partition("\n[project.scripts]")[0]
    extras = dict(re.findall(r"^([\w-]+) = (\[(?:[^\[\]]|\[[^\]]*\])*\])", part, re.MULTILINE))
    assert set(extras) - set(doctor.EXTRAS) == {"all", "test", "docs", "services", "dev"}
    for extra, packages in doctor.EXTRAS.items():
        assert set(packages) <= set(re.findall(r'"([\w-]+)', extras[extra]))


def test_the_script_for_bash_knows_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("shtab")
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    assert subprocess.run(["bash", "-n"], input=script, text=True, timeout=60).returncode == 0
    assert [name for name in COMMANDS if name not in script] == [] and "--dtype" in script
