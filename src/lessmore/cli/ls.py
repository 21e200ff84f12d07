"""List models, methods, reducers, presets, data sets or groups of data sets, one per line."""

from __future__ import annotations

import inspect
import json

from jsonargparse import ArgumentParser, Namespace

from lessmore.assets import MODELS, model_folder
from lessmore.cli.common import OK, add_json, new_parser, say_json
from lessmore.config import PRESETS, Preset
from lessmore.core.condense.registry import REDUCERS
from lessmore.data.registry import DATASETS, list_groups
from lessmore.errors import ModelError
from lessmore.lab.labels import preset_label
from lessmore.lab.weightless import shape_gmacs
from lessmore.methods.registry import METHODS
from lessmore.models.shapes import DINOTXT, SHAPES

EXAMPLES = """examples:
  lessmore ls models
  lessmore ls presets --json
  lessmore ls datasets
  lessmore ls methods | cut -f1

A line is a name, a tab and a description; --json prints one object from names to descriptions.
"""


def parser() -> ArgumentParser:
    """Arguments of `lessmore ls`."""
    args = new_parser(__doc__, EXAMPLES)
    args.add_argument("what", choices=list(_LISTS), help="what to list")
    add_json(args)
    return args


def run(args: Namespace) -> int:
    """Print the list."""
    entries = _LISTS[args.what]()
    if args.json:
        say_json(entries)
    else:
        print("\n".join(f"{name}\t{description}" for name, description in entries.items()))
    return OK


def _models() -> dict[str, str]:
    """Embedded models, then the shapes `lessmore flops` knows."""
    named = {name: _embedded(name) for name in MODELS}
    for name, (vision, _) in SHAPES.items():
        blocks = vision.blocks
        summary = "class token" if vision.class_token else "no class token"
        size = f"any shape, {vision.patches} patches" if vision.flexible else f"{vision.image_size} px"
        source = "a transformers Siglip2Model" if vision.flexible else f"open_clip:{name}/TAG"
        source = "a DINOTxt of facebookresearch/dinov3" if name == DINOTXT else source
        spent = ", ".join(f"{gmacs:.2f} at R = {R:g}" for R, gmacs in shape_gmacs(vision).items())
        named[name] = (
            f"shape for lessmore flops: {size}, patch {vision.patch}, {blocks.depth} blocks of width "
            f"{blocks.width}, {summary}; GMACs {spent}; for weights load {source}"
        )
    return named


def _embedded(name: str) -> str:
    try:
        config = json.loads((model_folder(name) / "config.json").read_text(encoding="utf-8"))
    except (ModelError, OSError, ValueError) as error:
        return f"embedded, but cannot be used: {error}"
    vision = config["vision_config"]
    return (
        f"embedded, offline: {config['model_type']}, {vision['image_size']} px, patch {vision['patch_size']}, "
        f"{vision['num_hidden_layers']} blocks of width {vision['hidden_size']}; knows the world of lessmore demo"
    )


def _methods() -> dict[str, str]:
    """Every method has a file of its own; the first line of its docstring describes it."""
    own = METHODS.own()
    return {name: _first_line(inspect.getmodule(own[name].maker) if name in own else None) for name in METHODS.names()}


def _reducers() -> dict[str, str]:
    return {name: _first_line(REDUCERS.own().get(name)) for name in REDUCERS.names()}


def _first_line(thing: object) -> str:
    text = None if thing is None else inspect.getdoc(thing)
    return text.splitlines()[0] if text else "of an installed package"


def _presets() -> dict[str, str]:
    return {name: f"{preset_label(name)}: {_values(preset)}" for name, preset in PRESETS.items()}


def _values(preset: Preset) -> str:
    tokens, memory = preset.condensation, preset.adaptation
    kept = f"R={tokens.R:g}" if tokens.rate is None else f"rate={tokens.rate:g}"
    return f"{kept} K={tokens.K} M={memory.M} lam={memory.lam:g} beta={memory.beta:g} sharpness={memory.sharpness:g}"


def _datasets() -> dict[str, str]:
    """All data sets; the 95 members of CIFAR-100-C differ only in corruption and severity and share one line."""
    named = {"cifar100c": "cifar100c/CORRUPTION/SEVERITY"}
    return {
        named.get(name, name): f"{spec.title}: {spec.images:,} images, {len(spec.classes)} classes, {spec.licence}"
        for name, (spec, _) in DATASETS.all().items()
    }


def _groups() -> dict[str, str]:
    return {name: f"{len(members)} data sets: {_some(members)}" for name, members in list_groups().items()}


def _some(names: list[str]) -> str:
    return ", ".join(names if len(names) <= 10 else [*names[:2], "…", names[-1]])


_LISTS = {
    "models": _models,
    "methods": _methods,
    "reducers": _reducers,
    "presets": _presets,
    "datasets": _datasets,
    "groups": _groups,
}
