"""The compiled encoder in eight bits: quantised after training by NNCF, and kept on disk.

Weights and inputs of the products of tokens and weights become int8. Everything that selects, compares or averages
tokens stays in float32, so that quantising changes what tokens hold and not how they are chosen.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sys
import tempfile
from contextlib import redirect_stdout
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lessmore.config import Condensation
from lessmore.core.algorithm import ENCODING
from lessmore.core.vit import ViT
from lessmore.engines.availability import import_without_telemetry
from lessmore.engines.compiled_encoder import encoder_program
from lessmore.engines.openvino_core import in_own_thread, openvino_core
from lessmore.engines.precision import pixels_digest
from lessmore.errors import StateError
from lessmore.models.vlm import tower_hash
from lessmore.storage.cache import Cache, cache_folder, drop, warn_uncached
from lessmore.storage.sealed import read_tensors, write_tensors

_log = logging.getLogger(__name__)
SCHEMA = "lessmore.quantised/1"
_MOST = 1 << 33
_REMEDY = "it is quantised again"


def quantised_program(vision: ViT, condensation: Condensation, calibration: Tensor, cache: Cache = True) -> Any:
    """The encoder as an `openvino.Model` in int8.

    Args:
        vision: The tower, in float32 on the CPU.
        condensation: How it condenses, without anchors.
        calibration: Preprocessed images to calibrate on, `[N, 3, H, W]`.
        cache: Whether to keep the program on disk; a path says where.
    """
    key = _key(vision, condensation, calibration)
    folder = cache_folder(cache, "quantised")
    file = None if folder is None else folder / f"{key}.safetensors"
    program = None if file is None else _read(file)
    if program is None:
        stored = _stored(_quantise(encoder_program(vision, condensation), calibration))
        if file is not None:
            _write(file, stored)
        # A program that was read back rounds in its own way, so a new one is read back too.
        program = _program(stored)
    return program


def _program(stored: dict[str, Tensor]) -> Any:
    openvino = import_without_telemetry("openvino")
    weights = openvino.Tensor(stored["weights"].numpy())
    return openvino_core().read_model(model=stored["graph"].numpy().tobytes(), weights=weights)


def _key(vision: ViT, condensation: Condensation, calibration: Tensor) -> str:
    """All that decides the result, by content."""
    made_of = {
        "schema": SCHEMA,
        "algorithm": ENCODING,
        "tower": tower_hash(vision),
        "condensation": asdict(condensation),
        "calibration": pixels_digest(calibration),
        "made by": {name: version(name) for name in ("openvino", "nncf", "torch")},
    }
    return hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()


def _quantise(program: Any, calibration: Tensor) -> Any:
    nncf = import_without_telemetry("nncf")

    logging.getLogger("nncf").setLevel(logging.ERROR)
    images = nncf.Dataset([image.numpy() for image in calibration.split(1)])
    kept = nncf.IgnoredScope(names=[op.get_friendly_name() for op in program.get_ops() if not _weighs(op)])
    kept.validate = False  # most of these names are no candidates anyway
    with redirect_stdout(sys.stderr):  # where NNCF draws its progress bars belong the rows of a command
        return in_own_thread(  # it loads cores of its own
            lambda: nncf.quantize(
                program, images, subset_size=len(calibration), model_type=nncf.ModelType.TRANSFORMER, ignored_scope=kept
            )
        )


def _weighs(operation: Any) -> bool:
    """Whether an operation multiplies tokens with a weight matrix."""
    if operation.get_type_name() != "MatMul":
        return False
    source = operation.input_value(1).get_node()
    while source.get_type_name() in ("Convert", "Reshape", "Transpose"):
        source = source.input_value(0).get_node()
    return bool(source.get_type_name() == "Constant")


def _stored(program: Any) -> dict[str, Tensor]:
    """A program as bytes."""
    openvino = import_without_telemetry("openvino")
    with tempfile.TemporaryDirectory() as place:
        graph, weights = Path(place) / "program.xml", Path(place) / "program.bin"
        openvino.serialize(program, graph, weights)
        return {name: _bytes_of(path) for name, path in (("graph", graph), ("weights", weights))}


def _bytes_of(path: Path) -> Tensor:
    return torch.from_numpy(np.fromfile(path, dtype=np.uint8))


def _read(file: Path) -> Any:
    """The program that `_write` wrote; None if there is nothing that can be used."""
    try:
        tensors, facts = read_tensors(file, SCHEMA, _MOST, _REMEDY)
        usual = facts.get("key") == file.stem and tensors.keys() == {"graph", "weights"}
        if not usual or any(tensor.dtype != torch.uint8 for tensor in tensors.values()):
            raise StateError(f"{file} does not hold the program it is named for; {_REMEDY}")
        try:
            return _program(tensors)
        except Exception as error:  # sealed by someone on purpose; OpenVINO then raises all kinds
            raise StateError(f"{file} holds no program ({' '.join(str(error).split())[:200]}); {_REMEDY}") from error
    except FileNotFoundError:
        return None
    except StateError as error:
        _log.warning("%s", error)
        drop(file)
        return None


def _write(file: Path, stored: dict[str, Tensor]) -> None:
    try:
        write_tensors(file, stored, SCHEMA, {"key": file.stem})
    except OSError as error:
        warn_uncached("quantised models", error)
