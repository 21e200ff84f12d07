"""The object people hold: a model, a class list and a stream, adapted one image at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from typing import Any, Literal, NoReturn, overload

import torch
from torch import Tensor

from lessmore.config import Preset, PresetName
from lessmore.core.class_list import ClassChange
from lessmore.core.condense.registry import ReducerName
from lessmore.data.find import each_image
from lessmore.engines import EngineName, check_engine
from lessmore.engines.answered import Answered, Failure
from lessmore.engines.answers import Answerer, Health
from lessmore.engines.calibration import Calibration, calibration_for
from lessmore.engines.precision import Precision
from lessmore.engines.stream_file import read_stream, stream_identity, write_stream
from lessmore.engines.unknown_gate import NOMINAL, UnknownGate, UnknownRule, checked_rule, known_threshold
from lessmore.errors import ConfigError, ImageError
from lessmore.methods import FromViews, MethodName, Setup
from lessmore.methods.resolve import resolve
from lessmore.models.class_list import ClassList, ClassNames, class_list
from lessmore.models.load import load
from lessmore.models.to_pixels import Image, Images, to_pixels, to_views
from lessmore.prediction import Prediction, prediction_of
from lessmore.prompts import Templates, template_texts


class Adapter:
    """Classifies a stream of images; make one with `lessmore.adapt`.

    Threads may share an adapter: they wait for one another, and every image is one step of the same stream. For
    independent streams take a `fork` each.

    Examples:
        >>> import lessmore
        >>> from PIL import Image
        >>> adapter = lessmore.adapt("tiny", ["red circle", "blue square"], cache=False)
        >>> images = [Image.new("RGB", (32, 32), colour) for colour in ("red", "blue", "red")]
        >>> [prediction.label for prediction in adapter.stream(images)]
        ['red circle', 'blue square', 'red circle']
        >>> adapter.save("stream.safetensors")
        >>> adapter.reset()
        >>> adapter.restore("stream.safetensors")
        >>> other = adapter.fork()
        >>> other(images[0]).label, other.health().seen, adapter.health().seen
        ('red circle', 4, 3)
    """

    def __init__(
        self,
        classes: ClassList,
        setup: Setup,
        method: str,
        seed: int = 0,
        engine: str = "auto",
        unknown: UnknownRule = "off",
    ) -> None:
        """Use `lessmore.adapt` instead, which looks everything up.

        Args:
            classes: The class list, with its model.
            setup: What the method is built from.
            method: Name of the method.
            seed: Seed of random views, where the method looks at some.
            engine: Name of the engine.
            unknown: How unknown images are told.
        """
        self.vlm = classes.vlm
        self.method_name = method
        self.preset: Preset = setup.preset
        self._classes, self._seed, self._setup = classes, seed, setup
        self._answerer = Answerer(method, setup, engine, unknown=unknown)

    @property
    def classes(self) -> list[str]:
        """The class list; `add_classes`, `remove_classes` and `rename` change it."""
        return list(self._classes.names)

    @property
    def groups(self) -> list[str]:
        """The group of every class; empty where the class list has none."""
        return list(self._classes.groups)

    def add_classes(self, classes: ClassNames) -> None:
        """Append classes to the list. What was learned stays; a new class starts as unseen.

        Args:
            classes: Names, or groups of names where the class list has groups.

        Raises:
            ConfigError: A name cannot be used, or the method cannot follow a class list. Then nothing has changed.
        """
        self._change_classes(lambda own: own.added(classes))

    def remove_classes(self, classes: Iterable[str]) -> None:
        """Remove classes from the list. What was learned about the others stays, and so does their order.

        Raises:
            ConfigError: A name is not in the list, none would be left, or the method cannot follow a class list.
        """
        self._change_classes(lambda own: own.removed(classes))

    def rename(self, old: str | Mapping[str, str], new: str | None = None) -> None:
        """Give a class another name, or several by a mapping from old to new ones.

        Prompts and embeddings are those of the new name; what was learned of the class's images stays.

        Args:
            old: The present name, or a mapping from present to new names.
            new: The new name; None with a mapping.

        Raises:
            ConfigError: A name is not in the list or cannot be used, or the method cannot follow a class list.
        """
        if isinstance(old, str) == (new is None):
            raise ConfigError("rename takes an old and a new name, or one mapping from old to new names")
        names = {old: str(new)} if isinstance(old, str) else old
        self._change_classes(lambda own: own.renamed(names))

    def _change_classes(self, changed: Callable[[ClassList], tuple[ClassList, ClassChange]]) -> None:
        with self._answerer.turns:  # else two threads could start from the same list
            classes, change = changed(self._classes)
            setup = replace(self._setup, text=classes.text, classes=classes.names, groups=classes.groups)
            self._answerer.change_classes(setup, change)
            self._classes, self._setup = classes, setup

    @property
    def engine(self) -> str:
        """The engine that answers, never `auto`."""
        return self._answerer.engine

    def __call__(self, image: Image, trace: bool = False, track: str | None = None, *, bgr: bool = False) -> Prediction:
        """Classify one image and adapt.

        Args:
            image: A path, `file:` URL, bytes, PIL image, RGB array `[H, W, 3]`, or tensor: uint8 `[3, H, W]` as an
                image, float `[3, S, S]` as preprocessed pixels. A folder or pattern may stand for it.
            trace: Whether to say where every patch went.
            track: A name for the object that this is a frame of. The answer is then that of all its frames so far, and
                only the first of them adapts the stream.
            bgr: Whether the colours of arrays and uint8 tensors come as blue, green, red, as OpenCV has them.

        Raises:
            ImageError: The image cannot be read.
            NonFiniteError: The model itself answers with NaN or infinity.
        """
        pixels = self.try_pixels(image, bgr)
        if isinstance(pixels, ImageError):
            self._answerer.refuse()
            raise pixels
        return self.prediction(self._answerer.predict(pixels, track), trace)

    @overload
    def stream(
        self, images: Images, on_error: Literal["raise"] = "raise", trace: bool = False, *, bgr: bool = False
    ) -> Iterator[Prediction]: ...
    @overload
    def stream(
        self, images: Images, on_error: Literal["yield"], trace: bool = False, *, bgr: bool = False
    ) -> Iterator[Prediction | Failure]: ...
    def stream(
        self, images: Images, on_error: Literal["raise", "yield"] = "raise", trace: bool = False, *, bgr: bool = False
    ) -> Iterator[Prediction | Failure]:
        """Predictions in the order of `images`.

        The state holds exactly the images whose predictions were given, on every engine, wherever you stop.

        Args:
            images: Images as `__call__` takes them, one answer each; or one folder, pattern such as `photos/*.jpg`,
                path or `file:` URL, whose images come in sorted order; or `hf:NAME@SPLIT`, a Hugging Face data set read
                row by row.
            on_error: `raise` ends at the first image without an answer; `yield` gives its error in its place and goes
                on.
            trace: Whether to say where every patch went.
            bgr: As for `__call__`.

        Raises:
            ConfigError: A folder or pattern stands for no image, or `on_error` is unknown.
        """
        if on_error not in ("raise", "yield"):
            raise ConfigError(f"on_error must be 'raise' or 'yield', not {on_error!r}")
        return self._predictions(map(self.try_pixels, each_image(images), repeat(bgr)), on_error == "raise", trace)

    def _predictions(
        self, pixels: Iterable[Tensor | ImageError], stop: bool, trace: bool
    ) -> Iterator[Prediction | Failure]:
        for answer in self._answerer.stream(pixels):
            if isinstance(answer, Answered):
                yield self.prediction(answer, trace)
            elif stop:
                raise answer
            else:
                yield answer

    def reset(self) -> None:
        """Forget the stream: start again with an empty reservoir and counts of zero."""
        self._answerer.reset()

    def fork(self) -> Adapter:
        """An independent adapter on the same model that goes on from the same state."""
        other = Adapter.__new__(Adapter)
        with self._answerer.turns:
            other.__dict__.update(self.__dict__)
            other._answerer = self._answerer.fork()
        return other

    def __copy__(self) -> Adapter:
        return self.fork()

    def __deepcopy__(self, memo: dict[int, Any]) -> Adapter:
        return self.fork()

    def __reduce__(self) -> NoReturn:
        raise TypeError("an Adapter cannot be pickled; use save() and restore(), or make one in every process")

    def calibrate_unknown(self, known_images: Images, false_alarms: float = NOMINAL) -> float:
        """Set the threshold by images that are known to show one of the classes; the stream stays as it is.

        Args:
            known_images: Images like those to come, at least 1 / `false_alarms` less 1 of them. No labels are needed.
            false_alarms: Share of the known images that may be called unknown.

        Returns:
            The threshold, which holds until it is set again; states that are saved carry it.

        Raises:
            ConfigError: The adapter was not made with `unknown="auto"`, or there are too few images.
            ImageError: An image cannot be read.
        """
        if self._answerer.gate.rule != "auto":
            raise ConfigError("calibrate_unknown replaces the threshold of unknown='auto'; make the adapter with that")
        trial = self.fork()
        trial._answerer.gate = UnknownGate(1e9)  # lets in all of them
        scores = [prediction.unknown_score for prediction in trial.stream(known_images)]
        threshold = known_threshold([score for score in scores if score is not None], false_alarms)
        with self._answerer.turns:
            self._answerer.gate.calibrate(threshold)
        return threshold

    def health(self) -> Health:
        """Counts since the start or the last reset, and how the reservoir and the stream mean stand."""
        return self._answerer.health()

    def save(self, path: str | Path) -> None:
        """Write the state as one safetensors file, atomically.

        Args:
            path: The file to write; one that exists is replaced.

        Raises:
            StateError: The file cannot be written.
        """
        write_stream(Path(path), self._answerer, self.identity)

    def restore(self, path: str | Path) -> None:
        """Continue from a file written by `save`. If the file is refused, the adapter stays as it is.

        Args:
            path: The file.

        Raises:
            StateError: The file is damaged, or belongs to another model, class list, method or setting.
        """
        read_stream(Path(path), self._answerer, self.identity)

    @property
    def answerer(self) -> Answerer:
        """The answer path of this stream; for a server, which decodes, encodes and journals on its own."""
        return self._answerer

    def pixels(self, image: Image, bgr: bool = False) -> Tensor:
        """What the method looks at, `[1, 3, H, W]` or views `[V, 3, H, W]`; the stream stays as it is.

        Args:
            image: As `__call__` takes it.
            bgr: As for `__call__`.

        Raises:
            ImageError: The image cannot be read.
        """
        method = self._answerer.method
        if isinstance(method, FromViews):
            return to_views(image, self.vlm, method.views, self._seed, bgr)
        return to_pixels(image, self.vlm, bgr)

    def try_pixels(self, image: Image, bgr: bool = False) -> Tensor | ImageError:
        """The same, or why it cannot be had.

        Args:
            image: As `__call__` takes it.
            bgr: As for `__call__`.
        """
        try:
            return self.pixels(image, bgr)
        except ImageError as error:
            return error

    def prediction(self, answered: Answered, trace: bool = False) -> Prediction:
        """An answer of the `answerer` as the prediction that people get.

        Args:
            answered: The answer.
            trace: Whether to say where every patch went.
        """
        return prediction_of(answered, trace)

    def identity(self) -> dict[str, Any]:
        """What a saved state must share with this adapter, in values that JSON keeps as they are."""
        return stream_identity(self._classes, self.method_name, self._setup)


def adapt(
    model: Any,
    classes: ClassNames,
    templates: Templates = "photo",
    method: MethodName = "tca",
    preset: PresetName = "default",
    R: float | None = None,
    reducer: ReducerName = "auto",
    engine: EngineName = "auto",
    precision: Precision | None = None,
    calibrate: Calibration = None,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    seed: int = 0,
    unknown: UnknownRule = "off",
    tokenizer: Any = None,
    preprocess: Any = None,
    cache: bool | str | Path = True,
    stream: str | None = None,
    **options: Any,
) -> Adapter:
    """An `Adapter` for a model and a class list.

    Args:
        model: Whatever `lessmore.load` takes.
        classes: Class names; predictions carry them unchanged, prompts say `car_side` as "car side". A mapping from
            groups to names, or pairs of a group and names, gives groups, and predictions then answer on both levels.
        templates: A named set of prompt templates, `family` for the set that models of this family are published with,
            or strings with `{}`.
        method: One of `list_methods()`.
        preset: One of `list_presets()`.
        R: Kept fraction of the tokens; None means the preset's, 0.9 for `default`.
        reducer: One of `list_reducers()`; `auto` condenses for `tca` alone.
        engine: One of `list_engines()`; `auto` picks by the model's device and the precision.
        precision: What the engine multiplies in, `float32`, `bfloat16` or `int8`; all that is kept stays in the type
            of the weights. None is that type. `int8` needs engine `openvino`, which `auto` then takes.
        calibrate: For `int8`: a folder of images like those of the stream, or such images.
        device: Where to run, such as `cuda`; `auto` is a GPU where there is one. None leaves the model where it is.
            Your own model stays as it is.
        dtype: Type of the weights, `float32`, `float16` or `bfloat16`; None leaves them as they are.
        seed: Seed of random views, where the method looks at some.
        unknown: Whether images of none of the classes are told from the others and kept out of the memory: `off`,
            `auto` with a threshold that the stream sets without labels, or a threshold for `Prediction.unknown_score`.
        tokenizer: The model's tokenizer, where `load` needs it.
        preprocess: The model's preprocessing, where `load` needs it.
        cache: Whether to keep class embeddings on disk; a path says where.
        stream: What you know of the stream, instead of a preset: `camera` if it shows few classes for a long time each,
            `mixed` if it shows many in no order. None if you know nothing.
        **options: Single fields of the preset, such as `lam=2` or `K=3`, and the method's own, such as `alpha=4` of
            `tda`.

    Raises:
        ConfigError: A name, value or combination cannot be used; the message names the remedy.
        ModelError: The model cannot be read.

    Examples:
        >>> from PIL import Image
        >>> adapter = adapt("tiny", ["red circle", "blue square"], cache=False)
        >>> adapter(Image.new("RGB", (32, 32), "red")).label
        'red circle'
        >>> adapter.health().seen
        1
    """
    check_engine(engine)
    checked_rule(unknown)
    resolve(method, preset, R, reducer, options, stream=stream)  # refuse a wrong name before a large model is read
    vlm = load(model, tokenizer, preprocess, device=device, dtype=dtype)
    chosen = resolve(method, preset, R, reducer, options, vlm.vision.shape, stream)
    known = class_list(vlm, classes, templates, cache)
    more: dict[str, Any] = {"precision": precision, "calibration": calibration_for(precision, calibrate, vlm)}
    more |= {"templates": template_texts(known.templates), "options": chosen.options, "groups": known.groups}
    setup = Setup(vlm.vision, known.text, vlm.logit_scale, chosen.preset, vlm, known.names, **more)
    return Adapter(known, setup, method, seed, engine, unknown)
