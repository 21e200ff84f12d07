"""Tent: gradient descent on the entropy of the model's own answers, over the LayerNorm affines of the vision tower.

Tent was written for batches. Here a batch is one image (`window=1`), or `window` images gathered before each step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import torch
from torch import Tensor, nn

from lessmore.core.costs import Accounting
from lessmore.core.encoder import Encoded, encode
from lessmore.core.flexible import require_one_shape
from lessmore.core.text import TextTower
from lessmore.core.vit import ViT
from lessmore.errors import ConfigError
from lessmore.methods.registry import Facts, Outcome, Setup, register_method
from lessmore.methods.views import first_view_steps
from lessmore.methods.zeroshot import zero_shot_logits
from lessmore.storage.state import Form

_BATCH = 64
Tower = TypeVar("Tower", ViT, TextTower)


@dataclass(frozen=True)
class TentOptions:
    """Tent's own settings; the defaults are those of its usual port to CLIP."""

    lr: float = 2.5e-4
    """Learning rate of a step on 64 images; a step on fewer takes it in proportion."""
    momentum: float = 0.9
    nesterov: bool = True
    window: int = 1
    """Images per step: one step is made on every so many images."""

    def __post_init__(self) -> None:
        """Validate once; every later use may trust the values."""
        if not self.lr > 0 or not 0 <= self.momentum < 1:
            raise ConfigError(f"lr must be positive and momentum in [0, 1), not {self.lr} and {self.momentum}")
        if self.nesterov and self.momentum == 0:
            raise ConfigError("nesterov needs a momentum above 0; set nesterov=False with momentum=0")
        if self.window < 1:
            raise ConfigError(f"window is a number of images from 1, not {self.window}")

    @property
    def rate(self) -> float:
        """Learning rate of a step on `window` images."""
        return self.lr * self.window / _BATCH


def entropy(logits: Tensor) -> Tensor:
    """Entropy of softmax(logits) in nats, [..., C] → [...]; its gradient is finite where a probability is 0."""
    log = logits.log_softmax(dim=-1)
    return -(log.exp() * log).sum(dim=-1)


def gradient_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type that gradients are computed in: at least float32."""
    return torch.promote_types(dtype, torch.float32)


def with_own_norms(tower: Tower) -> Tower:
    """A tower with LayerNorms of its own; other weights are shared, unless they have to be widened to float32."""
    with torch.device("meta"):
        own = type(tower)(tower.shape).requires_grad_(False)
    norms = set(norm_affines(own))
    weights = {k: v.to(gradient_dtype(v.dtype), copy=k in norms) for k, v in tower.state_dict().items()}
    own.load_state_dict(weights, assign=True)
    return own.eval()


def norm_affines(tower: nn.Module) -> dict[str, nn.Parameter]:
    """Weight and bias of every LayerNorm by name, in the order of the tower."""
    layers = ((name, layer) for name, layer in tower.named_modules() if isinstance(layer, nn.LayerNorm))
    return {f"{name}.{part}": weight for name, layer in layers for part, weight in layer.named_parameters()}


def last_blocks(vision: ViT, share: float) -> tuple[str, ...]:
    """How the names of the weights of a tower's last blocks begin.

    Args:
        vision: The tower.
        share: Fraction of its blocks, rounded down; 0.25 is blocks 9 to 11 of 12.
    """
    depth = vision.shape.blocks.depth
    return tuple(f"blocks.{i}." for i in range(depth - math.floor(share * depth), depth))


@dataclass(frozen=True)
class LowerTentOptions(TentOptions):
    """Tent's settings as later methods publish them for vision transformers."""

    lr: float = 1e-3
    """Learning rate of a step on 64 images; a step on fewer takes it in proportion."""
    nesterov: bool = False
    frozen: float = 0.25
    """Share of the blocks, from the last one back, whose norms are left alone; a quarter is blocks 9 to 11 of 12."""

    def __post_init__(self) -> None:
        """Validate once; every later use may trust the values."""
        super().__post_init__()
        if not 0 <= self.frozen <= 1:
            raise ConfigError(f"frozen must lie in [0, 1], not {self.frozen}")


