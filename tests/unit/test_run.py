"""Runs: what is written, what the numbers are, what the cache and the loader must not change, and the command."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

pytest.importorskip("torchmetrics")
pytest.importorskip("scipy")

import lessmore
from lessmore.cli import main
from lessmore.core.encoder import Encoded, encode
from lessmore.data.registry import open_dataset
from lessmore.errors import ConfigError, ImageError
from lessmore.lab.cache import CachedEncoding, Shards
from lessmore.lab.job import prepare_job
from lessmore.lab.loader import load_images
from lessmore.lab.runner import CheckpointPace, run_one
from lessmore.lab.sampler import Sampler
from lessmore.lab.spec import RunSpec, grid_runs
from lessmore.lab.store import read_summary
from lessmore.methods import Outcome, registry
from lessmore.methods.zeroshot import ZeroShot
from tests.small_runs import draw_folder, lines, only_run, results

IMAGES = 12


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_folder(tmp_path_factory.mktemp("photos"), IMAGES)


@pytest.fixture(scope="module")
def spec(photos: Path) -> RunSpec:
    return RunSpec("tiny", f"folder:{photos}", order="iid", device="cpu")


@pytest.fixture(scope="module")
def vlm() -> lessmore.VLM:
    return lessmore.load("tiny")


@pytest.fixture
def do(vlm: Any, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    def run(spec: RunSpec, output: str = "out", **more: Any) -> dict[str, Any]:
        summary = run_one(spec, tmp_path / output, quiet=True, **{"vlm": vlm, **more})
        assert summary is not None
        return summary

    return run


def rows(output: Path, name: str = "samples.jsonl") -> list[dict[str, Any]]:
    return lines(only_run(output) / name)


@pytest.mark.parametrize("more", [{}, {"preset": "paper"}, {"method": "zeroshot"}, {"reducer": "none"}])
def test_answers_are_those_of_the_adapter(do: Any, spec: RunSpec, more: dict[str, Any], tmp_path: Path) -> None:
    """Encodings from the cache or a guided encoder: the same answers as image by image, and the same zero-shot."""
    spec = replace(spec, **more)
    do(spec)
    job = prepare_job(spec)
    chosen = {"method": spec.method, "preset": spec.preset, "reducer": spec.reducer, "templates": job.templates}
    adapter = lessmore.adapt(job.vlm, job.classes, **chosen)
    plain = lessmore.adapt(job.vlm, job.classes, method="zeroshot", reducer="none", templates=job.templates)
    written = rows(tmp_path / "out")
    assert [row["i"] for row in written] == list(range(IMAGES))
    for row in written:
        image = job.stream.image(row["i"])
        expected, before = adapter(image), plain(image)
        assert (row["id"], row["label"]) == (job.stream.id(row["i"]), job.stream.label(row["i"]))
        assert row["prediction"] == expected.index and row["zero_shot"] == before.index
        assert row["top5"][0] == row["prediction"] and len(row["top5"]) == 5
        assert row["probability"] == pytest.approx(float(expected.raw_scores.max()), abs=2e-6)
        assert row["zero_shot_probability"] == pytest.approx(float(before.scores.max()), abs=2e-6)
        assert row["unadapted_probability"] == pytest.approx(float(expected.zero_shot_scores.max()), abs=2e-6)
        assert row["entropy"] == pytest.approx(expected.entropy, abs=2e-6)
        assert row["changed"] == expected.changed
        assert not {"ms", "time", "seconds"} & row.keys()


class Mirrored(ZeroShot):
    """Answers the image and its mirror image, as methods with views do."""

    def views(self, image: Image.Image | Tensor, seed: int) -> Tensor:
        assert isinstance(image, Image.Image) and seed == 3  # the original, so that views may be cut out of it
        plain = self.setup.model.preprocess(image)
        return torch.stack([plain, plain.flip(2)])

    def predict(self, pixels: Tensor) -> Outcome:
        encoded = encode(self.setup.vision, pixels, self.setup.preset.condensation)
        return self.answer(encoded._replace(feature=encoded.feature.mean(dim=0, keepdim=True)))

    wants = None  # type: ignore[assignment]


def test_methods_that_look_at_views_get_them(
    do: Any, spec: RunSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry.METHODS, "_own", dict(registry.METHODS._own))
    registry.register_method("mirrored")(Mirrored)
    do(replace(spec, method="mirrored", reducer="none", seed=3))
    job = prepare_job(replace(spec, method="mirrored", reducer="none", seed=3))
    adapter = lessmore.adapt(job.vlm, job.classes, method="mirrored", reducer="none", templates=job.templates, seed=3)
    for row in rows(tmp_path / "out"):
        expected = adapter(job.stream.image(row["i"])).scores.max()
        assert row["probability"] == pytest.approx(float(expected), abs=2e-6)


def test_summary_says_where_the_numbers_come_from(do: Any, spec: RunSpec, vlm: Any, tmp_path: Path) -> None:
    summary = do(replace(spec, limit=8, preset="released/dtd", R=0.8))
    assert summary["schema"] == "lessmore.run/2" and summary["tuned_on"] == "dtd" and summary["spec"]["R"] == 0.8
    assert summary["dataset"]["note"].startswith("stratified 8 of 12")
    assert summary["dataset"]["images"] == IMAGES and summary["metrics"]["n"] == 8
    cost, origin = summary["cost"], summary["provenance"]
    assert 0 < cost["gmacs_matmul"] < cost["plain_gmacs_matmul"] and 0 < cost["gmacs_paper"] < cost["plain_gmacs_paper"]
    assert 0 < cost["ms_p50"] <= cost["ms_p95"] and cost["timed"] == 8 and cost["peak_memory_mb"] > 10
    assert origin["weights"] == vlm.fingerprint() and origin["threads"] == torch.get_num_threads()
    assert origin["versions"]["torch"] == torch.__version__ and origin["hardware"]["cores"]
    assert (origin["device"], origin["dtype"], origin["one_environment"]) == ("cpu", "float32", True)
    assert origin["started"] <= origin["finished"]
    assert read_summary(only_run(tmp_path / "out")) == summary
    assert {path.name for path in only_run(tmp_path / "out").iterdir()} == {
        *("spec.json", "samples.jsonl", "timings.jsonl", "summary.json", ".lock")
    }


def test_a_finished_run_is_left_alone_unless_overwritten(do: Any, spec: RunSpec, tmp_path: Path) -> None:
    first = do(spec)
    samples = only_run(tmp_path / "out") / "samples.jsonl"
    before = samples.stat().st_mtime_ns
    assert do(spec) == first and samples.stat().st_mtime_ns == before
    again = do(spec, resume=False)
    assert again["metrics"] == first["metrics"] and samples.stat().st_mtime_ns > before


def encoded(output: Path) -> int:
    return sum(row["encoded"] for row in rows(output, "timings.jsonl"))


@pytest.mark.parametrize("more", [{}, {"method": "zeroshot"}, {"reducer": "none"}, {"model": "tiny-siglip"}])
def test_the_cache_changes_no_byte(do: Any, spec: RunSpec, more: dict[str, Any], tmp_path: Path) -> None:
    spec = replace(spec, **more)
    vlm = lessmore.load(spec.model)
    do(spec, "without", cache=False, vlm=vlm)
    do(spec, "cold", vlm=vlm)
    warm = do(spec, "warm", vlm=vlm)
    assert [encoded(tmp_path / name) for name in ("without", "cold", "warm")] == [IMAGES, IMAGES, 0]
    assert results(tmp_path / "without") == results(tmp_path / "cold") == results(tmp_path / "warm")
    assert warm["cost"]["ms_p50"] is None and warm["cost"]["timed"] == 0


def test_one_pass_of_the_encoder_serves_methods_seeds_and_orders(do: Any, spec: RunSpec, tmp_path: Path) -> None:
    do(spec, "first")
    for i, more in enumerate(({"seed": 1}, {"order": "sorted"}, {"method": "zeroshot"}, {"options": {"lam": 2.0}})):
        do(replace(spec, **more), f"other{i}")
        assert encoded(tmp_path / f"other{i}") == 0, more
    do(replace(spec, R=0.7), "elsewhere")
    assert encoded(tmp_path / "elsewhere") == IMAGES


def test_a_damaged_cache_costs_time_and_nothing_else(do: Any, spec: RunSpec, tmp_path: Path) -> None:
    do(spec, "cold")
    shards = sorted((tmp_path / "cache" / "encodings").rglob("*.safetensors"))
    assert len(shards) == 2
    shards[0].write_bytes(shards[0].read_bytes()[:100])
    shards[1].write_bytes(b"")
    do(spec, "warm")
    assert encoded(tmp_path / "warm") == IMAGES and results(tmp_path / "warm") == results(tmp_path / "cold")


def test_a_cache_that_cannot_be_written_is_given_up(do: Any, spec: RunSpec, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="not cached"):
        do(spec, "uncached", cache=tmp_path / "file")
    do(spec, "cached")
    assert results(tmp_path / "uncached") == results(tmp_path / "cached")


def test_runs_that_fill_one_cache_at_once(tmp_path: Path) -> None:
    """Shards of the same images collapse, others add up; what has tokens serves those who want features alone."""

    def entry(i: int) -> CachedEncoding:
        return CachedEncoding(Encoded(torch.full((1, 4), float(i)), torch.full((1, 2, 3), -float(i)), []), kept=i)

    runs = [Shards(tmp_path, tokens=True), Shards(tmp_path, tokens=True), Shards(tmp_path, tokens=False)]
    for shards, wanted in zip(runs, (range(70), range(70), range(60, 90)), strict=True):
        for i in wanted:
            shards.put(str(i), entry(i))
    for shards in runs:
        shards.flush()
    assert len(list(tmp_path.iterdir())) == 3
    features, tokens = Shards(tmp_path, tokens=False), Shards(tmp_path, tokens=True)
    for i in range(90):
        found = features.get(str(i))
        assert found is not None and found.kept == i and torch.equal(found.encoded.feature, entry(i).encoded.feature)
        found = tokens.get(str(i))
        assert (found is not None) == (i < 70) == (str(i) in tokens)
        assert found is None or torch.equal(found.encoded.tokens, entry(i).encoded.tokens)


def test_pixels_and_not_names_decide_about_the_cache(do: Any, spec: RunSpec, tmp_path: Path) -> None:
    """Two folders of the same name, with the same file names, and other images."""
    folders = [draw_folder(tmp_path / side / "photos", 12, seed) for side, seed in (("left", 5), ("right", 6))]
    (names,) = {tuple(sorted(p.name for p in folder.rglob("*.png"))) for folder in folders}
    assert len(names) == 12
    for folder in folders:
        for path in sorted(folder.rglob("*.png")):  # all in one class, so that the lists are the same
            shutil.move(path, folder / path.name)
        for kind in [path for path in folder.iterdir() if path.is_dir()]:
            kind.rmdir()
        for kind in ("red", "blue"):
            (folder / kind).mkdir()
        for path in folder.glob("*.png"):
            shutil.move(path, folder / "red" / path.name)
        (folder / "blue" / "x.png").write_bytes((folder / "red" / "000.png").read_bytes())
    keys = [prepare_job(replace(spec, dataset=f"folder:{folder}")).key for folder in folders]
    left, right = (open_dataset(f"folder:{folder}") for folder in folders)
    assert left.fingerprint() == right.fingerprint() and keys[0] != keys[1]
    do(replace(spec, dataset=f"folder:{folders[0]}"), "left-out")
    do(replace(spec, dataset=f"folder:{folders[1]}"), "right-out")
    assert encoded(tmp_path / "right-out") == 13


def test_the_key_follows_what_changes_numbers_and_nothing_else(spec: RunSpec, vlm: Any) -> None:
    key = prepare_job(spec, vlm).key
    same = ({"workers": 3}, {"limit": IMAGES}, {"R": 0.9}, {"device": "auto"}, {"options": {"lam": 10.0}})
    same = (*same, {"engine": "cpu"})  # what auto is on this device
    other = (
        {"engine": "eager"},
        *({"method": "zeroshot"}, {"reducer": "evit"}, {"preset": "paper"}, {"R": 0.8}, {"options": {"lam": 2.0}}),
        *({"order": "sorted"}, {"seed": 1}, {"limit": 8}, {"templates": "a drawing of a {}"}),
    )
    assert all(prepare_job(replace(spec, **more), vlm).key == key for more in same)
    keys = [prepare_job(replace(spec, **more), vlm).key for more in other]
    assert len({key, *keys}) == 1 + len(other)
    assert prepare_job(replace(spec, precision="float64")).key not in (key, *keys)


@pytest.mark.parametrize("engine", ["auto", "eager", "cpu"])
@pytest.mark.parametrize("preset", ["default", "paper"])
def test_a_run_goes_through_its_engine_and_its_key_says_which(
    do: Any, spec: RunSpec, engine: str, preset: str, tmp_path: Path
) -> None:
    """0.1 always ran `eager`, past the adapter's engines."""
    spec, found = replace(spec, engine=engine, preset=preset, limit=6), "eager" if engine == "eager" else "cpu"
    do(spec)
    assert json.loads((only_run(tmp_path / "out") / "spec.json").read_text())["identity"]["engine"] == found
    job = prepare_job(spec)
    adapter = lessmore.adapt(
        job.vlm, job.classes, preset=preset, engine=found, templates=job.templates, reducer=spec.reducer
    )
    method = Sampler(job, cache=False).method
    assert type(method) is type(adapter._answerer.method) and adapter.engine == found
    for row in rows(tmp_path / "out"):
        answer = adapter(job.stream.image(row["i"]))
        assert row["probability"] == pytest.approx(float(answer.raw_scores.max()), abs=2e-6)
        assert row["confidence"] == pytest.approx(answer.confidence, abs=2e-6)


