"""Tent, SAR, TPT and C-TPT for `measure.py`: the same steps as the methods', for many streams or methods at a time.

A step of Tent or SAR on one image is hundreds of small launches. Streams do not see each other, so any number of them
take their steps together: image i of every stream is a batch, and every stream has LayerNorms of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lessmore.core.encoder import encode
from lessmore.methods import Method, Setup, make_method
from lessmore.methods.context import embed_classes
from lessmore.methods.sar import _DECAY, SAR
from lessmore.methods.tent import Tent, entropy
from lessmore.methods.tpt import TPT

_NEVER = -1e4
"""Logit of a class that a stream does not have: its probability is 0 exactly, and so is its slope."""


class Norms(nn.LayerNorm):
    """A LayerNorm with an affine [S, D] for each of S streams, whose images come as a batch [S, …, D]."""

    def __init__(self, norm: nn.LayerNorm, streams: int) -> None:
        super().__init__(norm.normalized_shape, eps=norm.eps, device="meta")
        own = (p.detach().expand(streams, -1).clone() for p in (norm.weight, norm.bias))
        self.weight, self.bias = (nn.Parameter(p, requires_grad=False) for p in own)

    def forward(self, x: Tensor) -> Tensor:
        """[S, …, D] → the same."""
        shape = (len(x), *[1] * (x.ndim - 2), x.shape[-1])
        return F.layer_norm(x, self.normalized_shape, eps=self.eps) * self.weight.view(shape) + self.bias.view(shape)


class Together:
    """S streams through one tower, each with its own affines and classes."""

    def __init__(self, method: Tent, setups: Sequence[Setup]) -> None:
        """method: fresh, for any one of the streams; its tower is taken over. setups: of each stream."""
        self.method, self.tower, S = method, method.tower, len(setups)
        names = [name for name, part in self.tower.named_modules() if isinstance(part, nn.LayerNorm)]
        for name in names:
            self.tower.set_submodule(name, Norms(self.tower.get_submodule(name), S))  # type: ignore[arg-type]
        learnt = [name.rpartition(".")[0] for name in method.affines if name.endswith(".weight")]
        norms = [self.tower.get_submodule(name) for name in learnt]
        self.weights = [p.requires_grad_() for norm in norms for p in (norm.weight, norm.bias)]  # type: ignore[union-attr]
        self.start = torch.cat([w.detach() for w in self.weights], dim=1)
        self.momentum = torch.zeros_like(self.start)
        sizes = [len(setup.text) for setup in setups]
        self.texts = torch.stack([F.pad(setup.text, (0, 0, 0, max(sizes) - len(setup.text))) for setup in setups])
        self.real = torch.arange(max(sizes), device=self.start.device) < self.start.new_tensor(sizes).unsqueeze(1)
        self.sizes, self.scale = sizes, setups[0].logit_scale

    def logits(self, pixels: Tensor) -> Tensor:
        """An image of each stream [S, 3, H, W] → [S, C]."""
        feature = encode(self.tower, pixels).feature
        return torch.where(self.real, self.scale * (self.texts @ feature.unsqueeze(-1)).squeeze(-1), _NEVER)

    def slopes(self, losses: Tensor) -> Tensor:
        """The slope of each stream's loss [S] along its own affines, [S, P]."""
        return torch.cat(torch.autograd.grad(losses.sum(), self.weights), dim=1)

    @property
    def affines(self) -> Tensor:
        """[S, P]"""
        return torch.cat([weight.detach() for weight in self.weights], dim=1)

    def put(self, affines: Tensor) -> None:
        """Set the affines [S, P]."""
        with torch.no_grad():
            for weight, value in zip(self.weights, affines.split([w.shape[1] for w in self.weights], 1), strict=True):
                weight.copy_(value)

    def descend(self, slopes: Tensor, which: Tensor) -> None:
        """An optimiser step of some of the streams [S] bool, along slopes [S, P]."""
        options, which = self.method.options, which.unsqueeze(1)
        self.momentum = torch.where(which, options.momentum * self.momentum + slopes, self.momentum)
        way = slopes + options.momentum * self.momentum if options.nesterov else self.momentum
        self.put(self.affines - torch.where(which, options.rate * way, 0.0))

    def run(self, batches: Iterable[Tensor]) -> list[Tensor]:
        """Images of all streams, one of each at a time, [S, 3, H, W] → each stream's probabilities [n, C]."""
        answers = []
        with torch.enable_grad():
            for pixels in batches:
                logits = self.logits(pixels)
                answers.append(logits.detach().softmax(dim=-1))
                self.adapt(pixels, logits)
        if not self.affines.isfinite().all():
            raise FloatingPointError("an affine is no longer finite")
        return [part[:, :size] for part, size in zip(torch.stack(answers, dim=1), self.sizes, strict=True)]

    def adapt(self, pixels: Tensor, logits: Tensor) -> None:
        """Tent's step."""
        self.descend(self.slopes(entropy(logits)), torch.ones_like(logits[:, 0], dtype=torch.bool))