@register_method("tent", TentOptions)
class Tent:
    """Holds the affines, their momentum, and the images gathered for the next step."""

    buffers: ClassVar[dict[str, str]] = {"momentum": "momentum_buffer"}
    """What the optimiser remembers of every affine: the name in a saved state, and the optimiser's."""

    def __init__(self, setup: Setup, options: TentOptions) -> None:
        name = type(self).__name__.lower()
        require_one_shape(setup.vision.shape.flexible, f"method {name!r}", "take method 'tca'")
        self.setup = setup
        self.options = options
        self.tower = with_own_norms(setup.vision)
        self.affines = {k: v.requires_grad_() for k, v in self.norms().items() if self.learns(k)}
        self.start = {k: v.detach().clone() for k, v in self.affines.items()}
        learnable = self.idle() + sum(v.numel() for v in self.start.values())
        self.facts = Facts(False, "online", needs_gradients=True, learnable_parameters=learnable)
        self.waiting: Tensor
        self.reset()

    def norms(self) -> dict[str, nn.Parameter]:
        """The affines there are, by name."""
        return norm_affines(self.tower)

    def idle(self) -> int:
        """Parameters of the text tower's last norm: on the papers' list, though no gradient reaches them."""
        return 0 if self.setup.vlm is None else sum(p.numel() for p in self.setup.vlm.text.norm_post.parameters())

    def learns(self, name: str) -> bool:
        """Whether the affine of that name is learnt."""
        return True

    def predict(self, pixels: Tensor) -> Outcome:
        """Answer one preprocessed image `[1, 3, H, W]` with the present weights, then adapt if the window is full."""
        batch = torch.cat([pixels.to(self.waiting), self.waiting])  # newest first: row 0 is the one to answer
        if len(batch) < self.options.window:
            self.waiting = batch
            with torch.no_grad():
                encoded = self.encode(pixels)
                return self._outcome(pixels, encoded, self.logits(encoded))
        self.waiting = batch[:0]
        with torch.enable_grad():
            encoded = self.encode(batch)
            logits = self.logits(encoded)
            outcome = self._outcome(pixels, encoded, logits.detach())
            self.adapt(batch, encoded, logits)
        return outcome

    def adapt(self, pixels: Tensor, encoded: Encoded, logits: Tensor) -> None:
        """One step on a batch.

        Args:
            pixels: `[B, 3, H, W]`.
            encoded: What the tower made of them, with gradients attached.
            logits: The tower's answers to them, with gradients attached, `[B, C]`.
        """
        self.step(self.gradients(entropy(logits).mean()))

    def gradients(self, loss: Tensor) -> list[Tensor]:
        """The gradient of the loss for every affine."""
        return list(torch.autograd.grad(loss, list(self.affines.values())))

    def step(self, gradients: list[Tensor]) -> None:
        """One optimiser step. Gradients that are not finite are skipped: the momentum would keep them forever."""
        if not torch.nn.utils.get_total_norm(gradients).isfinite():
            return
        for weight, gradient in zip(self.affines.values(), gradients, strict=True):
            weight.grad = gradient
        self.optimiser.step()
        self.optimiser.zero_grad()

    def encode(self, pixels: Tensor) -> Encoded:
        """Images [B, 3, H, W] through the adapted tower."""
        return encode(self.tower, pixels.to(self.waiting.dtype), self.setup.preset.condensation)

    def logits(self, encoded: Encoded) -> Tensor:
        """Zero-shot logits of a batch, `[B, C]`."""
        return zero_shot_logits(encoded, self.setup.text, self.setup.logit_scale)

    def _outcome(self, pixels: Tensor, encoded: Encoded, logits: Tensor) -> Outcome:
        """The answer for the first image of the batch, with that of the original tower as zero-shot."""
        with torch.no_grad():
            plain = encode(self.setup.vision, pixels, self.setup.preset.condensation)
            before = zero_shot_logits(plain, self.setup.text, self.setup.logit_scale)[0]
        return Outcome(before, logits[0].softmax(dim=-1), before.softmax(dim=-1), None, first_view_steps(encoded.steps))

    def reset(self) -> None:
        """The original affines, no momentum, no gathered images."""
        side = self.setup.vision.shape.image_size
        self.waiting = self.tower.positions.new_empty(0, 3, side, side)
        self.start_over()

    def start_over(self) -> None:
        """The original affines and a fresh optimiser."""
        with torch.no_grad():
            for name, weight in self.affines.items():
                weight.copy_(self.start[name])
        self.optimiser = self.new_optimiser()

    def new_optimiser(self) -> torch.optim.Optimizer:
        """An optimiser of the affines that has made no step."""
        chosen = self.options
        return torch.optim.SGD(self.affines.values(), chosen.rate, momentum=chosen.momentum, nesterov=chosen.nesterov)

    def state(self) -> dict[str, Tensor]:
        """Affines, the optimiser's buffers (none before the first step) and gathered images; independent copies."""
        affines = {f"affine.{k}": v.detach().clone() for k, v in self.affines.items()}
        return {**affines, **self._buffers(), "waiting": self.waiting.clone()}

    def state_forms(self) -> dict[str, Form]:
        """Buffers appear with the first step; fewer images than a window are waiting."""
        forms = {f"affine.{k}": Form(v.dtype, tuple(v.shape)) for k, v in self.affines.items()}
        for name, kept in self.buffers.items():
            for k, v in self.affines.items():
                alone = kept == "step"  # a number, and on the CPU
                shape, dtype = ((), torch.float32) if alone else (tuple(v.shape), v.dtype)
                forms[f"{name}.{k}"] = Form(dtype, shape, required=False)
        waiting = Form(self.waiting.dtype, (range(self.options.window), *self.waiting.shape[1:]))
        return {**forms, "waiting": waiting}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a `state()`, from any device."""
        self.reset()
        with torch.no_grad():
            for k, weight in self.affines.items():
                weight.copy_(state[f"affine.{k}"])
                for name, kept in self.buffers.items():
                    if f"{name}.{k}" in state:
                        found = state[f"{name}.{k}"]
                        device = "cpu" if kept == "step" else weight.device
                        self.optimiser.state[weight][kept] = found.to(device, copy=True)
        self.waiting = state["waiting"].to(self.waiting, copy=True)

    def _buffers(self) -> dict[str, Tensor]:
        """What the optimiser remembers, under the names of the state; independent copies."""
        found = {
            f"{name}.{k}": self.optimiser.state[v].get(kept)
            for name, kept in self.buffers.items()
            for k, v in self.affines.items()
        }
        return {name: tensor.clone() for name, tensor in found.items() if tensor is not None}

    def slots(self) -> None:
        """No memory of single images."""

    def macs(self, accounting: Accounting = "matmul") -> int:
        """A pass with its gradient and one of the original tower; with a window, each image once more in its step.

        Args:
            accounting: See `Method.macs`.
        """
        if accounting == "paper":
            return self.setup.image_macs(accounting)
        passes = 3 - 1 / self.options.window
        return round(passes * self.setup.image_macs()) + self.setup.gradient_macs()


class LowerTent(Tent):
    """Tent that leaves the norms of the last blocks alone."""

    def __init__(self, setup: Setup, options: LowerTentOptions) -> None:
        self.above = last_blocks(setup.vision, options.frozen)
        super().__init__(setup, options)

    def learns(self, name: str) -> bool:
        """Whether the affine of that name is learnt: all but those of the last blocks."""
        return not name.startswith(self.above)
