"""The embedded world: 24 shapes × 10 colours × 8 patterns on textured ground among clutter, with captions and masks.

A `Scene` is a table of random numbers from one seeded CPU generator. `draw_scene` turns it into pixels with plain
tensor code, on any device. An image does not depend on the others in its batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lessmore.assets import fields, shapes
from lessmore.errors import ConfigError

SIZE = 64
"""Images are SIZE × SIZE pixels."""

# Hue, saturation, value.
_COLOUR_HSV = {
    "red": (0.0, 0.88, 0.85),
    "orange": (0.075, 0.92, 0.97),
    "yellow": (0.155, 0.88, 0.97),
    "green": (0.34, 0.78, 0.62),
    "cyan": (0.5, 0.72, 0.92),
    "blue": (0.62, 0.85, 0.85),
    "purple": (0.77, 0.7, 0.65),
    "pink": (0.91, 0.42, 1.0),
    "brown": (0.06, 0.68, 0.42),
    "white": (0.1, 0.03, 0.98),
}
SHAPES = shapes.SHAPES
COLOURS: tuple[str, ...] = tuple(_COLOUR_HSV)
PATTERNS: tuple[str, ...] = ("plain", "striped", "dotted", "checkered", "ringed", "split", "outlined", "speckled")

Combination = tuple[int, int, int]
"""Numbers of a shape, a colour and a pattern."""

TRAINING_SEEDS = 2**40
"""The first seed that training may use."""

_BEHIND, _BEFORE = 6, 3  # pieces of clutter under and over the object
_CLUTTER_COLUMNS = 9
_COLUMNS = {"pick": 1, "seed": 2, "pose": 5, "surface": 7, "ground": 11, "light": 2}
_WIDTH = sum(_COLUMNS.values()) + _CLUTTER_COLUMNS * (_BEHIND + _BEFORE)
_GROUND_KIND, _UNSEEN_KIND = 0, 1  # columns of "ground" that choose a texture


def combinations() -> list[Combination]:
    """All 1920 combinations, shape-major."""
    grid = torch.cartesian_prod(*(torch.arange(len(names)) for names in (SHAPES, COLOURS, PATTERNS)))
    return [(s, c, p) for s, c, p in grid.tolist()]


def _is_held_out(combination: Combination) -> bool:
    """One residue class of five: each pair of shape and pattern loses exactly two of its ten colours."""
    shape, colour, pattern = combination
    return (shape + 2 * colour + pattern) % 5 == 0


def held_out_combinations() -> list[Combination]:
    """The 20 % of combinations that no model of this package is trained on."""
    return [c for c in combinations() if _is_held_out(c)]


def trained_combinations() -> list[Combination]:
    """The 80 % of combinations that training draws from."""
    return [c for c in combinations() if not _is_held_out(c)]


def test_classes(k: int = 48, seed: int = 0) -> list[Combination]:
    """Classes for evaluation: k/2 unseen combinations, each followed by a trained one that differs in one attribute.

    The attribute cycles through shape, colour and pattern, so that every word of a caption matters.

    Args:
        k: How many; even, at most 768.
        seed: Chooses the combinations.

    Raises:
        ConfigError: `k` is odd or out of range.
    """
    if k % 2 or not 0 < k <= 2 * len(held_out_combinations()):
        raise ConfigError(f"test_classes needs an even k between 2 and 768, not {k}")
    generator = torch.Generator().manual_seed(seed)
    unseen, trained = held_out_combinations(), trained_combinations()
    chosen: list[Combination] = []
    for i, row in enumerate(torch.randperm(len(unseen), generator=generator)[: k // 2].tolist()):
        first = unseen[row]
        near = [c for c in trained if _differs_only_in(i % 3, c, first) and c not in chosen]
        chosen += [first, near[int(torch.randint(len(near), (), generator=generator))]]
    return chosen


def _differs_only_in(attribute: int, a: Combination, b: Combination) -> bool:
    return all((a[i] != b[i]) == (i == attribute) for i in range(3))


def caption(shape: int | None, colour: int | None = None, pattern: int | None = None) -> str:
    """A name with its article, such as `a red striped star`.

    Args:
        shape: Number of the shape; None for just `object`.
        colour: Number of the colour; None leaves it out.
        pattern: Number of the pattern; None leaves it out.
    """
    name = class_name(shape, colour, pattern)
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def class_name(shape: int | None, colour: int | None = None, pattern: int | None = None) -> str:
    """A name without an article, such as `red striped star`, ready for templates such as `a photo of a {}`.

    Args:
        shape: Number of the shape; None for just `object`.
        colour: Number of the colour; None leaves it out.
        pattern: Number of the pattern; None leaves it out.
    """
    words = [names[i] for names, i in ((COLOURS, colour), (PATTERNS, pattern)) if i is not None]
    return " ".join([*words, "object" if shape is None else SHAPES[shape]])


def world_class_names(classes: list[Combination]) -> list[str]:
    """Names of several combinations, in their order."""
    return [class_name(*c) for c in classes]


@dataclass(frozen=True)
class Scene:
    """What B images show, on the CPU; index it by a slice or an index tensor for fewer."""

    index: Tensor
    """[B] int64, the row of the combination in the list that was sampled from: the label where that list is classes."""
    labels: Tensor
    """[B, 3] int64, numbers of shape, colour and pattern."""
    seed: Tensor
    """[B] int64, from which every noise field of the image follows."""
    dice: Tensor
    """[B, P] float32 uniforms in [0, 1), one for each remaining parameter."""

    def __len__(self) -> int:
        return len(self.seed)

    def __getitem__(self, rows: slice | Tensor) -> Scene:
        return Scene(self.index[rows], self.labels[rows], self.seed[rows], self.dice[rows])

    def captions(self) -> list[str]:
        """The full caption of each image."""
        return [caption(*row) for row in self.labels.tolist()]


def world_sample(n: int, seed: int, combos: list[Combination] | Tensor | None = None) -> Scene:
    """Scenes with combinations drawn evenly; the first m of n scenes are the same for every n.

    Args:
        n: How many scenes.
        seed: Training uses 2⁴⁰ and above, so no model of this package has seen an image of a smaller seed.
        combos: What to draw from, a list or [K, 3] int64; None means the trained combinations.
    """
    table = torch.as_tensor(trained_combinations() if combos is None else combos)
    dice = torch.rand(n, _WIDTH, generator=torch.Generator().manual_seed(seed))
    index = (dice[:, 0].double() * len(table)).long()
    halves = (dice[:, 1:3] * 2**16).long()
    return Scene(index, table[index], halves[:, 0] * 2**16 + halves[:, 1], dice)


def passing(spot: Scene, guest: Scene, progress: float) -> Scene:
    """One object on its way past a spot.

    Args:
        spot: A scene of one image; its ground, clutter and light stay.
        guest: A scene of two images: the object of the first, on its way from its own place to that of the second.
        progress: How far it has come, 0 to 1.
    """
    dice = spot.dice.clone()
    _columns(dice, "surface").copy_(_columns(guest.dice[:1], "surface"))
    there = _columns(guest.dice, "pose")
    _columns(dice, "pose").copy_(torch.lerp(there[:1], there[1:], progress))
    return Scene(guest.index[:1], guest.labels[:1], spot.seed, dice)


def _columns(dice: Tensor, name: str) -> Tensor:
    """The columns [B, k] that belong to one part of the picture."""
    start = 0
    for part, width in _COLUMNS.items():
        if part == name:
            return dice[:, start : start + width]
        start += width
    return dice[:, start:].view(len(dice), -1, _CLUTTER_COLUMNS)


def _between(u: Tensor, low: float, high: float) -> Tensor:
    return low + (high - low) * u


def _image(x: Tensor) -> Tensor:
    """Per-image numbers [B] or colours [B, 3] so that they broadcast over pixels: [B, 1, 1], [B, 3, 1, 1]."""
    return x[..., None, None]


def _rgb(hsv: Tensor) -> Tensor:
    """[B, 3] hue (any real), saturation and value → [B, 3] RGB."""
    hue, saturation, value = hsv.unbind(-1)
    offsets = fields.send(torch.tensor([5.0, 3.0, 1.0]), hsv.device)
    k = torch.remainder(offsets + 6 * hue[:, None], 6)
    ramp = torch.minimum(k, 4 - k).clamp(0, 1)
    return value[:, None] * (1 - saturation[:, None] * ramp)


def _grid(device: torch.device) -> tuple[Tensor, Tensor]:
    """Pixel centres in [-1, 1], x to the right and y up, each [1, SIZE, SIZE]."""
    steps = (torch.arange(SIZE, device=device) + 0.5) * (2 / SIZE) - 1
    return steps.view(1, 1, SIZE).expand(1, SIZE, SIZE), -steps.view(1, SIZE, 1).expand(1, SIZE, SIZE)


def _turn(x: Tensor, y: Tensor, angle: Tensor) -> tuple[Tensor, Tensor]:
    """Coordinates in axes turned by angle [B]."""
    c, s = _image(torch.cos(angle)), _image(torch.sin(angle))
    return c * x + s * y, c * y - s * x


def _blend(under: Tensor, colour: Tensor, cover: Tensor) -> Tensor:
    """Paint colour [B, 3] or [B, 3, S, S] over images [B, 3, S, S] where cover [B, S, S] says."""
    colour = _image(colour) if colour.dim() == 2 else colour
    return torch.lerp(under, colour, cover[:, None])


def _ground_texture(scene: Scene, dice: Tensor, seed: Tensor, unseen: bool) -> Tensor:
    """[B, S, S] in [0, 1]; the kinds are read from the CPU copy, so that nothing waits for the device."""
    u = _columns(dice, "ground")
    x, y = _turn(*_grid(dice.device), 2 * math.pi * u[:, 2])
    scale = _image(_between(u[:, 3], 1.5, 4.0))
    x, y = x * scale + _image(u[:, 4]), y * scale + _image(u[:, 5])
    kinds = fields.UNSEEN if unseen else fields.TRAINED
    pick = _columns(scene.dice, "ground")[:, _UNSEEN_KIND if unseen else _GROUND_KIND]
    return fields.by_kind(kinds, (pick * len(kinds)).long(), x, y, seed)


def _ground(scene: Scene, dice: Tensor, seed: Tensor, unseen: float) -> Tensor:
    """Backgrounds [B, 3, S, S]: muted trained textures, blended with vivid unseen ones by the weight `unseen`."""
    u = _columns(dice, "ground")
    first = torch.stack([u[:, 6], _between(u[:, 7], 0.05, 0.4), _between(u[:, 8], 0.2, 0.65)], -1)
    shift = torch.stack([_between(u[:, 9], -0.12, 0.12), 0 * u[:, 9], _between(u[:, 10], -0.25, 0.25)], -1)
    second = (first + shift).clamp(min=0.03)
    image = _blend(_image(_rgb(first)), _rgb(second), _ground_texture(scene, dice, seed, False))
    if unseen > 0:
        vivid = torch.stack([u[:, 7], _between(u[:, 8], 0.3, 0.85), _between(u[:, 9], 0.3, 0.9)], -1)
        other = torch.stack([u[:, 10], _between(u[:, 6], 0.2, 0.8), 1.15 - vivid[:, 2]], -1)
        strange = _blend(_image(_rgb(vivid)), _rgb(other), _ground_texture(scene, dice, seed, True))
        image = torch.lerp(image, strange, unseen)
    return image + _between(fields.smooth(seed, SIZE, 24, 20), -0.05, 0.05)[:, None]


def _clutter(image: Tensor, u: Tensor) -> Tensor:
    """Paint small blobs and thin lines, parameters [B, pieces, 9], over images [B, 3, S, S]."""
    x, y = _grid(image.device)
    for piece in u.unbind(1):
        line = piece[:, 0] < 0.5
        half = torch.where(line, _between(piece[:, 1], 0.15, 0.4), _between(piece[:, 1], 0.0, 0.06))
        thick = torch.where(line, _between(piece[:, 2], 0.018, 0.035), _between(piece[:, 2], 0.05, 0.11))
        along, across = _turn(
            x - _image(_between(piece[:, 3], -1, 1)), y - _image(_between(piece[:, 4], -1, 1)), math.pi * piece[:, 5]
        )
        along = (along.abs() - _image(half)).clamp(min=0)
        cover = fields.smooth_step(_image(thick) - torch.sqrt(along * along + across * across), SIZE / 2)
        hsv = torch.stack([piece[:, 6], _between(piece[:, 7], 0.2, 0.9), _between(piece[:, 8], 0.2, 0.95)], -1)
        image = _blend(image, _rgb(hsv), cover)
    return image


def _object_grid(dice: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Pixels in object units, x and y [B, S, S], and the object's radius [B] in image units."""
    u = _columns(dice, "pose")
    radius = _between(u[:, 2], 0.26, 0.6)
    reach = 1.02 - radius
    x, y = _grid(dice.device)
    x = x - _image(reach * _between(u[:, 0], -1, 1))
    y = y - _image(reach * _between(u[:, 1], -1, 1))
    x, y = _turn(x, y, math.radians(22) * _between(u[:, 3], -1, 1))
    squeeze = _between(u[:, 4], 0.92, 1.08)
    return x / _image(radius * squeeze), y / _image(radius / squeeze), radius


