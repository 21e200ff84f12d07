"""Timing: who is compared with what, and the bench command's table."""

from __future__ import annotations

import json
import time

import pytest
import torch

from lessmore.cli import bench, main
from lessmore.lab.latency import Ratio, interleaved, measure_latency, percentile, time_ratio
from lessmore.lab.memory import measure_peak


def test_contenders_take_turns_in_changing_order() -> None:
    calls: list[str] = []
    contenders = {name: (lambda name=name: calls.append(name)) for name in "abc"}
    times = measure_latency(contenders, rounds=20, warmup=2)
    rounds = [calls[i : i + 3] for i in range(0, len(calls), 3)]
    assert len(rounds) == 22
    assert all(sorted(turn) == ["a", "b", "c"] for turn in rounds)
    assert len({tuple(turn) for turn in rounds}) > 1
    assert {name: len(values) for name, values in times.items()} == {"a": 20, "b": 20, "c": 20}


def test_times_are_the_contenders_own() -> None:
    times = measure_latency({"short": lambda: None, "long": lambda: time.sleep(0.01)}, rounds=3)
    assert min(times["long"]) >= 0.01
    assert all(short < long for short, long in zip(times["short"], times["long"], strict=True))


def test_rounds_may_be_cut_short() -> None:
    calls: list[int] = []
    for times in interleaved({"a": lambda: calls.append(1)}, 1000, warmup=1):
        if len(times["a"]) == 4:
            break
    assert len(calls) == 5


def test_a_ratio_is_taken_round_by_round() -> None:
    base = [1.0, 50.0, 2.0, 30.0, 4.0]  # a machine that is busy now and then
    assert time_ratio([2 * t for t in base], base) == Ratio(2.0, 2.0, 2.0)
    found = time_ratio([1.0, 1.2, 1.1, 0.9, 1.0], [1.0] * 5)
    assert found.low <= found.value <= found.high
    assert found == time_ratio([1.0, 1.2, 1.1, 0.9, 1.0], [1.0] * 5)


def test_percentiles_interpolate() -> None:
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2
    assert percentile([0.0, 10.0], 0.95) == pytest.approx(9.5)
    assert percentile([7.0], 0.95) == 7


def test_peak_memory_counts_what_is_held_at_once() -> None:
    def work() -> torch.Tensor:
        big = torch.zeros(250_000)  # 1 MB
        big = big + 1  # 2 MB at this moment
        return big[:10].clone()

    made, peak = measure_peak(work)
    assert made.tolist() == [1.0] * 10
    assert 2_000_000 <= peak < 2_100_000


def run_bench(capsys: pytest.CaptureFixture[str], *more: str) -> str:
    assert (
        main(
            [
                "bench",
                "tiny",
                "--device",
                "cpu",
                "--classes",
                "7",
                "--seconds",
                "0.1",
                "--engines",
                "eager",
                "cpu",
                *more,
            ]
        )
        == 0
    )
    out, err = capsys.readouterr()
    assert "100%" in err
    return out


def test_bench_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(run_bench(capsys, "--json"))
    assert (found["model"], found["weights"], found["classes"], found["dtype"]) == ("tiny", "loaded", 7, "float32")
    engines = {"eager", "cpu"}
    assert engines <= set(bench.engines(bench.tower("tiny")[0]))
    assert {row["engine"] for row in found["rows"]} == engines
    names = [contender.name for contender in bench.CONTENDERS]
    for engine in engines:
        rows = {row["name"]: row for row in found["rows"] if row["engine"] == engine}
        assert list(rows) == names
        assert rows["plain"]["of_plain"] == 1
        assert rows["TCA, R = 0.7"]["gmacs"] < rows["TCA, R = 0.9"]["gmacs"] < rows["plain"]["gmacs"]
        for row in rows.values():
            assert row["rounds"] >= 3
            assert 0 < row["p50_ms"] <= row["p95_ms"]
            assert row["images_per_s"] == pytest.approx(1000 / row["p50_ms"])
            assert row["memory_mb"] > 0


def test_bench_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    out = run_bench(capsys)
    assert "model tiny, weights loaded, classes 7" in out
    assert len([line for line in out.splitlines() if line.startswith(("eager", "cpu"))]) == 10
    assert "than the plain model" in out.splitlines()[-2]
    assert out.splitlines()[-1].startswith("Fastest with unchanged answers: engine=")


def test_the_verdict_names_what_is_slower() -> None:
    rows = [
        {"engine": "cpu", "name": "plain", "of_plain": 1.0},
        {"engine": "cpu", "name": "TCA, R = 0.9", "of_plain": 1.21},
        {"engine": "cpu", "name": "TCA, R = 0.7", "of_plain": 0.7},
    ]
    assert bench.bench_verdict(rows) == "TCA is SLOWER than the plain model here: TCA, R = 0.9 in cpu (1.21 of plain)."
    assert "no slower" in bench.bench_verdict([rows[0], rows[2]])


def test_the_advice_says_what_to_set() -> None:
    rows = [
        {"engine": engine, "name": "TCA, R = 0.9", "p50_ms": ms}
        for engine, ms in (("eager", 9.0), ("cpu", 8.0), ("openvino", 8.5), ("openvino int8", 4.0))
    ]
    assert bench.bench_advice(rows) == [
        "Fastest with unchanged answers: engine='cpu' (8.0 ms).",
        "Fastest if a few answers in a hundred may differ: engine='openvino', precision='int8' (4.0 ms).",
    ]
    assert len(bench.bench_advice(rows[:2])) == 1


def test_every_engine_and_precision_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    vision = bench.tower("tiny")[0]
    monkeypatch.setattr(bench.cpu, "has_bfloat16", lambda: True)
    monkeypatch.setattr(bench, "has_openvino", lambda: True)
    known = bench.engines(vision)
    assert known[:4] == ["eager", "cpu", "cpu bfloat16", "openvino"] and "openvino bfloat16" in known
    for engine in known:
        names = [contender.name for contender in bench.contenders_of(engine)]
        assert names[0] == "plain" and "TCA, R = 0.9" in names
    monkeypatch.setattr(bench, "has_openvino", lambda: False)
    assert bench.engines(vision) == ["eager", "cpu", "cpu bfloat16"]


def test_shapes_known_by_name_say_that_their_weights_are_random() -> None:
    assert bench.tower("ViT-B-32")[1]
    assert not bench.tower("tiny")[1]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["tinny"], "tinny"),
        (["tiny", "--classes", "0"], "1 or more"),
        (["tiny", "--seconds", "0"], "more than 0"),
        (["tiny", "--engines", "openvin"], "engine here"),
        (["tiny", "--device", "gpu"], "did you mean cpu?"),
        (["tiny", "--dtype", "float61"], "did you mean float16"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *arguments]) == 1
    out, err = capsys.readouterr()
    assert out == "" and expected in err and len(err.strip().splitlines()) == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_no_cuda_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "tiny", "--device", "cuda"]) == 1
    assert "take --device cpu" in capsys.readouterr().err
