"""What adaptation costs in time, all sides in one run: the step, batches, scaling, memory, and peers.

    python benchmarks/speed.py --device cuda --output benchmarks/results/speed.json --plot docs/speed.png
    python benchmarks/speed.py --images 20 --sections step

Shapes known by name get random weights; speed does not depend on their values. Contenders take turns, medians are
reported, and a ratio is taken round by round. Peers are timed where they can be imported; `--released` names a checkout
of the paper's code and `--tome` one of ToMe's. Rows that `--output` holds already stay unless they are measured again.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import peers
import torch
import torch.nn.functional as F
from torch import Tensor

import lessmore
from lessmore.assets import MODELS
from lessmore.config import preset
from lessmore.core.condense.registry import resolve_reducer
from lessmore.core.encoder import PLAIN, encode
from lessmore.core.vit import ViT
from lessmore.engines import build
from lessmore.engines.capture import capture
from lessmore.lab.latency import measure_latency, time_ratio
from lessmore.methods import Method, Setup
from lessmore.models.shapes import SHAPES
from lessmore.storage.files import write_json

CONTENDERS = (
    ("plain", "zeroshot", "none", "fixed", 1.0),
    ("EViT, R = 0.9", "zeroshot", "evit", "fixed", 0.9),
    ("TCA, R = 0.9", "tca", "tca", "fixed", 0.9),
    ("TCA, R = 0.7", "tca", "tca", "fixed", 0.7),
    ("TCA with anchors (paper), R = 0.9", "tca", "tca", "paper", 0.9),
    ("default, R = 0.9", "tca", "tca", "default", 0.9),
    ("default, R = 0.9, no debiasing", "tca", "tca", "default", 0.9, "off"),
)
Row = dict[str, Any]


def tower(name: str, device: str, dtype: torch.dtype) -> ViT:
    """The vision tower of an embedded model, or a random one of a known shape, large enough to tell images apart."""
    if name in MODELS:
        return lessmore.load(name).to(device, dtype).vision
    vit, random = ViT(SHAPES[name][0]).eval().requires_grad_(False), torch.Generator().manual_seed(0)
    for key, parameter in vit.named_parameters():
        if parameter.ndim > 1 or key == "class_embed":
            scale = 1.0 if key in ("positions", "class_embed") else parameter[0].numel() ** -0.5
            parameter.copy_(torch.randn(parameter.shape, generator=random) * scale)
    return vit.to(device, dtype)


def contender(
    vit: ViT, engine: str, C: int, method: str, reduce: str, name: str, R: float, debias: str = "", **options: Any
) -> Method:
    """A method on random class embeddings."""
    text = torch.randn(C, vit.shape.embed, generator=torch.Generator().manual_seed(0))
    chosen = preset(name, R=R, **options, **({"debias": debias} if debias else {}))
    chosen = chosen._replace(condensation=resolve_reducer(reduce, chosen.condensation))
    return build(engine, method, Setup(vit, F.normalize(text, dim=-1).to(vit.positions), 100.0, chosen))


def pixels(vit: ViT, B: int = 1) -> Tensor:
    """Random images."""
    side = vit.shape.image_size
    return torch.randn(B, 3, side, side, generator=torch.Generator().manual_seed(1)).to(vit.positions)


def filled(method: Method, vit: ViT, steps: int = 20) -> Method:
    """A method that has seen some images, so that its memory is not empty."""
    for i in range(steps):
        method.predict(torch.randn_like(pixels(vit)) * (1 + i / 10))
    return method


def full(method: Method) -> Method:
    """A method whose reservoir has random entries in all its slots."""
    state = method.state()
    C, M = state["ids"].shape
    ids, counts = torch.arange(C * M).view(C, M), torch.full((C,), M)
    entries = {name: torch.randn_like(state[name]) for name in ("anchors",)}
    method.restore({**state, **entries, "ids": ids.to(state["ids"]), "counts": counts.to(state["counts"])})
    return method


def kernels(run: Callable[[], object]) -> int:
    """Kernels launched by one call, copies and fills left out."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        run()
        torch.cuda.synchronize()
    device = torch.autograd.DeviceType.CUDA
    return sum(e.device_type == device and not e.name.startswith("Mem") for e in seen.events())


