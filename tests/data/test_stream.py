"""Streams: seeded, complete, as correlated as they say, and independent of everything but what is asked for."""

from __future__ import annotations

import pickle
import random
from collections import Counter
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from lessmore.data.corrupt import MAIN, Corruption, corrupt
from lessmore.data.dataset import Dataset
from lessmore.data.orders import plan_stream
from lessmore.data.stream import Stream, make_stream
from lessmore.errors import ConfigError, ImageError


@dataclass(frozen=True)
class Ramps:
    """Image `index` is a colour gradient of its own."""

    side: int = 40

    def load(self, index: int) -> Image.Image:
        ramp = np.add.outer(np.arange(self.side), np.arange(self.side))[..., None] * [1, 2, 3] + 7 * index
        return Image.fromarray((ramp % 256).astype(np.uint8))


def dataset(counts: tuple[int, ...] = (30, 20, 50), name: str = "ramps", side: int = 40) -> Dataset:
    labels = tuple(c for c, count in enumerate(counts) for _ in range(count))
    ids = tuple(f"{label}/{i:04}.png" for i, label in enumerate(labels))
    return Dataset(name, tuple(f"class {c}" for c in range(len(counts))), ids, labels, Ramps(side))


def indices(stream: Stream) -> list[int]:
    return [visit.index for visit in stream.visits]


ORDERS = ("iid", "sorted", "blocks", "blocks:3", "mixture:contrast:4,fog:3,none", "gradual:fog")
EVERY_ORDER = st.sampled_from([*ORDERS, "cycle", "cycle@2", "cycle:fog,snow@3"])
COUNTS = st.lists(st.integers(0, 40), min_size=1, max_size=12).filter(any).map(tuple)


@settings(deadline=None)
@given(counts=COUNTS, order=EVERY_ORDER, seed=st.integers(0, 2**40), limit=st.none() | st.integers(1, 60))
def test_every_image_comes_once_per_pass(counts: tuple[int, ...], order: str, seed: int, limit: int | None) -> None:
    data = dataset(counts)
    stream = make_stream(data, order, seed, limit)
    passes = {"cycle": 15, "cycle@2": 15, "cycle:fog,snow@3": 2}.get(order, 1)
    n = len(data) if limit is None else min(limit, len(data))
    assert len(stream) == passes * n
    once = set(indices(stream))
    assert len(once) == n
    assert all(set(indices(stream)[i * n : (i + 1) * n]) == once for i in range(passes))
    assert len({stream.id(i) for i in range(len(stream))}) == len(stream)
    assert [stream.label(i) for i in range(len(stream))] == [data.labels[i] for i in indices(stream)]
    assert make_stream(data, order, seed, limit) == stream


@settings(deadline=None)
@given(order=EVERY_ORDER, seeds=st.lists(st.integers(0, 2**40), min_size=2, max_size=2, unique=True))
def test_another_seed_is_another_order(order: str, seeds: list[int]) -> None:
    first, second = (make_stream(dataset(), order, seed) for seed in seeds)
    assert indices(first) != indices(second)
    assert first.fingerprint() != second.fingerprint()
    assert Counter(indices(first)) == Counter(indices(second))


