"""Models that people ask for and that are not imported, each with what our towers lack."""

from __future__ import annotations

_REASONS = {
    ("dinov3_vit", "DINOv3ViTModel"): "DINOv3, which has no text tower,",
    ("aimv2", "Aimv2Model"): "AIMv2, whose blocks have RMSNorm,",
    ("tipsv2", "Tipsv2Model"): "TIPSv2, whose text tower masks its padding and averages the other tokens,",
    ("CoCa",): "a CoCa model, which pools by several queries,",
}
_SENTENCES = {name: reason for names, reason in _REASONS.items() for name in names}


def refusal_of(kind: str, otherwise: str) -> str:
    """How the error for a model that is not imported begins; `cannot be imported` follows.

    Args:
        kind: The name of its class, or transformers' type of model.
        otherwise: What to call models that are not listed here.
    """
    return _SENTENCES.get(kind, otherwise)
