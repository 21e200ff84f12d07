"""transformers' zero-shot pipeline, adapting: the same call and the same answers' shape, so that one import changes."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any, cast

from lessmore.adapter import Adapter, adapt
from lessmore.data.find import each_image, stands_for_several
from lessmore.errors import ConfigError, unknown
from lessmore.models.load import load
from lessmore.models.to_pixels import Image, Images

TASK = "zero-shot-image-classification"
_KEPT = 32
"""Label lists whose streams are kept; the one not used for longest is forgotten."""

Scored = list[dict[str, Any]]
"""`{"score": probability, "label": name}` of every label, the most probable first."""


class ZeroShotPipeline:
    """Answers images as transformers' pipeline does; every list of labels has a stream of its own, which adapts."""

    def __init__(self, model: Any, **options: Any) -> None:
        """Use `lessmore.pipeline` instead.

        Args:
            model: A `VLM`.
            **options: Arguments of `adapt` besides model, classes and templates.
        """
        self.model, self._options = model, options
        self._adapters: OrderedDict[tuple[str, ...], Adapter] = OrderedDict()

    def __call__(
        self,
        image: Images | None = None,
        candidate_labels: Sequence[str] | str | None = None,
        hypothesis_template: str = "This is a photo of {}.",
        *,
        bgr: bool = False,
        timeout: float | None = None,
        batch_size: int | None = None,
        num_workers: int | None = None,
    ) -> Scored | list[Scored] | Iterator[Scored]:
        """Answer one image or several.

        Args:
            image: One image, or a list of them, as `Adapter` takes them; a folder or pattern counts as a list. Other
                iterables are answered one by one as they are read.
            candidate_labels: The labels, or one text with commas.
            hypothesis_template: A prompt with `{}` for the label.
            bgr: Whether the colours of arrays come as blue, green, red.
            timeout: Not used: nothing is fetched from the network.
            batch_size: Not used: images are answered in order, because each answer may change the next.
            num_workers: Not used.

        Returns:
            For one image its labels with their scores, the most probable first; for a list a list of these; for
            another iterable an iterator over these.

        Raises:
            ConfigError: There is no image or no label, or a label cannot be used.
            ImageError: An image cannot be read.
        """
        if image is None or candidate_labels is None:
            raise ConfigError("give an image and its candidate_labels")
        adapter = self.adapter(candidate_labels, hypothesis_template)
        if _single(image):
            return _scored(adapter, cast(Image, image), bgr)
        several = each_image(image)
        found = (_scored(adapter, one, bgr) for one in several)
        return list(found) if isinstance(several, Sequence) else found

    def adapter(self, candidate_labels: Sequence[str] | str, hypothesis_template: str) -> Adapter:
        """The adapter that answers for a list of labels; with it the stream can be saved, restored and reset.

        Args:
            candidate_labels: The labels, or one text with commas.
            hypothesis_template: A prompt with `{}` for the label.
        """
        named = candidate_labels.split(",") if isinstance(candidate_labels, str) else candidate_labels
        labels = [name.strip() for name in named] if isinstance(candidate_labels, str) else list(named)
        key = (hypothesis_template, *labels)
        if key not in self._adapters:
            self._adapters[key] = adapt(self.model, labels, templates=[hypothesis_template], **self._options)
        self._adapters.move_to_end(key)
        while len(self._adapters) > _KEPT:
            self._adapters.popitem(last=False)
        return self._adapters[key]


def _single(image: Any) -> bool:
    """Whether it is one image; a path may be that of a folder."""
    if isinstance(image, (str, os.PathLike)):
        return not stands_for_several(os.fspath(image))
    several = each_image(image)
    return isinstance(several, list) and len(several) == 1 and several[0] is image


def _scored(adapter: Adapter, image: Image, bgr: bool) -> Scored:
    prediction = adapter(image, bgr=bgr)
    return [{"score": score, "label": label} for label, score in prediction.top(len(prediction.classes))]


def pipeline(
    task: str = TASK,
    model: Any = None,
    *,
    tokenizer: Any = None,
    image_processor: Any = None,
    device: Any = None,
    dtype: Any = None,
    **options: Any,
) -> ZeroShotPipeline:
    """A zero-shot image classifier that is called as transformers' own, and adapts while it answers.

    Scores are probabilities over the labels, calibrated without labels, for every family; transformers gives each label
    of a SigLIP a probability of its own. With `method="zeroshot", R=1` the scores of a CLIP are transformers'.

    Args:
        task: `zero-shot-image-classification`.
        model: Whatever `lessmore.load` takes.
        tokenizer: As for `load`.
        image_processor: The model's preprocessing, as `load` takes it.
        device: As for `load`; a number is that of a GPU, and -1 the CPU.
        dtype: As for `load`.
        **options: Further arguments of `adapt`, such as `preset` or `R`.

    Raises:
        ConfigError: The task is another, or an option cannot be used.
        ModelError: The model cannot be read.

    Examples:
        >>> import lessmore
        >>> from PIL import Image
        >>> classify = lessmore.pipeline("zero-shot-image-classification", model="tiny", cache=False)
        >>> answer = classify(Image.new("RGB", (32, 32), "red"), candidate_labels=["red circle", "blue square"])
        >>> [one["label"] for one in answer], sorted(answer[0])
        (['red circle', 'blue square'], ['label', 'score'])
    """
    if task != TASK:
        raise ConfigError(unknown("task", task, [TASK]))
    if model is None:
        raise ConfigError("a pipeline needs a model; give model= a name, a folder or a model object")
    if isinstance(device, int) and not isinstance(device, bool):
        device = "cpu" if device < 0 else f"cuda:{device}"
    return ZeroShotPipeline(load(model, tokenizer, image_processor, device=device, dtype=dtype), **options)
