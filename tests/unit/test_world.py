"""The embedded world: reproducible, rightly labelled, and honestly shifted."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from lessmore.assets import MODELS, model_folder, shifts, world
from lessmore.assets.words import CONTEXT, END, PAD, START, TEMPLATES, Words
from lessmore.errors import ConfigError, LessmoreError, ModelError


def _of(shape: int, colour: int, pattern: int, n: int = 8, seed: int = 5) -> world.Scene:
    return world.world_sample(n, seed, [(shape, colour, pattern)])


# --- reproducibility


def test_same_seed_gives_the_same_pixels_and_another_seed_others() -> None:
    first, second, other = (world.draw_scene(world.world_sample(6, seed)) for seed in (3, 3, 4))
    assert torch.equal(first[0], second[0]) and torch.equal(first[1], second[1])
    assert not torch.equal(first[0], other[0])


def test_a_scene_does_not_depend_on_how_many_are_sampled() -> None:
    few, many = world.world_sample(5, 11), world.world_sample(50, 11)
    for name in ("index", "labels", "seed", "dice"):
        assert torch.equal(getattr(few, name), getattr(many, name)[:5])


@pytest.mark.parametrize("kind", ["clean", *shifts.KINDS])
def test_an_image_does_not_depend_on_its_batch(kind: str) -> None:
    scene = world.world_sample(9, 12)
    together, masks = shifts.draw_shifted(scene, kind, 3)
    for i in range(len(scene)):
        alone, mask = shifts.draw_shifted(scene[i : i + 1], kind, 3)
        torch.testing.assert_close(alone[0], together[i], atol=1e-6, rtol=0)
        assert torch.equal(mask[0], masks[i])


def test_the_global_random_state_is_left_alone() -> None:
    before = torch.get_rng_state()
    for kind in ("clean", *shifts.KINDS):
        shifts.draw_shifted(world.world_sample(2, 1), kind, 2)
    world.test_classes()
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("kind", ["clean", *shifts.KINDS])
def test_both_devices_draw_the_same(kind: str) -> None:
    scene = world.world_sample(64, 13)
    here, there = (shifts.draw_shifted(scene, kind, 3, device)[0].cpu() for device in ("cpu", "cuda"))
    assert ((here - there).abs() > 1e-3).float().mean() < 1e-3  # a pixel on an edge may fall to the other side


# --- images and masks


def test_images_are_in_range_and_of_one_shape() -> None:
    images, masks = world.draw_scene(world.world_sample(32, 2))
    assert images.shape == (32, 3, world.SIZE, world.SIZE) and images.dtype == torch.float32
    assert masks.shape == (32, world.SIZE, world.SIZE) and masks.dtype == torch.bool
    assert images.min() >= 0 and images.max() <= 1


@pytest.mark.parametrize("shape", range(len(world.SHAPES)), ids=world.SHAPES)
def test_every_shape_covers_a_fair_part_of_the_image_and_lies_within_it(shape: int) -> None:
    _, masks = world.draw_scene(_of(shape, 0, 0, n=12))
    share = masks.float().mean((1, 2))
    assert share.min() > 0.012 and share.max() < 0.3
    border = torch.ones(world.SIZE, world.SIZE, dtype=torch.bool)
    border[1:-1, 1:-1] = False
    assert (masks & border).sum() / masks.sum() < 0.02


@pytest.mark.parametrize("colour", range(len(world.COLOURS)), ids=world.COLOURS)
def test_the_mask_is_where_the_object_is_painted(colour: int) -> None:
    """Two plain objects of other colours in the same scene differ inside the mask, and nowhere else."""
    scene = _of(0, colour, 0)
    other = world.Scene(scene.index, (scene.labels + torch.tensor([0, 1, 0])) % 10, scene.seed, scene.dice)
    (a, mask), (b, _) = world.draw_scene(scene), world.draw_scene(other)
    differs = (a - b).abs().amax(1) > 0.02
    assert differs[mask].float().mean() > 0.85  # clutter before the object hides a little of it
    rim = torch.nn.functional.max_pool2d(mask[:, None].float(), 3, 1, 1)[:, 0] > 0
    assert not differs[~rim].any()


def test_shapes_and_patterns_can_be_told_apart() -> None:
    """With everything else equal, any two shapes, and any two patterns, differ in many pixels."""
    base = _of(0, 1, 0, n=1)

    def draw(labels: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        rows = torch.zeros(len(labels), dtype=torch.int64)
        return world.draw_scene(world.Scene(base.index[rows], torch.tensor(labels), base.seed[rows], base.dice[rows]))

    masks = draw([[s, 1, 0] for s in range(len(world.SHAPES))])[1].flatten(1).float()
    common = masks @ masks.T
    union = masks.sum(1)[:, None] + masks.sum(1) - common
    overlap = (common / union).fill_diagonal_(0)
    assert overlap.max() < 0.95  # the hexagon is nearest to the circle
    images = draw([[0, 1, p] for p in range(len(world.PATTERNS))])[0].flatten(1)
    assert (torch.cdist(images, images, p=1) / images.shape[1] + torch.eye(len(images))).min() > 0.003


# --- labels, captions, classes


def test_captions_follow_the_labels() -> None:
    red_star = (world.SHAPES.index("star"), world.COLOURS.index("red"), world.PATTERNS.index("striped"))
    assert world.caption(*red_star) == "a red striped star"
    assert world.caption(red_star[0]) == "a star"
    assert world.caption(None, world.COLOURS.index("orange")) == "an orange object"
    scene = world.world_sample(20, 6)
    for text, (shape, colour, pattern) in zip(scene.captions(), scene.labels.tolist(), strict=True):
        expected = [world.COLOURS[colour], world.PATTERNS[pattern], world.SHAPES[shape]]
        assert text.split()[1:] == expected


def test_names_are_unique_and_counts_are_as_stated() -> None:
    assert (len(world.SHAPES), len(world.COLOURS), len(world.PATTERNS)) == (24, 10, 8)
    assert len(set(world.world_class_names(world.combinations()))) == 1920


def test_held_out_combinations_are_a_fifth_and_never_sampled_in_training() -> None:
    held_out, trained = set(world.held_out_combinations()), set(world.trained_combinations())
    assert len(held_out) == 384 and len(trained) == 1536 and not held_out & trained
    drawn = {tuple(row) for row in world.world_sample(20_000, world.TRAINING_SEEDS).labels.tolist()}
    assert drawn == trained
    for attribute, names in enumerate((world.SHAPES, world.COLOURS, world.PATTERNS)):
        assert {c[attribute] for c in trained} == set(range(len(names)))


def test_test_classes_are_half_unseen_and_paired() -> None:
    classes = world.test_classes()
    held_out = set(world.held_out_combinations())
    assert len(set(classes)) == 48 and classes == world.test_classes()
    assert [c in held_out for c in classes] == [True, False] * 24
    for first, second in zip(classes[::2], classes[1::2], strict=True):
        assert sum(a != b for a, b in zip(first, second, strict=True)) == 1
    with pytest.raises(ConfigError):
        world.test_classes(7)


def test_index_is_the_label_among_the_given_classes() -> None:
    classes = world.test_classes()
    scene = world.world_sample(4800, 8, classes)
    assert [classes[i] for i in scene.index.tolist()] == [tuple(row) for row in scene.labels.tolist()]
    assert min(Counter(scene.index.tolist()).values()) > 50


# --- shifts


@pytest.mark.parametrize("kind", shifts.KINDS)
def test_shifts_grow_with_severity_and_stay_in_range(kind: str) -> None:
    scene = world.world_sample(16, 9)
    clean, _ = world.draw_scene(scene)
    distances = []
    for severity in range(1, 6):
        images, _ = shifts.draw_shifted(scene, kind, severity)
        assert images.min() >= 0 and images.max() <= 1
        distances.append((images - clean).abs().mean().item())
    assert distances[0] > 0.002 and all(a < b for a, b in pairwise(distances))


def test_only_the_background_shift_spares_the_object() -> None:
    scene = world.world_sample(8, 10)
    clean, masks = world.draw_scene(scene)
    images, same = shifts.draw_shifted(scene, "background", 5)
    assert torch.equal(masks, same)
    core = torch.nn.functional.max_pool2d((~masks)[:, None].float(), 3, 1, 1)[:, 0] == 0
    changed = (images - clean).abs().amax(1)[core] > 1e-6
    assert changed.float().mean() < 0.01  # thin tips are never fully covered


def test_unknown_shifts_and_severities_are_refused() -> None:
    images, seeds = torch.rand(1, 3, 64, 64), torch.tensor([1])
    for kind, severity in (("fog", 1), ("noise", 0), ("noise", 6), ("background", 1)):
        with pytest.raises(ConfigError):
            shifts.shift(images, kind, severity, seeds)


# --- words and folders


def test_words_round_trip_and_frame() -> None:
    words = Words()
    texts = [t.format(n, a=f"a {n}") for t in TEMPLATES for n in world.world_class_names(world.test_classes())]
    tokens = words(texts)
    assert tokens.shape == (len(texts), CONTEXT) and tokens.dtype == torch.int64
    assert [t.replace(".", " .") for t in texts] == words.decode(tokens)
    assert (tokens == words.ids["<unk>"]).sum() == 0
    assert (tokens[:, 0] == words.ids[START]).all() and (tokens == words.ids[END]).sum() == len(texts)
    assert words.ids[END] == len(words) - 1 and words.ids[PAD] == 0


def test_long_and_strange_texts_are_cut_and_marked() -> None:
    words = Words()
    tokens = words(["star " * 40, "", "a zebra"])
    assert tokens[0, -1] == words.ids[END]
    assert tokens[1].tolist()[:3] == [words.ids[START], words.ids[END], words.ids[PAD]]
    assert words.decode(tokens)[2] == "a <unk>"


def test_words_load_from_a_model_folder(tmp_path: Path) -> None:
    words = Words()
    for name, content in words.tokenizer_files().items():
        (tmp_path / name).write_text(json.dumps(content), encoding="utf-8")
    assert Words.load(tmp_path).ids == words.ids
    with pytest.raises(ModelError):
        Words.load(tmp_path / "nowhere")


def test_transformers_reads_the_same_numbers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    words = Words()
    for name, content in words.tokenizer_files().items():
        (tmp_path / name).write_text(json.dumps(content), encoding="utf-8")
    (tmp_path / "config.json").write_text('{"model_type": "clip"}', encoding="utf-8")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    texts = ["An orange striped STAR, on a zebra.", "a star " * 20, "", *world.world_class_names(world.test_classes())]
    encoded = theirs(texts, padding="max_length", truncation=True, return_tensors="pt")
    assert torch.equal(encoded["input_ids"], words(texts))


def test_model_folders_by_name() -> None:
    assert set(MODELS) == {"tiny", "tiny-siglip"}
    with pytest.raises(LessmoreError, match="tiny"):
        model_folder("tinny")
