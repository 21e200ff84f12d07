"""Count what one image costs with a method and a reducer: token schedule and multiply-accumulates of every part."""

from __future__ import annotations

from typing import Any, NamedTuple

from jsonargparse import ArgumentParser, Namespace

from lessmore.cli.common import OK, add_budget, add_json, add_method, new_parser, read_classes, say_json
from lessmore.config import PAIRING, Condensation, Rule
from lessmore.core.condense.schedule import Stage, schedule
from lessmore.core.costs import Accounting, Costs, costs
from lessmore.core.encoder import PLAIN
from lessmore.core.vit import ViTShape
from lessmore.errors import ConfigError
from lessmore.lab.weightless import BUDGETS, blank_method, blank_model, made_up_files, shape_gmacs
from lessmore.methods import Facts
from lessmore.methods.resolve import resolve
from lessmore.models.shapes import SHAPES

EXAMPLES = """examples:
  lessmore flops ViT-B-16
  lessmore flops ViT-L-14 --R 0.7 --classes 397
  lessmore flops ViT-B-16 --method zeroshot --reducer evit --json
  lessmore flops ViT-B-16 --method tpt --classes 10 --options.views 32
  lessmore flops path/to/model-folder --method cocoop --classes names.txt
  lessmore flops all

Column `paper` counts as the paper's tables do: forward passes of the towers. Column `matmul` counts everything: every
matrix product of all views, backward passes, prompts and memories. Methods that embed the prompts for every image pay
for the longest prompt; a number given as --classes stands for names of one word, and for a shape a word is one token.
Row `rest` is everything besides forward passes of views: backward passes, prompts, memories.
"""
ACCOUNTINGS: tuple[Accounting, ...] = ("paper", "matmul")


class Spent(NamedTuple):
    """One image, counted in one way; all in multiply-accumulates."""

    once: Costs
    """One pass of the tower, part by part."""
    views: int
    total: int
    """Everything the method does."""

    @property
    def rest(self) -> int:
        """Everything besides forward passes of views: backward passes, prompts, memory."""
        return self.total - self.views * self.once.macs


def parser() -> ArgumentParser:
    """Arguments of `lessmore flops`."""
    args = new_parser(__doc__, EXAMPLES)
    args.add_argument(
        "model",
        type=str,
        help="a shape of `lessmore ls models`, or whatever lessmore.load takes; `all` lists all shapes",
    )
    add_method(args)
    add_budget(args)
    args.add_argument(
        "--options", type=dict[str, Any], default={}, help="fields of preset or method: --options.views 8"
    )
    args.add_argument("--classes", type=str, default="1000", help="how many, or the names: a file, or with commas")
    args.add_argument("--templates", type=int, default=1, help="prompts per class")
    add_json(args)
    return args


def run(args: Namespace) -> int:
    """Print the costs."""
    if args.model == "all":
        return _every_shape(args.json)
    classes, vlm = _classes(args.classes), blank_model(args.model)
    with made_up_files(args.method, vlm) as files:
        options = {**args.options, **files}
        chosen, name, own = resolve(
            args.method, args.preset, args.R, args.reducer, options, vlm.vision.shape, args.stream
        )
    method = blank_method(args.method, vlm, chosen, classes, own)

    def one_pass(way: Accounting) -> Costs:
        adaptation, prompts = chosen.adaptation if args.method == "tca" else None, len(classes) * args.templates
        return costs(
            vlm.vision.shape, chosen.condensation, adaptation, len(classes), vlm.text.shape, prompts, accounting=way
        )

    counted = {way: Spent(one_pass(way), method.facts.views, method.macs(way)) for way in ACCOUNTINGS}
    plain = costs(vlm.vision.shape, PLAIN, None, len(classes))
    if args.json:
        say_json(_as_dict(counted, plain, method.facts))
        return OK
    print(f"{args.model}  {args.method} + {name}, R = {chosen.condensation.R:g}, {len(classes)} classes")
    _schedule(vlm.vision.shape, chosen.condensation)
    _table(counted, plain)
    return OK


