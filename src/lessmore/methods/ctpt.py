"""C-TPT: TPT that also spreads the class embeddings, for answers whose probabilities can be trusted.

loss(v) = TPT's − λ · mean over classes of ‖t_c(v) − t̄(v)‖
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from lessmore.errors import ConfigError
from lessmore.methods.registry import register_method
from lessmore.methods.tpt import TPT, TPTOptions, marginal_entropy


@dataclass(frozen=True)
class CTPTOptions(TPTOptions):
    """TPT's settings and the weight of the dispersion."""

    dispersion: float = 50.0
    """λ: 50 in the published runs on fine-grained sets, 20 on ImageNet and its kin."""

    def __post_init__(self) -> None:
        """Validate once; every later use may trust the values."""
        super().__post_init__()
        if self.dispersion < 0:
            raise ConfigError(f"dispersion must not be negative, as {self.dispersion} is; 0 is plain TPT")


def dispersion(text: Tensor) -> Tensor:
    """Mean distance of the class embeddings `[C, E]` from their mean, `[]`."""
    return (text - text.mean(dim=0)).norm(dim=-1).mean()


@register_method("c-tpt", CTPTOptions)
class CTPT(TPT):
    """TPT with another loss."""

    options: CTPTOptions

    def loss(self, logits: Tensor, text: Tensor) -> Tensor:
        """What one image's step minimises: TPT's loss less the weighted dispersion.

        Args:
            logits: Of the chosen views, `[v, C]`.
            text: Class embeddings under the present context, `[C, E]`.
        """
        return marginal_entropy(logits) - self.options.dispersion * dispersion(text)
