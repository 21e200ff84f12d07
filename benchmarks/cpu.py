"""What a step costs on a CPU: every engine and precision, other libraries' towers, and ONNX Runtime, interleaved.

    python benchmarks/cpu.py --threads 2 --rounds 15 --output benchmarks/results/cpu.json

Towers of ViT-B/16 shape (CLIP and SigLIP) with random weights, one image at a time. Every figure is a median over
rounds in which all contenders take turns; ratios are taken round by round, with a 95 % interval. The load of the
machine is recorded with them: on a busy one ratios hold, times do not.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from lessmore.cli.bench import PLAIN, BenchContender, setup_of, tower
from lessmore.config import Condensation
from lessmore.core.encoder import Encoded
from lessmore.core.vit import ViT
from lessmore.engines import build, cpu
from lessmore.engines.compiled_encoder import _Traceable
from lessmore.engines.cpu_tca import UnitTCA
from lessmore.lab.latency import Times, interleaved, time_ratio
from lessmore.lab.provenance import environment
from lessmore.methods import Setup, make_method

MODELS = ("ViT-B-16", "ViT-B-16-SigLIP")
CONTENDERS = (
    BenchContender(PLAIN, "zeroshot", "none", 1.0),
    BenchContender("TCA, R = 0.9", "tca", "tca", 0.9),
    BenchContender("TCA, R = 0.7", "tca", "tca", 0.7),
)
ENGINES = ("eager", "cpu", "cpu bfloat16", "openvino", "openvino bfloat16", "openvino int8")
RUNTIME = "ONNX Runtime"
FEW = {"openvino": 2, "openvino bfloat16": 2, "openvino int8": 2, RUNTIME: 1}
"""How many of the contenders are measured, where programs take long to make."""
Step = Callable[[], object]


def our_step(engine: str, contender: BenchContender, setup: Setup, image: Tensor) -> Step:
    """The step of an engine, with its precision where the weights do not say it."""
    name, _, precision = engine.partition(" ")
    if engine == RUNTIME:
        return _on_onnx_runtime(contender, setup, image)
    if precision:
        setup = replace(setup, precision=precision, calibration=image.expand(2, -1, -1, -1))
    return partial(build(name, contender.method, setup).predict, image)


def _on_onnx_runtime(contender: BenchContender, setup: Setup, image: Tensor) -> Step:
    """The same encoder in ONNX Runtime, and the step that engine `openvino` has after its own."""
    encode = _exported(setup.vision, setup.preset.condensation, image)
    method: Any = UnitTCA(setup) if contender.method == "tca" else make_method(contender.method, setup)
    return lambda: method.answer(encode(image))


def _exported(vision: ViT, condensation: Condensation, image: Tensor) -> Callable[[Tensor], Encoded]:
    import onnxruntime

    program = torch.onnx.export(_Traceable(vision, condensation).eval(), (image,), dynamo=True, verbose=False)
    assert program is not None
    options, file = onnxruntime.SessionOptions(), io.BytesIO(program.model_proto.SerializeToString())
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(file.getvalue(), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name

    def encode(pixels: Tensor) -> Encoded:
        feature, length, tokens, *_ = map(torch.from_numpy, session.run(None, {name: pixels.numpy()}))
        return Encoded(feature, tokens, [], length)

    return encode


def peers(model: str, image: Tensor, text: Tensor) -> dict[str, Step]:
    """The same image through other libraries' own towers, to class probabilities."""

    def answer(encode: Callable[[Tensor], Tensor]) -> Tensor:
        return (100 * F.normalize(encode(image), dim=-1) @ text.T).softmax(dim=-1)

    return {f"{library} itself": partial(answer, encode) for library, encode in _peer_towers(model).items()}


