"""The class embeddings that an image's feature is compared with."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


def class_logits(feature: Tensor, text: Tensor, scale: float) -> Tensor:
    """Zero-shot logits z_c = scale · f·t_c, in the precision of the feature.

    A sigmoid model adds the same bias to every class; it changes no softmax and is left out.

    Args:
        feature: L2-normalised image features, `[..., E]`. Means of features give the means of their logits.
        text: L2-normalised class embeddings, `[C, E]`.
        scale: Scale of the logits.

    Returns:
        Logits, `[..., C]`.
    """
    return scale * (feature @ text.to(feature.dtype).T)


class ClassTexts(NamedTuple):
    """Class embeddings, and what debiasing needs to know about them."""

    text: Tensor
    """L2-normalised class embeddings in float32 or better, `[C, E]`."""
    scale: float
    """Scale of the logits."""
    bias: Tensor
    """t_c · t̄, the cosine of each class embedding with their mean, `[C]`. All |t_c − w·t̄| follow from it."""

    @classmethod
    def of(cls, text: Tensor, scale: float) -> ClassTexts:
        """Prepare class embeddings.

        Args:
            text: L2-normalised class embeddings of any floating-point type, `[C, E]`.
            scale: Scale of the logits.
        """
        wide = text.to(torch.promote_types(text.dtype, torch.float32))
        return cls(wide, scale, wide @ wide.mean(dim=0))

    def logits(self, feature: Tensor) -> Tensor:
        """Features, or means of features, `[..., E]` → logits `[..., C]`; see `class_logits`."""
        return class_logits(feature, self.text, self.scale)
