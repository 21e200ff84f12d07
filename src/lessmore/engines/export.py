"""One online step as a file: pixels and state in, scores and next state out, run by torch.export or ONNX Runtime.

    from lessmore.engines.export import load_step, save_step

    save_step(adapter, "step.onnx")              # or step.pt2
    step = load_step("step.onnx")
    scores, zero_shot = step(pixels)             # [1, 3, H, W] → [C], [C]; `step` keeps the state

The state is that of `core.stream.StreamState`, tensor by tensor under the names of its fields; docs/export.md shows the
loop without this package.
"""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lessmore.core.correction import probabilities
from lessmore.core.flexible import require_one_shape
from lessmore.core.stream import EMPTY, from_named
from lessmore.errors import ConfigError, StateError
from lessmore.methods.tca import TCA, step
from lessmore.storage.files import replacing

if TYPE_CHECKING:
    from lessmore.adapter import Adapter

ENDINGS = (".pt2", ".onnx")
_FACTS = "lessmore.json"
State = dict[str, Tensor]


class ExportableStep(nn.Module):
    """`lessmore.methods.tca.step` with the model and the class embeddings as its weights."""

    text: Tensor
    weights: Tensor

    def __init__(self, method: TCA) -> None:
        super().__init__()
        self.setup = method.setup
        self.vision = method.setup.vision
        self.register_buffer("text", method.setup.text)
        self.register_buffer("weights", method.weights)

    def forward(self, pixels: Tensor, state: State) -> tuple[Tensor, Tensor, State]:
        """One step.

        Args:
            pixels: A preprocessed image, `[1, 3, H, W]`.
            state: The state by the names of its fields.

        Returns:
            The scores `[C]`, the zero-shot scores `[C]`, and the next state.
        """
        setup = replace(self.setup, vision=self.vision, text=self.text)
        answer, after = step(setup, self.weights, pixels, from_named(state))
        scores = probabilities(answer.corrected, setup.preset.adaptation.domain)
        return scores, answer.logits.softmax(dim=-1), after.named()