@settings(deadline=None)
@given(
    counts=COUNTS,
    order=st.sampled_from(["few", "few:3", "camera", "camera:4"]),
    seed=st.integers(0, 2**40),
    limit=st.none() | st.integers(1, 60),
)
def test_orders_of_some_classes_see_each_of_their_images_once(
    counts: tuple[int, ...], order: str, seed: int, limit: int | None
) -> None:
    data = dataset(counts)
    stream = make_stream(data, order, seed, limit)
    present = sum(count > 0 for count in counts)
    seen = {stream.label(i) for i in range(len(stream))}
    least, most = {"few": (max(2, present // 10),) * 2, "few:3": (3, 3), "camera": (2, 5), "camera:4": (4, 4)}[order]
    assert len(seen) <= min(most, present)
    room = sum(counts[k] for k in seen)
    if limit is None:
        assert len(seen) >= min(least, present)
        assert len(stream) == room
    else:
        assert len(stream) <= limit
    assert len(set(indices(stream))) == len(stream)
    assert make_stream(data, order, seed, limit) == stream
    assert (f"{len(seen):,} of {present:,} classes" in stream.note) == (len(seen) < present)


def test_another_seed_sees_other_classes() -> None:
    data = dataset((9,) * 40)
    for order in ("few", "camera"):
        seen = [{data.labels[i] for i in indices(make_stream(data, order, seed))} for seed in range(4)]
        assert len({frozenset(one) for one in seen}) > 1


def test_what_is_kept_of_a_class_is_kept_of_it_in_other_orders_too() -> None:
    """So that encodings are shared: few classes keep more of their images, among them those that all classes keep."""
    data = dataset((40,) * 10)
    plain = set(indices(make_stream(data, "iid", 0, 50)))
    few = make_stream(data, "few", 3, 50)
    own = {i for i in plain if data.labels[i] in {few.label(j) for j in range(len(few))}}
    assert own < set(indices(few))


def test_a_camera_stays_a_while_and_looks_elsewhere() -> None:
    data = dataset((400,) * 10)
    for seed in range(5):
        stream = make_stream(data, "camera", seed, 700)
        runs = [len(list(run)) for _, run in groupby(stream.label(i) for i in range(len(stream)))]
        assert 700 / 60 - 1 < len(runs) < 700 / 5
        assert sum(run < 5 for run in runs) <= 5  # the last of a class
        assert len(set(runs)) > 4
        ordered = [stream.label(i) for i in range(len(stream))]
        assert len(set(ordered)) == len({k for k, _ in groupby(ordered)})


def test_a_camera_sees_frequent_classes_more_often() -> None:
    data = dataset((500, *(5,) * 50))
    seen = [0 in {data.labels[i] for i in indices(make_stream(data, "camera:2", seed))} for seed in range(30)]
    assert sum(seen) > 25


@settings(deadline=None)
@given(counts=COUNTS, wanted=st.integers(1, 400))
def test_limit_keeps_the_proportions_of_the_classes(counts: tuple[int, ...], wanted: int) -> None:
    data = dataset(counts)
    stream = make_stream(data, limit=wanted)
    kept = Counter(stream.label(i) for i in range(len(stream)))
    classes, total = sum(count > 0 for count in counts), len(data)
    wanted = min(wanted, total)
    assert sum(kept.values()) == wanted
    exact = {c: count * wanted / total for c, count in enumerate(counts)}
    if all(share >= 1 or not share for share in exact.values()):
        assert all(abs(kept[c] - share) < 1 for c, share in exact.items())
    if wanted >= classes:
        assert len(kept) == classes
    assert all(kept[c] <= count for c, count in enumerate(counts))


def test_a_class_kept_by_force_is_paid_for_by_the_largest() -> None:
    stream = make_stream(dataset((1, 1, 97, 1)), limit=10)
    assert Counter(stream.label(i) for i in range(10)) == {0: 1, 1: 1, 2: 7, 3: 1}


def test_limit_is_the_same_images_for_every_order_and_seed() -> None:
    data = dataset()
    chosen = [set(indices(make_stream(data, order, seed, 25))) for order in ORDERS for seed in range(3)]
    assert all(images == chosen[0] for images in chosen)
    assert chosen[0] != set(indices(make_stream(replace(data, name="other"), limit=25)))


def test_limit_says_so() -> None:
    assert make_stream(dataset()).note == ""
    assert make_stream(dataset(), limit=100).note == make_stream(dataset(), limit=1000).note == ""
    assert make_stream(dataset(), limit=25).note == "stratified 25 of 100 images"
    assert make_stream(dataset((3000, 5100)), limit=0.125).note == "stratified 1,012 of 8,100 images"
    assert make_stream(dataset(), limit=2).note == "stratified 2 of 100 images, 2 of 3 classes"
    assert len(make_stream(dataset(), limit=0.001)) == 1


@pytest.mark.parametrize("limit", [0, -1, 0.0, 1.0, 20.0, -0.1, True, float("nan")])
def test_limits_that_are_refused(limit: float) -> None:
    with pytest.raises(ConfigError, match="limit must be"):
        make_stream(dataset(), limit=limit)


def test_iid_mixes_the_classes() -> None:
    labels = [make_stream(dataset((50, 50))).label(i) for i in range(100)]
    assert 30 < sum(a != b for a, b in pairwise(labels)) < 70


def test_sorted_goes_class_after_class_and_shuffles_within() -> None:
    stream = make_stream(dataset(), "sorted")
    assert [stream.label(i) for i in range(100)] == [0] * 30 + [1] * 20 + [2] * 50
    assert indices(stream) != sorted(indices(stream))


@pytest.mark.parametrize(("order", "length"), [("blocks", 10), ("blocks:7", 7), ("blocks:1000", 50)])
def test_blocks_are_runs_of_one_class(order: str, length: int) -> None:
    stream = make_stream(dataset(tuple([50] * 8)), order, seed=3)
    labels = [stream.label(i) for i in range(len(stream))]
    runs = [(label, len(list(run))) for label, run in groupby(labels)]
    cut = [min(length, rest) for rest in range(50, 0, -length)]
    possible = {sum(cut[:k]) for k in range(1, len(cut) + 1)} | {k * length + cut[-1] for k in range(len(cut))}
    assert max(run for _, run in runs) >= length and all(run in possible for _, run in runs)
    assert 4 * len(cut) < len(runs) <= 8 * len(cut)
    assert [label for label, _ in runs] != sorted(label for label, _ in runs)
    assert sum(a == b for a, b in pairwise(labels)) >= len(labels) - 8 * len(cut)


def test_mixture_gives_every_domain_its_share_everywhere() -> None:
    stream = make_stream(dataset(tuple([60] * 5)), "mixture:contrast:4,fog:3,none")
    domains = [visit.domain for visit in stream.visits]
    assert Counter(domains) == {"contrast:4": 100, "fog:3": 100, "none": 100}
    assert 150 < sum(a != b for a, b in pairwise(domains)) < 250
    assert min(Counter(domains[:150]).values()) > 30
    labels = [stream.label(i) for i in range(300)]
    assert all(5 <= count <= 35 for count in Counter(zip(domains, labels, strict=True)).values())


@settings(deadline=None)
@given(n=st.integers(1, 200))
def test_gradual_climbs_and_falls(n: int) -> None:
    visits = make_stream(dataset((n,)), "gradual:fog").visits
    severities = [0 if visit.corruption is None else visit.corruption.severity for visit in visits]
    top = severities.index(max(severities))
    assert severities[: top + 1] == sorted(severities[: top + 1])
    assert severities[top:] == sorted(severities[top:], reverse=True)
    assert all(abs(a - b) <= 1 for a, b in pairwise(severities)) or n < 11
    if n >= 11:
        assert severities[0] == severities[-1] == 0 and set(severities) == set(range(6))


def test_cycle_is_one_pass_after_another() -> None:
    n = len(dataset())
    whole = make_stream(dataset(), "cycle")
    assert [whole.visits[i * n].corruption for i in range(15)] == [Corruption(name, 5) for name in MAIN]
    short = make_stream(dataset(), "cycle:fog,snow@3")
    assert [domain for domain, _ in groupby(visit.domain for visit in short.visits)] == ["fog:3", "snow:3"]
    assert indices(short)[:n] != indices(short)[n:]


def test_a_corruption_for_all_changes_pixels_and_ids_but_not_the_order() -> None:
    plain, foggy = make_stream(dataset(), "blocks"), make_stream(dataset(), "blocks", corruption="fog:2")
    assert indices(plain) == indices(foggy)
    assert foggy.id(0) == f"{plain.id(0)}@fog:2" and {v.domain for v in foggy.visits} == {"fog:2"}
    assert make_stream(dataset(), "blocks", corruption="none").visits == plain.visits
    assert plain.image(0).tobytes() != foggy.image(0).tobytes()


def test_a_corrupted_image_looks_the_same_wherever_it_comes() -> None:
    data = dataset((40,))
    streams = [
        make_stream(data, corruption="gaussian_noise:3"),
        make_stream(data, "sorted", seed=7, corruption="gaussian_noise:3"),
        make_stream(data, "mixture:gaussian_noise:3,none", seed=1),
        make_stream(data, "cycle:fog,gaussian_noise@3", seed=2, limit=10),
    ]
    seen: dict[str, set[bytes]] = {}
    for stream in streams:
        for i in range(len(stream)):
            if stream.visits[i].domain == "gaussian_noise:3":
                seen.setdefault(stream.id(i), set()).add(stream.image(i).tobytes())
    assert all(len(pictures) == 1 for pictures in seen.values())
    assert len(set.union(*seen.values())) == 40
    first = data.image(5)
    assert seen[f"{data.ids[5]}@gaussian_noise:3"] == {
        corrupt(first, Corruption("gaussian_noise", 3), data.ids[5]).tobytes()
    }


def test_global_random_numbers_are_neither_read_nor_written() -> None:
    def states() -> tuple[object, ...]:
        return random.getstate(), torch.get_rng_state().tolist(), str(np.random.get_state())

    before = states()
    stream = make_stream(dataset(), "mixture:gaussian_noise:1,glass_blur:1", seed=5, limit=20)
    pictures = [stream.image(i).tobytes() for i in range(4)]
    assert states() == before
    random.seed(1), torch.manual_seed(1), np.random.seed(1)
    again = make_stream(dataset(), "mixture:gaussian_noise:1,glass_blur:1", seed=5, limit=20)
    assert again == stream and [again.image(i).tobytes() for i in range(4)] == pictures


def test_a_pickled_stream_shows_the_same() -> None:
    stream = make_stream(dataset(), "mixture:fog:1,none", seed=5, limit=20)
    copy = pickle.loads(pickle.dumps(stream))
    assert copy == stream and copy.fingerprint() == stream.fingerprint()
    assert copy.image(3).tobytes() == stream.image(3).tobytes()


def test_the_fingerprint_changes_with_whatever_is_seen_and_with_nothing_else() -> None:
    data = dataset()
    streams = [
        make_stream(data),
        make_stream(data, seed=1),
        make_stream(data, "sorted"),
        make_stream(data, limit=50),
        make_stream(data, corruption="fog:1"),
        make_stream(data, corruption="fog:2"),
        make_stream(data, corruption="snow:1"),
        make_stream(replace(data, labels=data.labels[::-1])),
        make_stream(replace(data, ids=tuple(f"x{i}" for i in data.ids))),
        make_stream(replace(data, classes=("a", "b", "c"))),
        make_stream(replace(data, name="other")),
    ]
    assert len({stream.fingerprint() for stream in streams}) == len(streams)
    first = streams[0]
    assert Stream(data, first.visits, "by hand", 9, "note").fingerprint() == first.fingerprint()


def test_an_image_too_small_to_corrupt_is_named() -> None:
    stream = make_stream(dataset(side=20), corruption="fog:1")
    with pytest.raises(ImageError, match=rf"{stream.id(2)}: .*20 x 20"):
        stream.image(2)


@pytest.mark.parametrize(
    ("order", "corruption", "says"),
    [
        ("idd", None, "did you mean iid"),
        ("", None, "known: blocks"),
        ("iid:3", None, "write iid alone"),
        ("sorted@3", None, "write sorted alone"),
        ("blocks:0", None, "whole number"),
        ("blocks:x", None, "whole number"),
        ("mixture", None, "two domains"),
        ("mixture:fog:3", None, "two domains"),
        ("mixture:fog:3,rain:2", None, "unknown corruption 'rain'"),
        ("mixture:fog:3,", None, "no severity"),
        ("gradual", None, "unknown corruption ''"),
        ("gradual:fgo", None, "did you mean fog"),
        ("gradual:fog:3", None, "unknown corruption"),
        ("cycle@6", None, "from 1 to 5"),
        ("cycle:fog,fog@2", None, "twice"),
        ("cycle", "fog:2", "sets the corruptions itself"),
        ("gradual:fog", "fog:2", "sets the corruptions itself"),
        ("iid", "fog", "fog:1 to :5"),
    ],
)
def test_orders_that_are_refused(order: str, corruption: str | None, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        plan_stream(order, corruption)