def _every_shape(as_json: bool) -> int:
    """GMACs of one image for every known tower, zero-shot, condensed as `default` does."""
    spent = {name: shape_gmacs(vision) for name, (vision, _) in SHAPES.items()}
    known = {name: {f"{R:g}": gmacs for R, gmacs in row.items()} for name, row in spent.items()}
    if as_json:
        say_json(known)
        return OK
    print(f"{'GMACs per image':<28}" + "".join(f"{f'R = {R:g}':>12}" for R in BUDGETS))
    for name, row in known.items():
        print(f"  {name:<26}" + "".join(f"{gmacs:12.2f}" for gmacs in row.values()))
    return OK


def _classes(text: str) -> list[str]:
    if not text.strip().isdecimal():
        return read_classes(text)
    if int(text) < 1:
        raise ConfigError("--classes 0 leaves nothing to choose from; give 1 or more, or names")
    return ["thing"] * int(text)


def _schedule(vision: ViTShape, condensation: Condensation) -> None:
    for i, stage in enumerate(schedule(vision.patches, vision.blocks.depth, condensation)):
        if stage is not None:
            print(f"  block {i}: {stage.patches} patches -> {_fates(stage, condensation.rule)}")


def _fates(stage: Stage, rule: Rule) -> str:
    if rule in PAIRING:
        less = f"{stage.pruned} dropped" if stage.pruned else f"{stage.ambiguous} merged into them"
        return f"{stage.keep} kept, {less}"
    if rule == "sampling":
        return f"{stage.keep} kept at most"
    fused = " into 1" if stage.fused else ""
    merged = f"{stage.ambiguous} merged into {stage.centres}"
    return f"{stage.keep} kept + {merged} + {stage.pruned} pruned{fused} = {stage.out}"


def _as_dict(counted: dict[Accounting, Spent], plain: Costs, facts: Facts) -> dict[str, object]:
    values: dict[str, object] = {
        "tokens": counted["matmul"].once.tokens,
        "views": facts.views,
        "learnable_parameters": facts.learnable_parameters,
        "plain_gmacs": plain.gmacs,
    }
    for way, spent in counted.items():
        values[way] = {
            "gmacs": spent.total / 1e9,
            "gflops": 2 * spent.total / 1e9,
            "pass_gmacs": spent.once.gmacs,
            "parts": spent.once.parts,
            "rest": spent.rest,
            "text_once": spent.once.text,
        }
    return values


def _table(counted: dict[Accounting, Spent], plain: Costs) -> None:
    ways = list(counted.values())
    print(f"\n{'GMACs per image':<18}" + "".join(f"{name:>14}" for name in counted))
    for part in ways[0].once.parts:
        _line(part, [spent.once.parts[part] for spent in ways])
    if any(spent.total != spent.once.macs for spent in ways):
        _line("one pass", [spent.once.macs for spent in ways])
    if ways[0].views > 1:
        _line(f"{ways[0].views} views", [spent.views * spent.once.macs for spent in ways])
    _line("rest", [spent.rest for spent in ways])
    _line("total", [spent.total for spent in ways])
    _line("text, once", [spent.once.text for spent in ways])
    print(f"\n{_compared(counted['matmul'].total / plain.macs)} the plain model ({plain.gmacs:.4f} GMACs, matmul).")


def _line(name: str, macs: list[int]) -> None:
    cells = [f"{value / 1e9:14.4f}" for value in macs]
    if any(float(cell) for cell in cells):
        print(f"  {name:<16}" + "".join(cells))


def _compared(share: float) -> str:
    if f"{share:.4f}" == "1.0000":
        return "As many multiply-accumulates as"
    if share < 1:
        return f"{100 * (1 - share):.1f} % fewer multiply-accumulates than"
    return f"{share:.4g} times the multiply-accumulates of"
