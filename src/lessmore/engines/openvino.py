"""The OpenVINO engine: the encoder with its condensation compiled, the step in our own code.

It runs every method that answers from an encoding. In float32 answers equal `eager`'s to rounding; `bfloat16` and
`int8` change a few in a hundred and are never chosen unless they are asked for. Its threads sleep when they have
nothing to do and share out work while it runs, so it holds up on a machine whose cores are busy with other things.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lessmore.config import Condensation
from lessmore.core.encoder import Encoded
from lessmore.engines.calibration import REMEDY
from lessmore.engines.compiled_encoder import CompiledEncoder, compiled_program, encoder_program
from lessmore.engines.cpu import has_bfloat16
from lessmore.engines.cpu_tca import UnitTCA
from lessmore.engines.precision import name_of, pixels_digest
from lessmore.engines.quantised import quantised_program
from lessmore.errors import ConfigError
from lessmore.methods import FromEncoded, Method, Setup, make_method
from lessmore.methods.tca import TCA

_INSTEAD = "take engine='cpu'"


def build_openvino(method: str, setup: Setup) -> Method:
    """A method whose images are encoded by OpenVINO.

    Args:
        method: Name of the method.
        setup: What it is built from, in float32 on the CPU.

    Raises:
        ConfigError: A package is missing, or the engine cannot run the method, reducer or precision.
    """
    made = make_method(method, setup)
    reason = _unusable(made, method, setup)
    if reason is not None:
        raise ConfigError(f"engine 'openvino' cannot be used: {reason}")
    fast: Any = UnitTCA(setup) if type(made) is TCA else made
    encoder = encoder_on_openvino(setup, setup.preset.condensation)
    fast.predict = lambda pixels: fast.answer(encoder(pixels))  # by contract the same, see `FromEncoded`
    return fast


def encoder_on_openvino(setup: Setup, condensation: Condensation) -> Callable[[Tensor], Encoded]:
    """What encodes images in the setup's precision.

    Args:
        setup: The tower, the precision and what int8 is calibrated on.
        condensation: How the tower condenses, without anchors.

    Raises:
        ConfigError: There is nothing to calibrate on, or the processor cannot multiply in this precision.
    """
    vision, precision = setup.vision, setup.precision or "float32"
    if precision == "bfloat16" and not has_bfloat16():
        raise ConfigError("this processor has no bfloat16 instructions; take precision 'float32' or 'int8'")
    if precision != "int8":
        program = compiled_program(vision, (condensation,), lambda: encoder_program(vision, condensation), precision)
        return CompiledEncoder(program, vision, condensation)
    images = setup.calibration
    if images is None:
        raise ConfigError(f"precision 'int8' needs images to calibrate on; {REMEDY}")
    key = (condensation, pixels_digest(images))
    program = compiled_program(vision, key, lambda: quantised_program(vision, condensation, images), precision)
    return CompiledEncoder(program, vision, condensation)


def _unusable(made: Method, method: str, setup: Setup) -> str | None:
    """Why a method cannot run here, with the remedy; None if it can."""
    weights, condensation = setup.vision.positions, setup.preset.condensation
    needed = ("openvino", "nncf") if setup.precision == "int8" else ("openvino",)
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        return f"{missing[0]} is not installed; pip install 'lessmore[openvino]'"
    if weights.device.type != "cpu":
        return f"the model is on {weights.device}; move it with device='cpu'"
    if weights.dtype != torch.float32:
        return f"the weights are {name_of(weights.dtype)}; load them in float32 and say precision='bfloat16' or 'int8'"
    if setup.vision.shape.flexible:
        return f"the model gives every image a shape of its own (NaFlex); {_INSTEAD} or 'eager'"
    if made.facts.needs_gradients:
        return f"method {method!r} needs gradients of the tower; {_INSTEAD}"
    if condensation.active and condensation.uses_anchor:
        return f"the preset guides the encoder by anchors of the stream; {_INSTEAD}, or another preset"
    if not isinstance(made, FromEncoded) or made.wants is None:
        return f"method {method!r} does not answer from one encoding of an image; {_INSTEAD}"
    if condensation.active and condensation.rule != "coreset":
        return f"the reducer matches or samples tokens (rule {condensation.rule!r}); {_INSTEAD}"
    return None