def _plain(u: Tensor, v: Tensor, inside: Tensor, seed: Tensor) -> Tensor:
    return torch.zeros_like(u)


def _striped(u: Tensor, v: Tensor, inside: Tensor, seed: Tensor) -> Tensor:
    return fields.smooth_step(fields.wave(u), 2.5)


def _dotted(u: Tensor, v: Tensor, inside: Tensor, seed: Tensor) -> Tensor:
    near = torch.sqrt((u - torch.round(u)) ** 2 + (v - torch.round(v)) ** 2)
    return fields.smooth_step(0.3 - near, 8)


def _checkered(u: Tensor, v: Tensor, inside: Tensor, seed: Tensor) -> Tensor:
    return fields.smooth_step(fields.wave(0.8 * u) * fields.wave(0.8 * v), 5)


def _ringed(u: Tensor, v: Tensor, inside: Tensor, seed: Tensor) -> Tensor:
    return fields.smooth_step(fields.wave(torch.sqrt(u * u + v * v)), 2.5)


def _split(u: Tensor, v: Tensor, inside: Tensor, seed: Tensor) -> Tensor:
    return fields.smooth_step(u, 8)


def _outlined(u: Tensor, v: Tensor, inside: Tensor, seed: Tensor) -> Tensor:
    return fields.smooth_step(0.16 - inside, 12)