class Sharply(Together):
    """The same with SAR's step."""

    method: SAR

    def __init__(self, method: SAR, setups: Sequence[Setup]) -> None:
        super().__init__(method, setups)
        self.bound = method.options.margin * self.start.new_tensor(self.sizes).log()
        self.average = torch.full_like(self.bound, torch.nan)

    def adapt(self, pixels: Tensor, logits: Tensor) -> None:
        """SAR's two steps, of those streams whose image is reliable."""
        options, here = self.method.options, self.affines
        uncertain = entropy(logits)
        reliable = uncertain.detach() < self.bound
        uphill = self.slopes(torch.where(reliable, uncertain, 0.0))
        self.put(here + options.rho / uphill.norm(dim=1, keepdim=True).clamp_min(1e-12) * uphill)
        above = entropy(self.logits(pixels))
        reliable &= above.detach() < self.bound
        slopes, loss = self.slopes(torch.where(reliable, above, 0.0)), above.detach()
        self.put(here)
        self.descend(slopes, reliable)
        later = torch.where(self.average.isnan(), loss, torch.lerp(loss, self.average, _DECAY))
        self.average = torch.where(reliable, later, self.average)
        self._start_anew(self.average < options.floor)

    def _start_anew(self, which: Tensor) -> None:
        rows = which.unsqueeze(1)
        self.put(torch.where(rows, self.start, self.affines))
        self.momentum = torch.where(rows, 0.0, self.momentum)
        self.average = torch.where(which, torch.nan, self.average)


def online(setups: Sequence[Setup], streams: Sequence[Tensor], name: str) -> list[Tensor]:
    """Tent's or SAR's probabilities [n, C] for each of some streams of pixels [n, 3, H, W], all equally long."""
    method = make_method(name, setups[0])
    together = Sharply(method, setups) if isinstance(method, SAR) else Together(method, setups)  # type: ignore[arg-type]
    return together.run(torch.stack(list(images)) for images in zip(*streams, strict=True))


def viewed(methods: Sequence[Method], views: Tensor) -> list[Tensor]:
    """The probabilities [C] that methods give to an image by the same views [V, 3, H, W]; TPT's kin share encodings."""
    if not all(isinstance(method, TPT) for method in methods):
        return [method.predict(views).scores for method in methods]
    features = encode(methods[0].setup.vision, views).feature  # type: ignore[attr-defined]
    return [prompted(method, features) for method in methods]  # type: ignore[arg-type]


def prompted(method: TPT, features: Tensor) -> Tensor:
    """What `TPT.predict` answers with, for features [V, E]: [C]."""
    with torch.enable_grad():
        context = method.tuned(features)
    return method.logits(features[:1], embed_classes(method.frame, context))[0].softmax(dim=-1)