class Spoiled(ZeroShot):
    """Answers only the first image after a reset."""

    def __init__(self, setup: registry.Setup) -> None:
        super().__init__(setup)
        self.seen = torch.zeros(1)

    def answer(self, encoded: Encoded) -> Outcome:
        self.seen += 1
        plain = super().answer(encoded)
        return plain if self.seen <= 1 else plain._replace(scores=plain.scores * torch.nan)

    def reset(self) -> None:
        self.seen.zero_()

    def state(self) -> dict[str, Tensor]:
        return {"seen": self.seen.clone()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self.seen.copy_(state["seen"])


@pytest.mark.filterwarnings("ignore:10 adapted answers in a row:UserWarning")
def test_answers_refused_in_a_row_are_counted_across_a_resume(
    do: Any, spec: RunSpec, vlm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry.METHODS, "_own", dict(registry.METHODS._own))
    registry.register_method("spoiled")(Spoiled)
    spec = replace(spec, method="spoiled", reducer="none")
    do(spec)
    assert [row["refused"] for row in rows(tmp_path / "out")] == [False, *[True] * 10, False]
    counted = iter(range(1, IMAGES))
    assert run_one(spec, tmp_path / "again", quiet=True, vlm=vlm, stop=lambda: next(counted) == 6) is None
    do(spec, "again")
    assert rows(tmp_path / "again") == rows(tmp_path / "out")


@pytest.mark.parametrize("kind", ["ENCODING", "ANSWER", "CLASS_EMBEDDING"])
def test_results_of_another_algorithm_are_not_taken_for_this_one(
    do: Any, spec: RunSpec, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs are done again, and of the caches exactly those that the algorithm makes."""
    do(spec)
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*.safetensors")}
    for module in ("core.algorithm", "lab.cache", "models.class_embeddings"):
        monkeypatch.setattr(f"lessmore.{module}.{kind}", 10**6, raising=False)
    do(spec)
    assert len(list((tmp_path / "out").glob("*/summary.json"))) == 2
    found = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*.safetensors")}
    new = {path.relative_to(tmp_path / "cache").parts[0] for path in found.keys() - kept.keys()}
    assert new == {"ENCODING": {"encodings"}, "CLASS_EMBEDDING": {"class-embeddings"}, "ANSWER": set()}[kind]
    assert all(found[path] == when for path, when in kept.items())


def test_names_of_runs_are_readable_and_short(spec: RunSpec, vlm: Any, tmp_path: Path) -> None:
    name = prepare_job(spec, vlm).name
    assert "tiny_tca_tca_R0.9_iid_seed0_" in name and name == Path(name).name
    long = draw_folder(tmp_path / ("bilder-größe-" * 15), 3)
    name = prepare_job(replace(spec, dataset=f"folder:{long}"), vlm).name
    assert len(name.encode()) <= 240 and name.isascii()


def test_global_random_state_is_left_alone(do: Any, spec: RunSpec) -> None:
    before = (torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate())
    do(spec)
    after = (torch.get_rng_state(), np.random.get_state()[1], random.getstate())
    assert torch.equal(before[0], after[0]) and np.array_equal(before[1], after[1]) and before[2] == after[2]


@pytest.fixture
def damaged(photos: Path, tmp_path: Path) -> Path:
    """The photos, one of them cut short and one no image at all."""
    folder = tmp_path / "damaged"
    shutil.copytree(photos, folder)
    first, second, *_ = sorted(folder.rglob("*.png"))
    first.write_bytes(first.read_bytes()[:300])
    second.write_text("not an image")
    return folder


def test_bad_images_are_recorded_with_their_reason(do: Any, spec: RunSpec, damaged: Path, tmp_path: Path) -> None:
    found = do(replace(spec, dataset=f"folder:{damaged}"))["metrics"]
    assert (found["n"], found["failed"]) == (IMAGES - 2, 2)
    failed = [row for row in rows(tmp_path / "out") if "error" in row]
    assert len(failed) == 2 and all(row["id"] in row["error"] and "prediction" not in row for row in failed)


def test_workers_bring_the_same_images_in_the_same_order(spec: RunSpec, damaged: Path, vlm: Any) -> None:
    stream = prepare_job(replace(spec, dataset=f"folder:{damaged}"), vlm).stream
    wanted = [7, 2, *range(8, IMAGES)]
    alone = list(load_images(stream, vlm.preprocess, wanted, workers=0))
    helped = list(load_images(stream, vlm.preprocess, wanted, workers=2))
    assert [sample.i for sample in helped] == wanted
    assert [sample.error for sample in helped] == [sample.error for sample in alone]
    assert all(np.array_equal(a.pixels, b.pixels) for a, b in zip(alone, helped, strict=True) if a.pixels is not None)


def test_checkpoints_keep_to_their_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("lessmore.lab.runner.time.perf_counter", lambda: now[0])
    pace, count = CheckpointPace(0.02), 0
    for sample in range(20_000):
        now[0] += 0.05
        if pace.due():
            count += 1
            with pace.spending():
                now[0] += 0.3 if sample % 3 else 0.9
    assert 0.018 * pace.elapsed < pace.spent < 0.0205 * pace.elapsed
    assert count > 10


# ---- the grid and the command


def test_lists_make_a_product(photos: Path) -> None:
    wishes = {"model": "tiny", "dataset": f"folder:{photos}", "method": ["tca", "zeroshot"], "seed": [0, 1, 2]}
    specs = grid_runs({**wishes, "corruption": ["none", "fog:3"], "limit": 5})
    assert len(specs) == len(set(map(str, specs))) == 12
    assert {spec.corruption for spec in specs} == {None, "fog:3"} and {spec.limit for spec in specs} == {5}


@pytest.mark.parametrize(
    ("wishes", "message"),
    [
        ({"dataset": "eurosat"}, "no model"),
        ({"model": "tiny", "dataset": "eurosat", "modle": 1}, "did you mean model"),
        ({"model": "tiny", "dataset": "eurosat", "precision": "float23"}, "did you mean float32"),
        ({"model": "tiny", "dataset": "eurosat", "preset": ["defualt"]}, "did you mean default"),
        ({"model": "tiny", "dataset": "eurosat", "R": [0.9, 1.5]}, "R must lie"),
        ({"model": "tiny", "dataset": "eurosat", "workers": -1}, "workers must be"),
    ],
)
def test_wrong_wishes_are_refused_before_anything_is_loaded(wishes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        grid_runs(wishes)


def test_a_device_that_is_not_there_is_one_sentence(spec: RunSpec, tmp_path: Path) -> None:
    for device in ("cuda:77", "toaster"):
        with pytest.raises(ConfigError, match="take auto or cpu"):
            run_one(replace(spec, device=device), tmp_path)


def call(*arguments: object) -> int:
    return main(["run", *map(str, arguments)])


def test_the_command_runs_a_product_and_skips_what_is_done(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["--model", "tiny", "--dataset", f"folder:{photos}", "--method", "tca", "zeroshot", "--seed", 0, 1]
    command += ["--workers", 0, "--limit", 6, "--output", tmp_path / "out", "--device", "cpu"]
    assert call(*command, "--quiet") == 0
    first = capsys.readouterr()
    assert len(first.out.splitlines()) == 4 and first.err == "" and "4/4" in first.out and "gain" in first.out
    assert len([path for path in (tmp_path / "out").iterdir() if (path / "summary.json").exists()]) == 4
    assert call(*command) == 0
    assert capsys.readouterr().out == first.out


def test_a_file_of_options_and_flags_that_win(photos: Path, tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "grid.yaml"
    file.write_text(
        f"model: tiny\ndataset: folder:{photos}\nmethod: [tca, zeroshot]\nlimit: 0.5\noptions: {{lam: 2}}\n"
    )
    more = ("--output", tmp_path / "out", "--workers", 0, "--no-cache", "--quiet")
    assert call("--config", file, "--method", "zeroshot", *more) == 0
    out = capsys.readouterr().out
    assert "1/1" in out and "zeroshot+none" in out and f"of {IMAGES // 2}," in out
    summary = json.loads((only_run(tmp_path / "out") / "summary.json").read_text())
    assert summary["spec"]["options"] == {"lam": 2} and not (tmp_path / "cache" / "encodings").exists()


def test_bad_images_end_the_command_with_3(damaged: Path, tmp_path: Path, capsys: Any) -> None:
    command = ("--model", "tiny", "--dataset", f"folder:{damaged}", "--workers", 0, "--output", tmp_path / "out")
    assert call(*command) == 3
    assert "2 images could not be read" in capsys.readouterr().out
    assert call(*command) == 3  # still true of the finished run


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--dataset", "eurosat", "--root", "nowhere"), "is not a folder"),
        (("--dataset", "folder:nowhere"), "no folder"),
        (("--method", "tcaa"), "did you mean tca"),
        (("--resume", "--overwrite"), "mutually exclusive"),
        (("--no-cache", "--cache", "x"), "mutually exclusive"),
        (("--order", "sideways"), "order"),
        (("--engine", "chunk"), "image by image"),
        (("--engine", "graf"), "did you mean graph"),
    ],
)
def test_mistakes_are_one_sentence(
    photos: Path, tmp_path: Path, capsys: Any, arguments: tuple[str, ...], message: str
) -> None:
    usual = ("--model", "tiny", "--dataset", f"folder:{photos}", "--workers", "0", "--output", tmp_path / "out")
    assert call(*usual, *arguments) == 1  # of an option that is given twice the last one counts
    error = capsys.readouterr().err
    assert message in error and len(error.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_images_that_can_never_be_read_say_so(do: Any, spec: RunSpec, tmp_path: Path) -> None:
    folder = draw_folder(tmp_path / "bad", 4)
    for path in folder.rglob("*.png"):
        path.write_text("")
    found = do(replace(spec, dataset=f"folder:{folder}"))["metrics"]
    assert (found["n"], found["failed"], found["accuracy"]) == (0, 4, None)
    with pytest.raises(ImageError):
        open_dataset(f"folder:{folder}").image(0)