def _speckled(u: Tensor, v: Tensor, inside: Tensor, seed: Tensor) -> Tensor:
    cell = (torch.floor(4.5 * u).long() + 512) * 1024 + torch.floor(4.5 * v).long() + 512
    return (fields.hash_uniform(seed.view(-1, 1, 1), cell, 30) < 0.33).to(u.dtype)


_PATTERN_FIELDS = (_plain, _striped, _dotted, _checkered, _ringed, _split, _outlined, _speckled)


def _paint(scene: Scene, dice: Tensor, seed: Tensor, x: Tensor, y: Tensor, inside: Tensor) -> Tensor:
    """The object's surface [B, 3, S, S]: its colour, and a pale or dark second one where the pattern calls for it."""
    u = _columns(dice, "surface")
    jitter = _between(u[:, :3], -1, 1) * fields.send(torch.tensor([0.014, 0.08, 0.07]), dice.device)
    named = torch.tensor(list(_COLOUR_HSV.values()))[scene.labels[:, 1]]
    colour = _rgb(fields.send(named, dice.device) + jitter).clamp(0, 1)
    bright = 0.3 * colour[:, 0] + 0.59 * colour[:, 1] + 0.11 * colour[:, 2] > 0.45
    second = torch.lerp(torch.where(bright, 0.06, 0.95)[:, None].expand(-1, 3), colour, 0.15)
    period = _image(_between(u[:, 3], 0.5, 0.62))
    angled = _turn(x, y, 2 * math.pi * u[:, 4])
    field = fields.by_kind(_PATTERN_FIELDS, scene.labels[:, 2], angled[0] / period, angled[1] / period, inside, seed)
    shade = 1 + 0.14 * (_image(_between(u[:, 5], -1, 1)) * x + _image(_between(u[:, 6], -1, 1)) * y)
    return _blend(_image(colour), second, field) * shade[:, None]


