"""MTA: the mode of an image's views by MeanShift, where a view counts for more the better it agrees with the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from lessmore.core.costs import Accounting
from lessmore.errors import ConfigError
from lessmore.methods.registry import register_method
from lessmore.methods.views import ViewEnsemble, ViewOptions

_ROUNDS = 5
_STILL = 1e-6  # what moves less than this has arrived
_NARROWEST = 1e-12  # squared bandwidth where views coincide


@dataclass(frozen=True)
class MTAOptions(ViewOptions):
    """MTA's own settings, as published."""

    neighbours: float = 0.3
    """Share of the other views that count as neighbours for a view's bandwidth."""
    lambda_y: float = 0.2
    """Large values make the views' weights alike."""
    lambda_q: float = 4.0
    """Weight of the agreement of the answers against density."""

    def __post_init__(self) -> None:
        """Validate once; every later use may trust the values."""
        super().__post_init__()
        if not 0 < self.neighbours <= 1:
            raise ConfigError(f"neighbours must lie in (0, 1], not {self.neighbours}")
        if self.lambda_y <= 0 or self.lambda_q < 0:
            raise ConfigError(f"lambda_y must be positive, lambda_q not negative, not {self.lambda_y}, {self.lambda_q}")


def find_mode(features: Tensor, logits: Tensor, options: MTAOptions) -> tuple[Tensor, Tensor]:
    """The mode of an image's views, and how much each view counted.

    Args:
        features: L2-normalised, `[V, E]`, the plain image's first.
        logits: Of the same views, `[V, C]`.
        options: MTA's settings.

    Returns:
        The mode, L2-normalised, `[E]`, and the weights of the views, `[V]`, which sum to 1.
    """
    V = len(features)
    widths = bandwidths(features, options.neighbours)
    answers = logits.softmax(dim=-1)
    agreement = answers @ answers.T
    y, mode = features.new_full((V,), 1 / V), features[0]

    def density(m: Tensor) -> Tensor:
        return torch.exp(-(features - m).square().sum(dim=1) / (2 * widths))

    def weigh(y: Tensor) -> Tensor:
        return ((near + options.lambda_q * (agreement @ y)) / options.lambda_y).softmax(dim=0)

    def shift(m: Tensor) -> Tensor:
        return F.normalize((y * density(m)) @ features, dim=0)

    for _ in range(_ROUNDS):
        near = density(mode)  # stays as it is while the weights settle, as published
        y = _settle(weigh, y)
        mode = _settle(shift, mode)
    return mode, y


def bandwidths(features: Tensor, neighbours: float) -> Tensor:
    """Squared bandwidth of every view, `[V]`: half its mean squared distance to its nearest neighbours.

    Args:
        features: Of the views, `[V, E]`.
        neighbours: Fraction of the other views that count as neighbours; at least one does.
    """
    squared = torch.cdist(features, features, compute_mode="donot_use_mm_for_euclid_dist").square()
    k = max(1, int(neighbours * (len(features) - 1)))
    return (0.5 * squared.sort(dim=1).values[:, 1 : k + 1].mean(dim=1)).clamp_min(_NARROWEST)


def _settle(step: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Repeat a step until nothing moves, at most five times. The test stays on the device, so the host never waits."""
    moving = torch.ones((), dtype=torch.bool, device=x.device)
    for _ in range(_ROUNDS):
        new = torch.where(moving, step(x), x)
        moving = (new - x).norm() >= _STILL
        x = new
    return x


@register_method("mta", MTAOptions)
class MTA(ViewEnsemble[MTAOptions]):
    """The class nearest to the mode of the views."""

    def combine(self, features: Tensor, logits: Tensor) -> Tensor:
        """Probabilities of the mode, `[C]`.

        Args:
            features: Of the views, L2-normalised, `[V, E]`, the plain image's first.
            logits: Of the same views, `[V, C]`.
        """
        mode, _ = find_mode(features, logits, self.options)
        return (self.setup.logit_scale * (mode @ self.setup.text.to(mode.dtype).T)).softmax(dim=-1)

    def macs(self, accounting: Accounting = "matmul") -> int:
        """A pass of the tower for every view and, in `matmul`, the agreement of the views and the search for the mode.

        Args:
            accounting: See `Method.macs`.
        """
        V, E, C = self.options.views, self.setup.vision.shape.embed, len(self.setup.text)
        search = V * V * C + _ROUNDS**2 * (V * V + V * E) + C * E
        return V * self.setup.image_macs(accounting) + (search if accounting == "matmul" else 0)