def _peer_towers(model: str) -> dict[str, Callable[[Tensor], Tensor]]:
    import open_clip
    import transformers

    theirs = open_clip.create_model(model, force_quick_gelu="SigLIP" not in model, pretrained_hf=False)
    if "SigLIP" in model:
        config = transformers.SiglipVisionConfig(image_size=224, patch_size=16)
        hf = transformers.SiglipVisionModel(config).eval().requires_grad_(False)
        return {"open_clip": _frozen(theirs).encode_image, "transformers": lambda x: hf(x).pooler_output}
    config = transformers.CLIPVisionConfig(image_size=224, patch_size=16)
    hf = transformers.CLIPVisionModelWithProjection(config).eval().requires_grad_(False)
    return {"open_clip": _frozen(theirs).encode_image, "transformers": lambda x: hf(x).image_embeds}


def _frozen(model: Any) -> Any:
    return model.eval().requires_grad_(False)


def steps_of(model: str, classes: int, preset: str, engines: list[str], with_peers: bool) -> dict[str, Step]:
    """Every contender's step, by `engine: name`."""
    vision, _ = tower(model)
    side = vision.shape.image_size
    image = torch.randn(1, 3, side, side, generator=torch.Generator().manual_seed(0))
    steps: dict[str, Step] = {}
    pairs = [(e, c) for c in CONTENDERS for e in engines if c in CONTENDERS[: FEW.get(e, 3)]]
    for engine, contender in tqdm(pairs, desc="making programs"):
        if "bfloat16" not in engine or cpu.has_bfloat16():
            setup = setup_of(vision, classes, contender, preset)
            steps[f"{engine}: {contender.name}"] = our_step(engine, contender, setup, image)
    text = setup_of(vision, classes, CONTENDERS[0], preset).text
    return steps | (peers(model, image, text) if with_peers else {})


@torch.no_grad()
def contest(model: str, classes: int, args: argparse.Namespace, with_peers: bool) -> list[dict[str, Any]]:
    """Rows of one model and number of classes."""
    steps = steps_of(model, classes, args.preset, args.engines, with_peers)
    times: Times = {}
    rounds = interleaved(steps, args.rounds, warmup=1)
    for times in tqdm(rounds, total=args.rounds, desc=f"{model}, {classes} classes"):  # noqa: B007
        pass
    return [_row(key, times) for key in steps]


def _row(key: str, times: Times) -> dict[str, Any]:
    engine, _, name = key.partition(": ")
    bases = {"own": f"{engine}: {PLAIN}", "cpu": f"cpu: {PLAIN}", "openvino": f"openvino: {PLAIN}"}
    figures = {
        f"of_{what}_plain": list(time_ratio(times[key], times[base])) for what, base in bases.items() if base in times
    }
    return {"key": key, "name": name, "engine": engine, "ms": 1000 * statistics.median(times[key]), **figures}


def show(rows: list[dict[str, Any]]) -> None:
    """The table."""
    columns = ("of_own_plain", "of_cpu_plain", "of_openvino_plain")
    print(f"  {'':<34}{'ms':>9}" + "".join(f"{name.replace('_', ' '):>24}" for name in columns))
    for row in rows:
        spans = "".join(f"{'{:.3f} ({:.3f}–{:.3f})'.format(*row[c]) if c in row else '':>24}" for c in columns)
        print(f"  {row['key']:<34}{row['ms']:9.2f}{spans}")


def main() -> None:
    """Measure, print, and write where told."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--classes", nargs="+", type=int, default=[102, 1000])
    parser.add_argument("--engines", nargs="+", default=[*ENGINES, RUNTIME], choices=[*ENGINES, RUNTIME])
    parser.add_argument("--preset", default="default")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    result: dict[str, Any] = {"environment": environment(torch.device("cpu")), "rounds": args.rounds, "contests": []}
    for model in args.models:
        for classes in args.classes:
            begun = os.getloadavg()[0]
            rows = contest(model, classes, args, classes == args.classes[0])
            load = [begun, os.getloadavg()[0]]
            print(f"{model}, {classes} classes, preset {args.preset}, {args.threads} threads, load {load}")
            show(rows)
            about = {"model": model, "classes": classes, "preset": args.preset, "load": load}
            result["contests"].append({**about, "rows": rows})
            if args.output:
                args.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