def step(args: argparse.Namespace) -> Iterator[Row]:
    """One image at a time: every engine, against plain zero-shot in the same engine."""
    vit = tower(args.model, args.device, args.dtype)
    image = pixels(vit)
    engines = ("eager", "graph") if args.device == "cuda" else ("eager", "cpu")
    for C in args.classes:
        methods = {(e, row[0]): filled(contender(vit, e, C, *row[1:]), vit) for e in engines for row in CONTENDERS}
        runs = {f"{e}/{n}": (lambda m=m: m.predict(image)) for (e, n), m in methods.items()}
        times = measure_latency(runs, args.images, args.device)
        for engine, name in methods:
            own, plain = times[f"{engine}/{name}"], times[f"{engine}/plain"]
            row: Row = {"section": "step", "engine": engine, "C": C, "what": name, "ms": median_ms(own)}
            row |= {"minus plain ms": median_ms(own) - median_ms(plain), "ratio": time_ratio(own, plain)}
            if args.device == "cuda":
                row["kernels"] = kernels(runs[f"{engine}/{name}"])
            yield row


def median_ms(seconds: list[float]) -> float:
    """Median in milliseconds."""
    return round(1000 * statistics.median(seconds), 4)


def graphs(args: argparse.Namespace) -> Iterator[Row]:
    """The captured steps alone, replayed without copies in and out: kernels, and what each optimisation brought."""
    from lessmore.engines.graph import Captured, Graph
    from lessmore.engines.kernels import linear

    vit = tower(args.model, args.device, args.dtype)
    for C in args.classes:
        replays = {row[0]: _replay(filled(contender(vit, "graph", C, *row[1:]), vit)) for row in CONTENDERS}
        plain = replays["plain"]
        times = measure_latency(replays, args.images, args.device)
        for name, run in replays.items():
            row: Row = {"section": "graph", "C": C, "what": name, "ms": median_ms(times[name])}
            row |= {"minus plain ms": median_ms(times[name]) - median_ms(times["plain"])}
            row |= {"ratio": time_ratio(times[name], times["plain"]), "added kernels": kernels(run) - kernels(plain)}
            yield row
    method, image = contender(vit, "eager", args.classes[0], *CONTENDERS[2][1:]), pixels(vit)
    stages: dict[str, Callable[[], object]] = {"plain functions": lambda: method.predict(image)}
    ordinary = contender(vit, "eager", args.classes[0], *CONTENDERS[2][1:])
    stages["captured as one graph"] = _replay(Graph(ordinary, Captured(ordinary)))  # type: ignore[arg-type]
    linear.PREFETCH = False
    stages["fused kernels"] = _replay(contender(vit, "graph", args.classes[0], *CONTENDERS[2][1:]))
    linear.PREFETCH = True
    stages["weights fetched ahead"] = _replay(contender(vit, "graph", args.classes[0], *CONTENDERS[2][1:]))
    for name, seconds in measure_latency(stages, args.images, args.device).items():
        yield {"section": "waterfall", "what": name, "ms": median_ms(seconds)}


def _replay(method: Any) -> Callable[[], object]:
    return lambda: method._graph.replay()  # the method must live as long: its tensors are the graph's


