"""What one image costs: the token schedule and the multiply-accumulates of every part."""

from __future__ import annotations

import json

from jsonargparse import ArgumentParser, Namespace

from lessmore.cli.common import new_parser
from lessmore.condense.registry import list_reducers, reducer, reducer_for
from lessmore.condense.schedule import Stage, schedule
from lessmore.config import Rule, list_presets, preset
from lessmore.errors import ConfigError
from lessmore.eval.flops import Costs, costs
from lessmore.shapes import SHAPES
from lessmore.text import TextShape
from lessmore.vit import ViTShape
from lessmore.vlm import load

EXAMPLES = """examples:
  lessmore flops ViT-B-16
  lessmore flops ViT-L-14 --R 0.7 --classes 397
  lessmore flops ViT-B-16 --method zeroshot --reducer evit --json
  lessmore flops path/to/model-folder
"""


def parser() -> ArgumentParser:
    """Arguments of `lessmore flops`."""
    args = new_parser(__doc__, EXAMPLES)
    known = ", ".join(SHAPES)
    args.add_argument("model", type=str, help=f"{known}, or whatever lessmore.load takes")
    args.add_argument("--method", type=str, default="tca", help="tca or zeroshot")
    args.add_argument("--reducer", type=str, default="auto", help=", ".join(["auto", *list_reducers()]))
    args.add_argument(
        "--preset", type=str, default="default", help=", ".join(p for p in list_presets() if "/" not in p)
    )
    args.add_argument("--R", type=float | None, default=None, help="kept fraction of the tokens")
    args.add_argument("--classes", type=int, default=1000, help="number of classes")
    args.add_argument("--templates", type=int, default=1, help="prompts per class")
    args.add_argument("--json", action="store_true", help="print JSON")
    return args


def run(args: Namespace) -> int:
    """Print the costs."""
    vision, text = _shapes(args.model)
    if args.method not in ("tca", "zeroshot"):
        raise ConfigError(f"costs of method {args.method!r} are not known; choose tca or zeroshot")
    chosen = preset(args.preset, **({} if args.R is None else {"R": args.R}))
    condensation = reducer(reducer_for(args.reducer, args.method), chosen.condensation)
    adaptation = chosen.adaptation if args.method == "tca" else None
    plan = schedule(vision.patches, vision.blocks.depth, condensation)
    prompts = args.classes * args.templates
    counted = {
        accounting: costs(vision, condensation, adaptation, args.classes, text, prompts, accounting)
        for accounting in ("paper", "matmul")
    }
    plain = costs(vision, reducer("none", condensation), None, args.classes)
    if args.json:
        print(json.dumps(_as_dict(counted, plain), indent=2))
        return 0
    title = f"{args.model}  {args.method} + {reducer_for(args.reducer, args.method)}"
    print(f"{title}, R = {condensation.R:g}, {args.classes} classes")
    for i, stage in enumerate(plan):
        if stage is not None:
            print(f"  block {i}: {stage.patches} patches -> {_fates(stage, condensation.rule)}")
    _table(counted, plain)
    return 0


def _fates(stage: Stage, rule: Rule) -> str:
    if rule == "matching":
        return f"{stage.keep} kept, {stage.ambiguous} merged into them"
    if rule == "sampling":
        return f"{stage.keep} kept at most"
    fused = " into 1" if stage.fused else ""
    merged = f"{stage.ambiguous} merged into {stage.centres}"
    return f"{stage.keep} kept + {merged} + {stage.pruned} pruned{fused} = {stage.out}"


def _shapes(model: str) -> tuple[ViTShape, TextShape]:
    if model in SHAPES:
        return SHAPES[model]
    vlm = load(model)
    return vlm.vision.shape, vlm.text.shape


def _as_dict(counted: dict[str, Costs], plain: Costs) -> dict[str, object]:
    first = next(iter(counted.values()))
    values: dict[str, object] = {"tokens": first.tokens, "plain_gmacs": plain.gmacs}
    for accounting, cost in counted.items():
        values[accounting] = {"gmacs": cost.gmacs, "gflops": cost.gflops, "parts": cost.parts, "text_once": cost.text}
    return values


def _table(counted: dict[str, Costs], plain: Costs) -> None:
    names = list(counted)
    print(f"\n{'GMACs per image':<18}" + "".join(f"{name:>12}" for name in names))
    for part in next(iter(counted.values())).parts:
        print(f"  {part:<16}" + "".join(f"{counted[name].parts[part] / 1e9:12.4f}" for name in names))
    print(f"  {'total':<16}" + "".join(f"{counted[name].gmacs:12.4f}" for name in names))
    print(f"  {'text, once':<16}" + "".join(f"{counted[name].text / 1e9:12.1f}" for name in names))
    saved = 100 * (1 - counted["matmul"].macs / plain.macs)
    print(f"\n{saved:.1f} % fewer multiply-accumulates than the plain model ({plain.gmacs:.4f} GMACs, matmul).")
