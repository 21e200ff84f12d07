"""A toy label-free rule, added to a copy of the library through the first four files that docs/architecture.md names.

The rule: the mean entropy of the stream's answers, which makes the logits of a stream of hard images flatter.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.architecture.test_extending import ROOT, rows

RULE = '''
"""The mean entropy of a stream's answers."""

import torch
from torch import Tensor


def updated_toy(toy: Tensor, logits: Tensor, step: Tensor) -> Tensor:
    """The mean `[]` after one more sample with logits `[C]`."""
    return toy + (torch.special.entr(logits.softmax(dim=-1)).sum(dim=-1) - toy) / (step + 1)


def flatter(logits: Tensor, toy: Tensor) -> Tensor:
    """Logits `[C]` divided by 1 plus the mean `[]`."""
    return logits / (1 + toy).unsqueeze(-1)
'''
EDITS = {
    "core/stream.py": [
        ('    token_mean: Tensor\n    """Mean token', '    toy: Tensor\n    token_mean: Tensor\n    """Mean token'),
        ("*self.stream_mean, self.token_mean]", "*self.stream_mean, self.toy, self.token_mean]"),
        ('*StreamMean._fields, "token_mean")', '*StreamMean._fields, "toy", "token_mean")'),
        ('    token_mean: Tensor\n    """After', '    toy: Tensor\n    token_mean: Tensor\n    """After'),
        ('"token_mean": self.token_mean}', '"toy": self.toy, "token_mean": self.token_mean}'),
        ('StreamMean._fields)), tensors["token_mean"]', 'StreamMean._fields)), tensors["toy"], tensors["token_mean"]'),
        ("tensors[first:second]), tensors[second])", "tensors[first:second]), *tensors[second:])"),
        (
            "        token_mean=torch.zeros",
            "        toy=torch.zeros((), device=device),\n        token_mean=torch.zeros",
        ),
        ("[*state.stream_mean, state.token_mean]", "[*state.stream_mean, state.toy, state.token_mean]"),
        ("[*delta.stream_mean, delta.token_mean]", "[*delta.stream_mean, delta.toy, delta.token_mean]"),
        ("    state.token_mean.copy_", "    state.toy.copy_(delta.toy)\n    state.token_mean.copy_"),
    ],
    "core/stream_check.py": [
        (
            '    yield 0 <= state["strength"]',
            '    yield state["toy"] >= 0, "toy is no mean"\n    yield 0 <= state["strength"]',
        ),
    ],
    "core/step.py": [
        (
            "from lessmore.core.token_mean",
            "from lessmore.core.toy import flatter, updated_toy\nfrom lessmore.core.token_mean",
        ),
        (
            "    delta = Delta(placement, stream_mean, token_mean)",
            "    toy = updated_toy(state.toy, sample.logits, state.reservoir.step)\n"
            "    delta = Delta(placement, stream_mean, toy, token_mean)",
        ),
        ("    corrected = correct(debiased,", "    corrected = correct(flatter(debiased, toy),"),
    ],
}
TRIED = """
import sys
from pathlib import Path
import torch
import lessmore
from lessmore.engines.export import load_step, save_step
from lessmore.engines.multi import Multi
from lessmore.errors import StateError
from lessmore.storage import sealed
from lessmore.storage.state import SCHEMA

CLASSES, place = ["red circle", "blue square", "green triangle"], sys.argv[1]
images = list(torch.rand(8, 3, 64, 64, generator=torch.Generator().manual_seed(0)) * 2 - 1)
made = {engine: lessmore.adapt("tiny", CLASSES, engine=engine, cache=False) for engine in ("eager", "cpu")}
answers = {engine: torch.stack([one(image).raw_scores for image in images]) for engine, one in made.items()}
assert torch.allclose(answers["eager"], answers["cpu"], atol=1e-5)
toy = made["cpu"]._answerer.state()[0]["toy"]
assert 0 < float(toy) < 1.1

setup = made["eager"]._setup
many = Multi(setup, 2)
for i, image in enumerate(images):
    both = many.predict(torch.stack([image, images[-1 - i]]))
    assert torch.allclose(both[0].scores, answers["eager"][i], atol=1e-5)

method, one = (lessmore.adapt("tiny", CLASSES, cache=False)._answerer.method for _ in range(2))
for image in images:
    one.predict(image[None])
    method.redo(one.delta())
assert torch.equal(method.state()["toy"], one.state()["toy"])

made["cpu"].save(f"{place}/state.safetensors")
twin = lessmore.adapt("tiny", CLASSES, cache=False)
twin.restore(f"{place}/state.safetensors")
assert torch.equal(twin(images[0]).raw_scores, made["cpu"](images[0]).raw_scores)
tensors, facts = sealed.read_tensors(Path(place) / "state.safetensors", SCHEMA, 1 << 30, "")
tensors["toy"].fill_(-1)
sealed.write_tensors(Path(place) / "odd.safetensors", tensors, SCHEMA, facts)
try:
    twin.restore(f"{place}/odd.safetensors")
except StateError as error:
    assert "toy is no mean" in str(error)
else:
    raise AssertionError("nobody asked what the toy can be")
twin.add_classes(["yellow star"])
twin.remove_classes(["red circle"])
assert torch.equal(twin._answerer.state()[0]["toy"], made["cpu"]._answerer.state()[0]["toy"])

save_step(made["eager"], f"{place}/step.pt2")
step = load_step(f"{place}/step.pt2")
assert torch.allclose(step(images[0][None])[0], answers["eager"][0], atol=1e-5)
print(answers["eager"].tolist())
"""


def tried(source: Path, place: Path, script: str) -> str:
    place.mkdir()
    found = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-W", "ignore", "-c", script, str(place)]
    done = subprocess.run(words, env=found, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip().splitlines()[-1]


def test_a_toy_label_free_rule_needs_the_first_four_files(tmp_path: Path) -> None:
    listed = [row[0].strip("`") for row in rows("what it does with the statistic")][:4]
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    touched = ["src/lessmore/core/toy.py", *(f"src/lessmore/{file}" for file in EDITS)]
    assert touched[1:] == listed[1:], "the page lists other files than this rule needs"
    (tmp_path / touched[0]).write_text(RULE)
    for name, edits in EDITS.items():
        file = tmp_path / "src" / "lessmore" / name
        text = file.read_text(encoding="utf-8")
        for old, new in edits:
            assert text.count(old) == 1, f"{name} has changed: {old!r}"
            text = text.replace(old, new)
        file.write_text(text, encoding="utf-8")
    plain = tried(ROOT / "src", tmp_path / "plain", PLAIN)
    assert tried(tmp_path / "src", tmp_path / "toy", TRIED) != plain, "the rule changes no answer"


PLAIN = TRIED.partition("\nassert torch.allclose")[0] + "\nprint(answers['eager'].tolist())\n"