def _object(image: Tensor, scene: Scene, dice: Tensor, seed: Tensor) -> tuple[Tensor, Tensor]:
    """Images [B, 3, S, S] with the object and its faint shadow painted over, and the object's coverage [B, S, S]."""
    x, y, radius = _object_grid(dice)
    outside = shapes.distance(fields.send(scene.labels[:, 0], dice.device), torch.stack([x, y], -1))
    pixels = outside * _image(radius) * (SIZE / 2)
    shadow = 0.4 * (1 - pixels / 3).clamp(0, 1)
    cover = fields.smooth_step(-pixels, 1.0)
    surface = _paint(scene, dice, seed, x, y, -outside)
    return _blend(image * (1 - shadow)[:, None], surface, cover), cover


def draw_scene(scene: Scene, device: torch.device | str = "cpu", unseen: float = 0.0) -> tuple[Tensor, Tensor]:
    """The pictures of a scene.

    Args:
        scene: What to draw.
        device: Where to draw.
        unseen: Weight in [0, 1] of background textures that training never shows; everything else stays as it is.

    Returns:
        Images [B, 3, SIZE, SIZE] in [0, 1], and object masks [B, SIZE, SIZE] bool.
    """
    dice, seed = fields.send(scene.dice, device), fields.send(scene.seed, device)
    image = _ground(scene, dice, seed, unseen)
    pieces = _columns(dice, "clutter")
    image = _clutter(image, pieces[:, :_BEHIND])
    image, cover = _object(image, scene, dice, seed)
    image = _clutter(image, pieces[:, _BEHIND:])
    gain, lift = _columns(dice, "light").unbind(1)
    image = image * _image(_between(gain, 0.88, 1.1))[:, None] + _image(_between(lift, -0.03, 0.03))[:, None]
    return image.clamp(0, 1), cover > 0.5
