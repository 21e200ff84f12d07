"""A picture of what happened to an image's tokens, for `?explain=tokens`."""

from __future__ import annotations

from PIL import Image

from lessmore.models.vlm import VLM
from lessmore.prediction import Prediction


def tokens_picture(vlm: VLM, image: Image.Image, prediction: Prediction) -> str:
    """The image as the tower saw it and what each condensing block left of it, as a PNG in a data URI.

    Args:
        vlm: The model.
        image: The image, of any size.
        prediction: Made with its trace; without one, the picture shows the image alone.
    """
    from lessmore.lab.report.tokens import answers_line, as_seen, data_uri, token_strip

    line = answers_line(prediction.classes, prediction)
    return data_uri(token_strip(as_seen(image, vlm), prediction.trace, line))
