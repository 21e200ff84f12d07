"""The vision tower with its condensation as one program of OpenVINO.

The program is made of `core.encoder.encode`, so it follows its rules; only how three operations are written differs
(`_REWRITTEN`). Ties are settled inside the program: tokens are ordered by counting, so that all sorted keys differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from lessmore.config import Condensation
from lessmore.core.condense.schedule import schedule
from lessmore.core.condense.source import Step
from lessmore.core.encoder import Encoded, encode
from lessmore.core.vit import ViT
from lessmore.engines.availability import import_without_telemetry
from lessmore.engines.export import stable_order
from lessmore.engines.openvino_core import openvino_core

Compiled = Any
"""An `openvino.CompiledModel`; the package has no complete types."""

# Towers are frozen, so forks, other class lists and other methods share a program for as long as the tower lives.
_PROGRAMS: WeakKeyDictionary[ViT, dict[tuple[object, ...], Compiled]] = WeakKeyDictionary()
_CONVERTED: WeakKeyDictionary[ViT, dict[Condensation, Any]] = WeakKeyDictionary()
"""What all precisions of a tower are made from; it shares the tower's weights."""


def _diagonal(x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """The diagonals of the last two dimensions, `[..., A, A]` → `[..., A]`, gathered."""
    assert (offset, dim1 % x.ndim, dim2 % x.ndim) == (0, x.ndim - 2, x.ndim - 1)
    at = torch.arange(x.shape[-1], device=x.device).expand(x.shape[:-1]).unsqueeze(-1)
    return x.gather(-1, at).squeeze(-1)


_REWRITTEN: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.Tensor.argsort: stable_order,
    torch.Tensor.diagonal: _diagonal,
    torch.empty_like: torch.zeros_like,
}
"""Operations that OpenVINO does not know, or whose ties it would settle in its own way."""


class _Rewritten(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return _REWRITTEN.get(func, func)(*args, **(kwargs or {}))


class _Traceable(nn.Module):
    """`encode` as a module: pixels `[1, 3, H, W]` → feature, its length, tokens, and each condensing block's target."""

    def __init__(self, vision: ViT, condensation: Condensation) -> None:
        super().__init__()
        self.vision, self.condensation = vision, condensation

    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        with _Rewritten():
            done = encode(self.vision, pixels, self.condensation)
        assert done.length is not None
        return (done.feature, done.length, done.tokens, *(step.target for step in done.steps))


@torch.no_grad()
def encoder_program(vision: ViT, condensation: Condensation) -> Any:
    """The encoder as an `openvino.Model` in float32.

    Args:
        vision: The tower, in float32 on the CPU.
        condensation: How it condenses, without anchors.
    """
    openvino = import_without_telemetry("openvino")

    known, side = _CONVERTED.setdefault(vision, {}), vision.shape.image_size
    if condensation not in known:
        module = _Traceable(vision, condensation).eval()
        program = torch.export.export(module, (torch.zeros(1, 3, side, side),), strict=False)
        known[condensation] = openvino.convert_model(program)
    return known[condensation]


def compiled_program(vision: ViT, key: tuple[object, ...], make: Callable[[], Any], precision: str) -> Compiled:
    """A program ready to run, compiled at most once per tower, key and number of threads.

    Args:
        vision: The tower it belongs to.
        key: What distinguishes it from other programs of the tower.
        make: Makes the `openvino.Model`; called only where the program is new.
        precision: `float32`, `bfloat16` or `int8`, in which all that is not quantised stays in float32.
    """
    known, threads = _PROGRAMS.setdefault(vision, {}), torch.get_num_threads()
    key = (*key, precision, threads)
    if key not in known:
        settings = {
            # OpenVINO's own choice would be bfloat16 wherever the processor has it.
            "INFERENCE_PRECISION_HINT": "bf16" if precision == "bfloat16" else "f32",
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": threads,
            "ENABLE_CPU_PINNING": False,  # a pinned thread waits for whoever else uses its core
        }
        known[key] = openvino_core().compile_model(make(), "CPU", settings)
    return known[key]


class CompiledEncoder:
    """Encodes images with a compiled program, as `core.encoder.encode` does with the tower."""

    def __init__(self, program: Compiled, vision: ViT, condensation: Condensation) -> None:
        self._request = program.create_infer_request()
        stages = schedule(vision.shape.patches, vision.shape.blocks.depth, condensation)
        self._stages = [(block, stage) for block, stage in enumerate(stages) if stage is not None]

    def __call__(self, pixels: Tensor) -> Encoded:
        """Encode images `[B, 3, H, W]`, one after another."""
        rows = [self._encode(row) for row in pixels.split(1)]
        return rows[0] if len(rows) == 1 else _together(rows)

    def _encode(self, pixels: Tensor) -> Encoded:
        outputs = self._request.infer([pixels.contiguous().numpy()])
        feature, length, tokens, *targets = (torch.from_numpy(outputs[i].copy()) for i in range(len(outputs)))
        if not bool(pixels.isfinite().all()):  # eight bits know no NaN and would make a number of it
            feature = torch.full_like(feature, torch.nan)
        steps = [Step(i, stage, target, None) for (i, stage), target in zip(self._stages, targets, strict=True)]
        return Encoded(feature, tokens, steps, length)


def _together(rows: list[Encoded]) -> Encoded:
    """Several images, each a batch of one, as one batch."""
    steps = [
        Step(step.block, step.stage, torch.cat([row.steps[i].target for row in rows]), None)
        for i, step in enumerate(rows[0].steps)
    ]
    lengths = [row.length for row in rows if row.length is not None]
    feature, tokens = torch.cat([row.feature for row in rows]), torch.cat([row.tokens for row in rows])
    return Encoded(feature, tokens, steps, torch.cat(lengths))