class Exported:
    """A step read back from its file, holding the state of one stream."""

    def __init__(self, run: Callable[[Tensor, State], tuple[Tensor, Tensor, State]], start: State, facts: Any) -> None:
        self.classes: list[str] = facts["classes"]
        self._run, self._start = run, start
        self.state = dict(start)

    def __call__(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Scores and zero-shot scores `[C]` of one preprocessed image `[1, 3, H, W]`; the state advances by a step."""
        scores, zero_shot, self.state = self._run(pixels, self.state)
        return scores, zero_shot

    def reset(self) -> None:
        """Forget the stream."""
        self.state = dict(self._start)


def save_step(adapter: Adapter, path: str | Path) -> None:
    """Write the adapter's step to a file, with the empty state of a new stream.

    Args:
        adapter: An adapter with method `tca`.
        path: A file that ends in `.pt2` (torch.export) or `.onnx`.

    Raises:
        ConfigError: The method or reducer cannot be exported, the ending is another, or a package is missing.
    """
    path = Path(path)
    if path.suffix not in ENDINGS:
        raise ConfigError(f"{path} does not end in {' or '.join(ENDINGS)}; give the file one of these endings")
    if path.suffix == ".onnx":
        _need_onnx()
    program = program_of(adapter)
    facts = json.dumps({"classes": adapter.classes, "model": adapter.vlm.fingerprint()})
    data = _onnx_bytes(program, facts) if path.suffix == ".onnx" else _pt2_bytes(program, facts)
    with replacing(path) as new:
        new.write_bytes(data)


def _pt2_bytes(program: torch.export.ExportedProgram, facts: str) -> bytes:
    """In memory first: torch's own writer ends the process where the disk is full."""
    stream = io.BytesIO()
    torch.export.save(program, stream, extra_files={_FACTS: facts})
    return stream.getvalue()


def load_step(path: str | Path) -> Exported:
    """Read a file of `save_step`, on the CPU. A .pt2 file can run code of its author's choosing: load only your own.

    Raises:
        StateError: There is no such file, or lessmore did not write it.
        ConfigError: A package is missing.
    """
    path = Path(path)
    if not path.is_file():
        raise StateError(f"there is no file {path}; write it with lessmore export")
    return _load_onnx(path) if path.suffix == ".onnx" else _load_pt2(path)


@torch.no_grad()
def program_of(adapter: Adapter) -> torch.export.ExportedProgram:
    """The step as a program of torch.export; its example inputs are an image of zeros and the empty state."""
    if adapter.method_name != "tca":
        raise ConfigError(f"only method 'tca' can be exported, not {adapter.method_name!r}; use adapt(method='tca')")
    if adapter.preset.condensation.rule != "coreset":
        raise ConfigError("reducers that match or sample tokens cannot be exported; use tca, evit or none")
    require_one_shape(adapter.vlm.vision.shape.flexible, "an exported step", "answer with the adapter itself")
    method = TCA(adapter._setup)
    side = adapter.vlm.vision.shape.image_size
    pixels = torch.zeros(1, 3, side, side, dtype=adapter.vlm.dtype, device=adapter.vlm.device)
    return torch.export.export(ExportableStep(method).eval(), (pixels, method.stream.named()), strict=False)


def _load_pt2(path: Path) -> Exported:
    files = {_FACTS: ""}
    program = torch.export.load(path, extra_files=files)
    if program.example_inputs is None or not files[_FACTS]:
        raise StateError(f"{path} was not written by lessmore; write it with lessmore export")
    start = program.example_inputs[0][1]
    return Exported(torch.no_grad()(program.module()), start, json.loads(files[_FACTS]))


def _need_onnx() -> Any:
    """The onnxruntime module, after checking that the packages an export needs are installed as well."""
    try:
        return [import_module(name) for name in ("onnx", "onnxscript", "onnxruntime")][-1]
    except ImportError as error:
        raise ConfigError(f"ONNX needs {error.name}; pip install 'lessmore[export]'") from error


def stable_order(x: Tensor, *, stable: bool, dim: int = -1, descending: bool = False) -> Tensor:
    """What `argsort(stable=True)` returns, computed by counting: ONNX has no stable sort.

    A value's place is the number of values before it, counting equal ones at lower positions. So all places differ, and
    the runtime's sort has no ties to break.

    Args:
        x: Values.
        stable: Part of the signature it replaces.
        dim: The dimension to sort along.
        descending: Whether the largest comes first.
    """
    x = x.movedim(dim, -1)
    position = torch.arange(x.shape[-1], device=x.device)
    this, other = x.unsqueeze(-1), x.unsqueeze(-2)
    earlier = other > this if descending else other < this
    equal = (other == this) & (position < position.unsqueeze(-1))
    place = (earlier | equal).to(torch.int64).sum(dim=-1)
    return torch.zeros_like(place).scatter(-1, place, position.expand_as(place)).movedim(-1, dim)


def _onnx_bytes(program: torch.export.ExportedProgram, facts: str) -> bytes:
    assert program.example_inputs is not None
    inputs = program.example_inputs[0]
    names = list(inputs[1])
    plain = program.run_decompositions({torch.ops.aten.argsort.stable: stable_order})
    # The exporter remarks on an attribute that is an empty list; whoever exports could not mend it.
    remarks = logging.getLogger("onnx_ir._convenience")
    remarks.addFilter(_says_nothing_to_users)
    try:
        model = torch.onnx.export(
            plain,
            inputs,
            dynamo=True,
            verbose=False,
            input_names=["pixels", *names],
            output_names=["scores", "zero_shot", *(f"new_{name}" for name in names)],
        )
    finally:
        remarks.removeFilter(_says_nothing_to_users)
    assert model is not None
    model.model.metadata_props["lessmore"] = facts
    try:
        proto: bytes = model.model_proto.SerializeToString()
    except ValueError as error:
        raise ConfigError("the model is too large for one ONNX file (2 GB); export it as .pt2") from error
    return proto


def _says_nothing_to_users(record: logging.LogRecord) -> bool:
    return "is an empty sequence" not in record.getMessage()


def _load_onnx(path: Path) -> Exported:
    onnxruntime = _need_onnx()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    facts = session.get_modelmeta().custom_metadata_map.get("lessmore")
    if facts is None:
        raise StateError(f"{path} was not written by lessmore; write it with lessmore export")

    def run(pixels: Tensor, state: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, State]:
        feed = {"pixels": pixels.numpy(), **{name: tensor.numpy() for name, tensor in state.items()}}
        scores, zero_shot, *after = (torch.from_numpy(array) for array in session.run(None, feed))
        return scores, zero_shot, dict(zip(state, after, strict=True))

    return Exported(run, _empty_like(session), json.loads(facts))


def _empty_like(session: Any) -> State:
    """The empty state in the shapes and types that a session takes."""
    types = {"tensor(float)": torch.float32, "tensor(double)": torch.float64, "tensor(int64)": torch.int64}
    types |= {"tensor(float16)": torch.float16}
    inputs = session.get_inputs()[1:]
    return {i.name: torch.full(i.shape, EMPTY.get(i.name, 0), dtype=types[i.type]) for i in inputs}
