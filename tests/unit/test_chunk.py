"""Exact batched streaming, piece by piece; that its answers are `eager`'s is checked in tests/property."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lessmore.config import Preset, preset
from lessmore.core.encoder import Encoded, PrefixState, begin, encode, resume
from lessmore.core.reservoir import eviction_scores
from lessmore.core.scoring import AnchorProvider
from lessmore.engines.admission import Arrivals, ClassEntries, admit_all, leaving_slot
from lessmore.engines.batching import fitting, padded
from lessmore.engines.capture import rerun
from lessmore.engines.chunk import LEAST, Chunk
from lessmore.engines.chunk_replay import history
from lessmore.methods import Setup
from lessmore.methods.tca import TCA
from tests.random_towers import CLASS, make_images, make_text, make_vit


def setup(name: str = "paper", C: int = 3, **options: object) -> Setup:
    vit = make_vit(CLASS)
    chosen: Preset = preset(name, **{"layers": (1, 2, 3), "M": 2, **options})
    return Setup(vit, make_text(C), 6.0, chosen)


def varied(name: str, C: int, **options: object) -> tuple[Setup, Tensor]:
    """A set-up and a stream in which every class is predicted: texts are the features of some of the images."""
    base, images = setup(name, C, **options), make_images(80)
    features = encode(base.vision, images).feature
    text = F.normalize(features[:C] - features.mean(dim=0), dim=-1)
    return Setup(base.vision, text, 20.0, base.preset), images


def assert_as_eager(made: Setup, engine: Chunk, images: Tensor) -> None:
    eager = TCA(made)
    for image, answer in zip(images, engine.predict_many(images), strict=True):
        torch.testing.assert_close(eager.predict(image[None]).scores, answer.scores, rtol=0, atol=1e-10)
    for name, value in eager.state().items():
        torch.testing.assert_close(engine.state()[name], value, rtol=0, atol=1e-10)


@pytest.mark.parametrize("delay", [0, 1])
def test_history_is_what_was_put_last(delay: int) -> None:
    place, arrived = torch.tensor([1, 1, 0, 2, 1]), torch.tensor([True, True, False, True, True])
    held, expected = [0, 1, 2], []
    for t in range(5):
        before = list(held)
        if arrived[t]:
            held[place[t]] = 3 + t
        expected.append(list(before if delay else held))
    assert history(3, place, arrived, delay).tolist() == expected


@pytest.mark.parametrize("strategy", ["fifo", "uncertainty", "similarity", "diversity"])
@pytest.mark.parametrize("M", [1, 2, 4])
def test_the_walk_evicts_as_the_reservoir_does(strategy: str, M: int) -> None:
    generator = torch.Generator().manual_seed(M)
    for _ in range(30):
        keys = torch.rand(M + 1, generator=generator, dtype=torch.float64)
        ids = torch.cat([torch.tensor([50]), torch.randperm(40, generator=generator)[:M]])
        tokens = torch.randn(M + 1, 3, 6, generator=generator, dtype=torch.float64)
        unit = F.normalize(tokens.mean(dim=1), dim=-1)
        cosine = (unit @ unit.T).fill_diagonal_(0).tolist()
        entries = ClassEntries(keys[1:].tolist(), ids[1:].tolist(), [row[1:] for row in cosine[1:]], list(range(M)))
        expected = int(eviction_scores(strategy, keys, ids, tokens).argmax()) - 1  # type: ignore[arg-type]
        assert leaving_slot(strategy, entries, float(keys[0]), 50, cosine[0][1:]) == expected  # type: ignore[arg-type]


def test_on_ties_the_newcomer_goes() -> None:
    assert leaving_slot("uncertainty", ClassEntries([0.5, 0.5], [0, 1], [], []), 0.5, 2, []) == -1


def test_a_walk_says_who_is_stored_and_when_all_classes_have_two() -> None:
    classes = [ClassEntries(), ClassEntries()]
    images = Arrivals([0, 1, 0, 0, 1, 1], [0.0] * 6, [True, True, True, False, True, True], None)
    stored, all_ready = admit_all(classes, 2, "fifo", 0, images)
    assert [(s.image, s.label, s.slot) for s in stored] == [(0, 0, 0), (1, 1, 0), (2, 0, 1), (4, 1, 1), (5, 1, 0)]
    assert stored[-1].origins == (2 + 5, 2 + 4)
    assert all_ready == 5
    assert [entries.ids for entries in classes] == [[0, 2], [5, 4]]
    assert admit_all(classes, 2, "fifo", 6, Arrivals([], [], [], None)).all_ready == 0


@pytest.mark.parametrize("name", ["labelfree", "paper", "released"])
def test_recorded_parts_answer_alike(name: str) -> None:
    made, images = varied(name, 3)
    theirs = images.clone()
    plain, recorded = Chunk(made, (4, 16, 64)), Chunk(made, (4, 16, 64), record=rerun)
    for _ in range(2):  # the second time over from an empty reservoir, with everything recorded already
        for a, b in zip(plain.predict_many(images), recorded.predict_many(images), strict=True):
            assert torch.equal(a.scores, b.scores) and torch.equal(a.logits, b.logits)
            assert all(torch.equal(s.target, t.target) for s, t in zip(a.steps, b.steps, strict=True))
        assert all(torch.equal(plain.state()[k], v) for k, v in recorded.state().items())
        plain.reset()
        recorded.reset()
    assert plain.work == recorded.work
    assert torch.equal(images, theirs)  # places for arguments are the recording's own


def test_answers_stay_together_until_asked_for() -> None:
    made, images = varied("labelfree", 3)
    first, second = Chunk(made, (8,)).predict_chunks([images[:11]])
    assert (len(first), len(second)) == (8, 3)
    assert second.batch.scores.shape == (8, 3)  # filled up
    assert torch.equal(torch.stack([answer.scores for answer in second]), second.batch.scores[:3])
    assert torch.equal(first[-1].scores, first.batch.scores[7])


@pytest.mark.parametrize("options", [{"R": 1.0}, {"rows": "class", "anchor_kv": False}, {"layers": (0,)}])
def test_without_anchors_nothing_is_encoded_again(options: dict[str, object]) -> None:
    made = setup("paper", **options)
    engine = Chunk(made, (8,))
    assert_as_eager(made, engine, make_images(20))
    assert (engine.work.images, engine.work.again, engine.work.walks) == (20, 0, 3)


@pytest.mark.parametrize("debias", ["off", "careful"])
def test_the_switch_of_released_is_found_within_a_chunk(debias: str) -> None:
    made, images = varied("released", 3, debias=debias)
    engine = Chunk(made, (64,))
    assert_as_eager(made, engine, images)
    assert engine.work.again > 0
    assert engine.work.walks < 12  # far fewer rounds than images


def test_the_blocks_before_the_first_condensing_one_run_once() -> None:
    made = setup("paper", layers=(2, 3))
    vit, config = made.vision, made.preset.condensation
    seen = {"begun": 0, "resumed": 0}

    def prefix(pixels: Tensor) -> PrefixState:
        seen["begun"] += len(pixels)
        begun = begin(vit, pixels, config)
        assert len(begun.summaries) == 2
        return begun

    def rest(begun: PrefixState, anchors: AnchorProvider | None) -> Encoded:
        seen["resumed"] += len(begun.x)
        return resume(vit, begun, config, anchors)

    engine = Chunk(made, tuple(range(1, 17)), prefix, rest)
    assert_as_eager(made, engine, make_images(32))
    assert seen == {"begun": 32, "resumed": 32 + engine.work.again}
    assert engine.work.again > 0


def test_batches_are_filled_up_to_the_next_size() -> None:
    assert [fitting((2, 4, 8), n) for n in (1, 2, 3, 8, 9)] == [2, 2, 4, 8, 8]
    assert padded([3, 5, 6], (2, 4)) == [3, 5, 6, 6]


def test_the_chunk_size_follows_the_share_of_repeats() -> None:
    engine = Chunk(setup(), (64, 128, 256))
    for share, size in (
        (1.5, 128),
        (0.7, 128),
        (2.0, 64),
        (3.0, LEAST),
        (3.0, LEAST),
        (0.1, 64),
        (0.0, 128),
        (0.0, 256),
    ):
        engine._adjust(share)
        assert engine.size == size
    engine._adjust(0.0)
    assert engine.size == 256


def test_state_goes_from_one_engine_to_another_and_back() -> None:
    made, images = varied("paper", 4, debias="bold")
    whole, eager, engine = TCA(made), TCA(made), Chunk(made, (8,))
    expected = [whole.predict(image[None]).scores for image in images[:45]]
    got = [eager.predict(image[None]).scores for image in images[:15]]
    engine.restore(eager.state())
    got += [answer.scores for answer in engine.predict_many(images[15:30])]
    eager.restore(engine.state())
    got += [eager.predict(image[None]).scores for image in images[30:45]]
    torch.testing.assert_close(torch.stack(got), torch.stack(expected), rtol=0, atol=1e-10)
    engine.reset()
    assert not engine.slots().any()
    assert_as_eager(made, engine, images[:10])


@pytest.mark.parametrize("name", ["labelfree", "paper"])
def test_answers_come_with_the_state_after_their_images(name: str) -> None:
    made, images = varied(name, 3)
    engine, eager = Chunk(made, (8,)), TCA(made)
    answers = engine.predict_chunks(images[:24].split(8))
    assert len(next(answers)) == 8
    for image in images[:8]:
        eager.predict(image[None])
    assert torch.equal(engine.state()["ids"], eager.stream.reservoir.ids)
    # Something else happens to the stream while the next chunk is under way: it is answered against the state it finds.
    for image, answer in zip(images[60:63], engine.predict_many(images[60:63]), strict=True):
        torch.testing.assert_close(eager.predict(image[None]).scores, answer.scores, rtol=0, atol=1e-10)
    for image, answer in zip(images[8:16], next(answers), strict=True):
        torch.testing.assert_close(eager.predict(image[None]).scores, answer.scores, rtol=0, atol=1e-10)


def test_no_images_no_answers() -> None:
    engine = Chunk(setup(), (8,))
    assert engine.predict_many(make_images(3)[:0]) == []
    assert engine.work.walks == 0