def scaling(args: argparse.Namespace) -> Iterator[Row]:
    """How a captured step grows with the classes and with the reservoir, and the memory that takes."""
    vit = tower(args.model, args.device, args.dtype)
    cases = [(10, 3), (102, 1), (102, 3), (102, 8), (1000, 1), (1000, 3), (1000, 8)]
    runs = {}
    for C, M in cases:
        torch.cuda.empty_cache()  # blocks that lie around may be larger than what is asked for
        before = torch.cuda.memory_allocated()
        method = contender(vit, "eager", C, "tca", "tca", "fixed", 0.9, M=M)
        shape = vit.shape.blocks
        predicted = C * (M + 1) * (shape.depth * shape.width + vit.shape.embed) * 2
        yield {
            "section": "memory",
            "C": C,
            "M": M,
            "bytes": torch.cuda.memory_allocated() - before,
            "formula": predicted,
        }
        del method
        runs[C, M] = full(contender(vit, "graph", C, "tca", "tca", "fixed", 0.9, M=M))
    times = measure_latency({str(case): _replay(run) for case, run in runs.items()}, args.images, args.device)
    for case in cases:
        yield {"section": "scaling", "C": case[0], "M": case[1], "ms": median_ms(times[str(case)])}


def _captured(body: Callable[[], object]) -> Callable[[], object]:
    """As one graph, so that a slow host does not count."""
    graph = capture(body, ())
    return lambda: graph.replay()


