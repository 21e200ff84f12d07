"""Figures: their numbers against brute force, the same every time, on towers with and without a class token."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

pytest.importorskip("matplotlib")

from scipy.stats import spearmanr

from lessmore.config import preset
from lessmore.core.condense.source import KEPT, source_map
from lessmore.core.encoder import PLAIN, encode, pass_block
from lessmore.core.reservoir import ready_anchors
from lessmore.errors import ConfigError
from lessmore.lab.job import prepare_job
from lessmore.lab.runner import run_one
from lessmore.lab.spec import RunSpec
from lessmore.models.load import load
from lessmore.models.vlm import VLM
from lessmore.paper.figures import (
    FIGURES,
    RUN_PLOTS,
    Request,
    anchors,
    heads,
    ood,
    plots,
    save_figure,
    save_run_plots,
    theory,
)
from lessmore.paper.figures.leave_one_out import RemovalEffect, correlation, cosines_without
from lessmore.paper.figures.request import FigureSample, at_ratio, json_data, online, samples
from lessmore.paper.figures.trace import token_features, trace_blocks
from tests.small_runs import draw_folder

MODELS = ("tiny", "tiny-siglip")
FEW = {"leave-one-out": 2, "anchor-alignment": 12, "heads": 2, "tokens": 2, "ood-samples": 12, "theory": 4}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_folder(tmp_path_factory.mktemp("world"), 24)


@pytest.fixture(scope="module")
def vlms() -> dict[str, VLM]:
    return {name: load(name) for name in MODELS}


@pytest.fixture
def ask(folder: Path, vlms: dict[str, VLM]) -> Any:
    def request(model: str = "tiny", limit: int = 4, **spec: Any) -> Request:
        job = prepare_job(RunSpec(model, f"folder:{folder}", **spec), vlms[model])
        return Request.from_job(job, limit, cache=False)

    return request


def wide(request: Request) -> Request:
    return replace(request, vlm=request.vlm.to(dtype=torch.float64), text=F.normalize(request.text.double(), dim=-1))


@pytest.mark.parametrize("model", MODELS)
def test_leaving_a_token_out_is_really_leaving_it_out(model: str, ask: Any) -> None:
    request = wide(ask(model, 1))
    vit, (sample,) = request.vlm.vision, samples(request)
    text = request.text[sample.label]
    whole, without = cosines_without(vit, sample.pixels, text)
    assert without.shape == (vit.shape.patches,)
    torch.testing.assert_close(whole, encode(vit, sample.pixels).feature[0] @ text, rtol=0, atol=1e-12)
    first = int(vit.shape.class_token)
    for patch in (0, 17, vit.shape.patches - 1):
        x = vit.embed(sample.pixels)
        x = torch.cat([x[:, : first + patch], x[:, first + patch + 1 :]], dim=1)
        for block in vit.blocks:
            x = pass_block(block, x, vit.shape.first, PLAIN).x
        expected = F.cosine_similarity(vit.pool(x)[0], text, dim=0)
        torch.testing.assert_close(without[patch], expected, rtol=0, atol=1e-12)


def test_correlation_is_spearmans() -> None:
    rng = np.random.default_rng(0)
    found = RemovalEffect(0.5, rng.normal(size=40), rng.random(40))
    assert correlation(found) == pytest.approx(spearmanr(found.attention, found.change).statistic)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("settings", [{"R": 0.7}, {"preset": "paper", "R": 0.7}, {"reducer": "evit", "R": 0.7}])
def test_the_walk_sees_what_the_encoder_does(model: str, settings: dict[str, Any], ask: Any) -> None:
    request = ask(model, 3, **settings)
    *_, last = online(request)
    config = request.settings.condensation
    guide = ready_anchors(last.after, "class")
    found = trace_blocks(request.vlm.vision, last.sample.pixels, config, guide)
    encoded = encode(request.vlm.vision, last.sample.pixels, config, guide)
    torch.testing.assert_close(found.feature, encoded.feature, rtol=0, atol=1e-6)
    assert tuple(station.block for station in found.condensing()) == source_map(encoded.steps).blocks
    first = found.condensing()[0]
    assert first.fate is not None and torch.equal(first.fate, source_map(encoded.steps).fate[:, 0])
    assert first.prior is not None and float(first.prior.sum()) == pytest.approx(1)


@pytest.mark.parametrize("model", MODELS)
def test_a_token_alone_goes_through_pooling_and_projection(model: str, ask: Any) -> None:
    request = ask(model, 1)
    vit, (sample,) = request.vlm.vision, samples(request)
    tokens = trace_blocks(vit, sample.pixels, PLAIN).stations[3].tokens
    token = tokens[0, 5]
    if vit.map_pool is None:
        expected = vit.projection(vit.norm_post(token))
    else:
        expected = vit.projection(vit.map_pool(vit.norm_post(token)[None, None])[0])
    torch.testing.assert_close(token_features(vit, tokens)[0, 5], F.normalize(expected, dim=-1), rtol=0, atol=1e-5)


def test_variance_divergence_and_weights_by_hand() -> None:
    prior = torch.tensor([0.5, 0.25, 0.125, 0.125], dtype=torch.float64)
    q = 1 / 2
    by_hand = q * math.log(q / 0.5) + q * math.log(q / 0.125)
    assert float(theory.divergence(torch.tensor([0, 2]), prior)) == pytest.approx(by_hand)
    assert float(theory.divergence(torch.arange(4), torch.full((4,), 0.25))) == pytest.approx(0)
    cosine = torch.tensor([0.1, 0.2, 0.6], dtype=torch.float64)
    assert float(theory.variance(cosine)) == pytest.approx(((0.2) ** 2 + 0.1**2 + 0.3**2) / 3)
    own, others = torch.tensor(0.1), torch.tensor([0.1, 0.3])
    by_hand = math.log(math.exp(-1.0) / ((math.exp(-1.0) + math.exp(-3.0)) / 2))
    assert theory.gibbs(own, others, 10.0) == pytest.approx(by_hand)
    assert theory.gibbs(own, others, 0.0) == pytest.approx(0)


def test_the_theorys_figures_are_those_of_the_tokens(ask: Any) -> None:
    request = ask(limit=2, preset="fixed")
    data = theory.measure(request)
    assert list(data["blocks"]) == ["3", "6", "9"]
    rows: dict[str, list[float]] = {"all": [], "kept": []}
    for sample in samples(request):
        station = trace_blocks(request.vlm.vision, sample.pixels, request.settings.condensation).condensing()[0]
        assert station.fate is not None
        cosine = token_features(request.vlm.vision, station.tokens)[0] @ request.text[sample.label]
        rows["all"].append(float(cosine.double().numpy().var()))
        rows["kept"].append(float(cosine.double().numpy()[station.fate[0].numpy() == KEPT].var()))
    for name, values in rows.items():
        assert data["blocks"]["3"]["variance"][name]["mean"] == pytest.approx(np.mean(values), rel=1e-4)
    bound = data["bound"]
    kl = data["blocks"]["9"]["kl"]["kept"]["mean"]
    assert bound["m"] == 1  # the first image met an empty reservoir
    assert bound["root_as_printed"] == pytest.approx(math.sqrt((kl + math.log(1 / 0.05)) / 2), rel=1e-4)
    assert {row["met"] for row in data["assumptions"]} >= {True, False, None}


def test_the_memories_hold_what_they_say(ask: Any) -> None:
    request = ask(limit=24)
    data = anchors.measure(request)
    steps = list(online(request))
    features = F.normalize(torch.stack([met.feature for met in steps]).double(), dim=-1)
    cosines, seen = [], 0
    for c in range(len(request.names)):
        ids = steps[-1].after.ids[c]
        if (ids >= 0).any():
            mean = F.normalize(features[ids[ids >= 0]].sum(dim=0), dim=-1)
            cosines.append(float(mean @ request.text[c].double()))
    assert data["series"]["reservoir"]["mean_cosine"][-1] == pytest.approx(np.mean(cosines), abs=1e-5)
    by_class: dict[int, list[tuple[Tensor, int]]] = {}
    for met in steps:
        by_class.setdefault(int(met.answer.delta.placement.label), []).append((met.feature, met.sample.label))
        seen += 1
    everything = [
        F.normalize(sum(F.normalize(f.double(), dim=-1) for f, _ in of), dim=-1) @ request.text[c].double()
        for c, of in by_class.items()
    ]
    pure = [np.mean([truth == c for _, truth in of]) for c, of in by_class.items()]
    assert data["images"] == seen == 24 and data["classes_filled"][-1] == len(by_class)
    assert data["series"]["everything"]["mean_cosine"][-1] == pytest.approx(float(np.mean(everything)), abs=1e-5)
    assert data["series"]["everything"]["purity"][-1] == pytest.approx(np.mean(pure), abs=1e-5)


def test_random_memory_keeps_every_sample_alike() -> None:
    counts = np.zeros(12)
    for seed in range(600):
        track = anchors.Track(torch.eye(2), 3, seed)
        kept: list[int] = []
        for i in range(12):
            track._draw(kept, list(range(i + 1)))
        assert len(kept) == len(set(kept)) == 3
        counts[kept] += 1
    assert np.abs(counts - 150).max() < 50  # 600 · 3/12, four standard deviations


def test_heads_are_ranked_and_outliers_found() -> None:
    rows = torch.tensor(
        [[0.90, 0.04, 0.03, 0.02, 0.01], [0.01, 0.33, 0.31, 0.20, 0.15], [0.01, 0.30, 0.32, 0.22, 0.15]]
    )
    seen = heads.head_views(rows, keep=3)
    assert seen.ranks.tolist() == [0 + 4 + 4, 1 + 0 + 1, 2 + 1 + 0, 3 + 2 + 2, 4 + 3 + 3]
    assert seen.kept["mean"].tolist() == [True, True, True, False, False]
    assert seen.kept["rank"].tolist() == [False, True, True, True, False]
    assert seen.kept["1"].tolist() == [True, True, True, False, False]
    assert seen.outliers.nonzero().tolist() == [[0, 0]]
    assert heads.overlap(seen.kept["mean"], seen.kept["rank"]) == pytest.approx(1 / 3)
    assert heads.overlaps(seen).shape == (5, 5)


def test_failures_are_sorted_by_confidence_one_class_at_a_time() -> None:
    def case(i: int, label: int, before: int, after: int, sure: float) -> ood.Case:
        return ood.Case(
            FigureSample(i, str(i), label, "none", Image.new("RGB", (8, 8)), torch.empty(0)), before, 0.5, after, sure
        )

    cases = [
        case(0, 0, 0, 1, 0.6),
        case(1, 0, 0, 1, 0.9),
        case(2, 1, 1, 0, 0.7),
        case(3, 1, 0, 1, 0.99),
        case(4, 1, 1, 1, 1),
    ]
    assert [one.kind for one in cases] == ["broken", "broken", "broken", "fixed", "right"]
    assert [one.sample.i for one in ood.worst(cases, "broken")] == [1, 2, 0]
    assert ood.worst(cases, "wrong") == []


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_drawn_and_saved(name: str, ask: Any, tmp_path: Path) -> None:
    import matplotlib

    before = (
        dict(matplotlib.rcParams),
        torch.get_rng_state().tolist(),
        random.getstate(),
        np.random.get_state()[1].tolist(),
    )
    drawn = FIGURES[name].draw(ask(limit=FEW[name]))
    paths = save_figure(drawn, tmp_path, name)
    after = (
        dict(matplotlib.rcParams),
        torch.get_rng_state().tolist(),
        random.getstate(),
        np.random.get_state()[1].tolist(),
    )
    assert after == before
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(p.name for p in paths)
    with Image.open(paths[0]) as picture:
        assert picture.format == "PNG" and picture.width == 1080
        assert len(np.unique(np.asarray(picture.convert("L")))) > 20
    assert ElementTree.parse(paths[1]).getroot().tag.endswith("svg")
    content = json.loads(paths[2].read_text(), parse_constant=lambda x: pytest.fail(f"{x} is not JSON"))
    assert content["data"] == drawn.data and content["caption"] == drawn.caption and "tiny on" in drawn.caption


@pytest.mark.parametrize("name", FIGURES)
def test_towers_without_a_class_token_are_drawn_too(name: str, ask: Any) -> None:
    drawn = FIGURES[name].draw(ask("tiny-siglip", limit=2 if name != "leave-one-out" else 1))
    assert drawn.data["class_token"] is False
    assert name not in ("leave-one-out", "heads") or "no class token" in drawn.caption


@pytest.mark.parametrize("name", FIGURES)
def test_the_same_request_gives_the_same_data(name: str, ask: Any) -> None:
    first, second = (FIGURES[name].draw(ask(limit=1 if name == "leave-one-out" else 3)) for _ in range(2))
    assert json.dumps(first.data) == json.dumps(second.data) and first.caption == second.caption


@pytest.mark.parametrize("name", ["heads", "tokens"])
def test_anchors_guide_where_the_settings_say_so(name: str, ask: Any) -> None:
    guided, alone = (FIGURES[name].draw(ask(limit=3, preset=p, R=0.7)) for p in ("paper", "default"))
    assert guided.data != alone.data


def test_what_cannot_be_drawn_is_said(ask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("heads", "theory"):
        with pytest.raises(ConfigError, match="R below 1"):
            FIGURES[name].draw(ask(R=1.0))
    with pytest.raises(ConfigError, match="no image"):
        FIGURES["tokens"].draw(ask(limit=0))
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match="lessmore\\[report\\]"):
        FIGURES["tokens"].draw(ask(limit=1))


def test_a_rate_gives_way_to_R() -> None:
    config = at_ratio(preset("released").condensation, 0.7)
    assert config.R == 0.7 and config.counts == "table" and config.rate is None


def test_plain_data_is_json() -> None:
    value = {"a": torch.tensor([1.0, 1 / 3]), 2: np.float64(math.nan), "c": (np.int64(3), True, None, "x")}
    assert json_data(value) == {"a": [1.0, 0.333333], "2": None, "c": [3, True, None, "x"]}


@pytest.fixture(scope="module")
def runs(folder: Path, tmp_path_factory: pytest.TempPathFactory, vlms: dict[str, VLM]) -> Path:
    output = tmp_path_factory.mktemp("runs")
    for request in ({"seed": 0}, {"seed": 1}, {"method": "zeroshot", "reducer": "evit", "R": 0.7}):
        run_one(
            RunSpec("tiny", f"folder:{folder}", limit=12, **request), output, quiet=True, cache=False, vlm=vlms["tiny"]
        )
    return output


def test_plots_of_runs_agree_with_their_summaries(runs: Path) -> None:
    evit, tca = sorted(plots.lines_of([runs]), key=lambda line: line.label == "tca, R = 0.9")
    assert (evit.label, tca.label) == ("zeroshot, evit, R = 0.7", "tca, R = 0.9") and len(tca.runs) == 2
    of_evit, _ = plots.plot_calibration([evit, tca]).data["lines"]
    sure, right, share = (np.asarray(of_evit[name]) for name in ("confidence", "accuracy", "share"))
    assert share.sum() == pytest.approx(1, abs=1e-5)
    error = float((share * np.abs(sure - right)).sum())
    assert error == pytest.approx(evit.mean("metrics", "ece"), abs=1e-5)
    gains = plots.plot_class_gains([evit, tca]).data["lines"]
    for line, found in zip((evit, tca), gains, strict=True):
        total = sum(one["n"] * one["gain"] for one in found["gains"]) / sum(one["n"] for one in found["gains"])
        assert total == pytest.approx(line.mean("metrics", "gain"), abs=1e-4)
        assert {one["class"] for one in found["gains"]} <= set(load_names(line))
    point = plots.against_gmacs([evit, tca]).data["lines"][1]
    assert point["accuracy"] == pytest.approx(tca.mean("metrics", "accuracy"), abs=1e-5)


def load_names(line: plots.PlotLine) -> list[str]:
    return [path.name for path in Path(line.runs[0].summary["spec"]["dataset"][7:]).iterdir()]


def test_run_plots_are_saved_and_survive_odd_names(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots.Finished, "header", {"classes": ["$x_{$ <b>", "a_b^c", "ü" * 60, *"def"]})
    paths = save_run_plots([runs], tmp_path)
    assert [path.name for path in paths] == [f"{name}.{end}" for name in RUN_PLOTS for end in ("png", "svg", "json")]
    assert all(path.stat().st_size > 200 for path in paths)
    (tmp_path / "nothing").mkdir()
    with pytest.raises(ConfigError, match="no finished run"):
        save_run_plots([tmp_path / "nothing"], tmp_path)