def batches(args: argparse.Namespace) -> Iterator[Row]:
    """The forward pass in batches, plain and condensed, fused and through plain functions."""
    from lessmore.engines.fused_encoder import Batched

    for model in args.batched:
        vit = tower(model, args.device, args.dtype)
        pairs = [(name, R) for name in ("fixed", "default") for R in (0.9, 0.7)]
        settings = {"plain": PLAIN} | {f"{name}, R = {R}": preset(name, R=R).condensation for name, R in pairs}
        for B in args.batch:
            image = pixels(vit, B)
            runs = {}
            for name, config in settings.items():
                fused = Batched(vit, config)
                runs[f"fused, {name}"] = _captured(lambda f=fused: f.resume(f.begin(image)))  # noqa: B023
                runs[f"plain functions, {name}"] = _captured(lambda c=config: encode(vit, image, c))  # noqa: B023
            times = measure_latency(runs, max(args.images // 10, 5), args.device)
            for name, seconds in times.items():
                base = times[name.split(",")[0] + ", plain"]
                row: Row = {"section": "batch", "model": model, "B": B, "what": name}
                yield row | {"images/s": round(B / statistics.median(seconds)), "ratio": time_ratio(base, seconds)}


def others(args: argparse.Namespace) -> Iterator[Row]:
    """Peers, interleaved with ours; those that cannot be imported are named."""
    vit = tower(args.model, args.device, args.dtype)
    image = pixels(vit)
    engine = "graph" if args.device == "cuda" else "cpu"
    runs: dict[str, Callable[[], object]] = {}
    for name, method, *rest in CONTENDERS[:1] + CONTENDERS[2:3]:
        ours = filled(contender(vit, engine, 102, method, *rest), vit)  # type: ignore[arg-type]
        runs[f"ours, {engine}, {name}"] = lambda ours=ours: ours.predict(image)
    runs["ours, eager, plain"] = lambda: encode(vit, image)
    for name, make in peers.forwards(args).items():
        try:
            runs[name] = make(image)
        except Exception as error:  # a peer that does not run here is a row, not the end of the benchmark
            yield {"section": "peer", "what": name, "missing": str(error).splitlines()[0][:120]}
    for name, seconds in measure_latency(runs, args.images, args.device).items():
        yield {"section": "peer", "what": name, "ms": median_ms(seconds)}


def released(args: argparse.Namespace) -> Iterator[Row]:
    """The paper's code and ours, also in its configuration, with full reservoirs."""
    vit = tower(args.model, args.device, args.dtype)
    for C in args.classes if args.released else []:
        row: Row = {"section": "peer", "what": f"released TCA code, C = {C}"}
        try:
            yield row | _beside(vit, C, peers.released(args.released, C), args)
        except Exception as error:  # as above
            yield row | {"missing": f"{type(error).__name__}: {error}"[:200]}


def _beside(vit: ViT, C: int, theirs: float, args: argparse.Namespace) -> Row:
    """Their milliseconds as a multiple of ours."""
    image = pixels(vit)
    methods = {name: full(contender(vit, "graph", C, "tca", "tca", name, 0.9)) for name in ("fixed", "released")}
    times = measure_latency(
        {name: (lambda m=m: m.predict(image)) for name, m in methods.items()}, args.images, args.device
    )
    ours = {name: median_ms(seconds) for name, seconds in times.items()}
    ratios = {f"times ours, {name}": round(theirs / ms, 1) for name, ms in ours.items()}
    return {"ms": theirs} | {f"ours, {name}, ms": ms for name, ms in ours.items()} | ratios


SECTIONS = {"step": step, "graph": graphs, "scaling": scaling, "batch": batches, "peer": others, "released": released}


def plot(rows: list[Row], path: str) -> None:
    """The waterfall: one TCA step after each optimisation."""
    import matplotlib.pyplot as plt

    stages = [(row["what"], row["ms"]) for row in rows if row["section"] == "waterfall"]
    plain = next(row["ms"] for row in rows if row["section"] == "graph" and row["what"] == "plain")
    figure, axes = plt.subplots(figsize=(7, 2.6), layout="constrained")
    bars = axes.barh([name for name, _ in stages], [ms for _, ms in stages], color="#3b6ea5")
    axes.bar_label(bars, fmt="%.2f ms", padding=3)
    axes.axvline(plain, color="#c44e52", linewidth=1.5, label=f"plain zero-shot, fused: {plain:.2f} ms")
    axes.invert_yaxis()
    axes.set(xscale="log", xlim=(0.3, 60))
    axes.set_xlabel("milliseconds per TCA step, R = 0.9, one image")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)


def renew(rows: list[Row], row: Row) -> None:
    """Put a row in the place of an earlier one of the same thing, or at the end."""
    for i, old in enumerate(rows):
        if all(old.get(name) == row.get(name) for name in ("section", "engine", "model", "B", "C", "M", "what")):
            rows[i] = row
            return
    rows.append(row)


def written(value: Any) -> str:
    """A value for people."""
    if isinstance(value, tuple):
        return f"{value[0]:.3f} [{value[1]:.3f}, {value[2]:.3f}]"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


@torch.no_grad()
def main() -> None:
    """Run the sections asked for, print rows as they come and keep them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="ViT-B-16", choices=[*MODELS, *SHAPES])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default=None, help="float16 on CUDA, else float32")
    parser.add_argument("--classes", type=int, nargs="+", default=[102, 1000])
    parser.add_argument("--images", type=int, default=200, help="rounds")
    parser.add_argument("--batched", nargs="+", default=["ViT-B-16", "ViT-L-14"])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 16, 32, 64, 256])
    parser.add_argument("--sections", nargs="+", choices=SECTIONS)
    parser.add_argument("--released", help="a checkout of the paper's code")
    parser.add_argument("--tome", help="a checkout of ToMe")
    parser.add_argument("--output", help="JSON of all rows")
    parser.add_argument("--plot", help="picture of the waterfall")
    parser.add_argument("--rows", help="measure nothing: take the rows of an earlier --output")
    args = parser.parse_args()
    args.dtype = getattr(torch, args.dtype or ("float16" if args.device == "cuda" else "float32"))
    everything = list(SECTIONS) if args.device == "cuda" else ["step", "peer"]
    known = args.rows or args.output
    rows: list[Row] = json.loads(Path(known).read_text()) if known and Path(known).exists() else []
    for section in [] if args.rows else args.sections or everything:
        for row in SECTIONS[section](args):
            renew(rows, row)
            print("  ".join(f"{key} {written(value)}" for key, value in row.items()), flush=True)
            if args.output:
                write_json(Path(args.output), rows)
    if args.plot:
        plot(rows, args.plot)


if __name__ == "__main__":
    main()
