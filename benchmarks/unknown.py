"""Images of none of the classes: which score tells them, how often `auto` is wrong, and what it does to accuracy.

    python benchmarks/answers_encode.py ... --garbage 200 --output ENCODINGS    makes the encodings, see there
    python benchmarks/unknown.py scores --encodings ENCODINGS --output benchmarks/results/unknown.json
    python benchmarks/unknown.py accuracy --encodings ENCODINGS --models MODELS --draws 1 --output FILE

Unknown are: images of half of the classes, which are then left out of the list; pictures of noise; images of another
data set. Three draws each, in one stream with the known ones. Scores and thresholds do not depend on what is stored, so
`scores` goes through debiasing and the library's own threshold alone. `accuracy` is the whole of TCA's default. Rivals
are scores of matched zero-shot (R = 1). The rule was chosen on `CHOSEN`, and other streams are reported apart.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from answers_streams import Encodings, Floats, Hits, answerer, auroc, over_classes, plain_of, read_encodings
from confidence import rounded
from torch import Tensor
from tqdm import tqdm

from lessmore.core import debias
from lessmore.core.class_texts import ClassTexts, class_logits
from lessmore.core.unknown import likeness
from lessmore.engines.answers import Answerer
from lessmore.engines.unknown_gate import START, UnknownGate
from lessmore.storage.files import replacing

DRAWS, SHARE, RESAMPLED = 3, 0.25, 200
"""Streams of a kind; unknown images per known one; bootstrap samples."""
RIVALS = ("maximum softmax", "MCM", "energy", "max-logit")
CHOSEN = ("tiny", "tiny-siglip", "photo-s8 caltech101 none")
Row = dict[str, Any]


class Mixed(NamedTuple):
    """A stream of known and unknown images."""

    kind: str
    images: Encodings
    known: Hits


def taken(one: Encodings, rows: Any) -> Encodings:
    """Some images, in this order."""
    at = torch.from_numpy(np.asarray(rows))
    parts = {name: getattr(one, name)[at] for name in ("tokens", "feature", "plain")}
    return replace(one, labels=one.labels[rows], track=one.track[rows], **parts)


def joined(one: Encodings, other: Encodings, rows: Any) -> Encodings:
    """Known images, and after them some of another data set, with label −1."""
    at, n = torch.from_numpy(rows), len(one.labels) + len(rows)
    parts = {name: torch.cat([getattr(one, name), getattr(other, name)[at]]) for name in ("tokens", "feature", "plain")}
    return replace(one, labels=np.r_[one.labels, np.full(len(rows), -1)], track=np.arange(n), **parts)


def half_list(one: Encodings, seed: int) -> Encodings:
    """The images with half of the classes in the list; the others have label −1."""
    dice, C = np.random.default_rng(seed), len(one.text)
    kept = np.sort(dice.permutation(C)[: C // 2])
    place = np.full(C, -1)
    place[kept] = np.arange(len(kept))
    return replace(one, text=one.text[kept], labels=place[one.labels])


def streams(one: Encodings, others: Sequence[Encodings], seed: int) -> Iterator[Mixed]:
    """Known images alone, and with each kind of unknown ones."""
    dice = np.random.default_rng(100 + seed)
    yield Mixed("none", taken(one, dice.permutation(len(one.labels))), np.ones(len(one.labels), bool))
    halved = half_list(one, seed)
    order = dice.permutation(len(one.labels))
    both = taken(halved, order)
    yield Mixed("half of the classes", both, both.labels >= 0)
    few = fewer(halved, dice)
    yield Mixed("some of other classes", few, few.labels >= 0)
    for other in others:
        strange = dice.permutation(len(other.labels))[: int(SHARE * len(one.labels))]
        mixed = joined(one, other, strange)
        mixed = taken(mixed, dice.permutation(len(mixed.labels)))
        yield Mixed("noise" if other.dataset == "noise" else "other data set", mixed, mixed.labels >= 0)


def fewer(halved: Encodings, dice: np.random.Generator) -> Encodings:
    """A stream of which a fifth is unknown, in any order."""
    known, strange = (np.flatnonzero((halved.labels >= 0) == side) for side in (True, False))
    strange = dice.permutation(strange)[: int(SHARE * len(known))]
    return taken(halved, dice.permutation(np.r_[known, strange]))


def scores_of(one: Encodings) -> dict[str, Floats]:
    """Candidates for every image of a stream; more means known."""
    texts, C = ClassTexts.of(one.text, one.scale), len(one.text)
    mean = debias.empty_stream_mean(one.feature.shape[1], C, "cpu", torch.float32)
    logits, plain = (class_logits(f, one.text, one.scale) for f in (one.feature, one.plain))
    ours: list[Tensor] = []
    debiased: list[Tensor] = []
    for z, feature in zip(logits, one.feature, strict=True):
        answer, mean = debias.observe(mean, z, feature, texts, debias.RULES["careful"])
        ours.append(likeness(z, answer) / one.scale)
        debiased.append(answer.amax())
    wide = plain.double()
    found = {
        "maximum softmax": wide.softmax(1).amax(1),
        "MCM": (wide / one.scale).softmax(1).amax(1),  # of cosines at temperature 1, as published
        "energy": wide.logsumexp(1),
        "max-logit": wide.amax(1),
        "largest debiased logit": torch.stack(debiased),
        "unknown_score": torch.stack(ours),
    }
    return {name: value.double().numpy() for name, value in found.items()}


def told(scores: Floats) -> Hits:
    """What `auto` calls unknown, image after image."""
    gate, found = UnknownGate("auto"), []
    for score in 1 - scores:
        found.append(score > gate.threshold)
        gate.see(float(score))
    return np.array(found)


def difference(ours: Floats, theirs: Floats, known: Hits) -> list[float]:
    """AUROC of one score less that of another, in points, with the paired 95 % bootstrap interval."""
    dice, n = np.random.default_rng(0), len(known)
    found = []
    for rows in [np.arange(n), *(dice.integers(0, n, n) for _ in range(RESAMPLED))]:
        found.append(100 * (auroc(ours[rows], known[rows]) - auroc(theirs[rows], known[rows])))
    return [found[0], *np.nanquantile(found[1:], (0.025, 0.975)).tolist()]


def separation_of(mixed: Mixed) -> Row:
    """Figures of one stream: AUROC and passing share of each score, and the errors of `auto`."""
    values, known = scores_of(mixed.images), mixed.known
    auto = told(values["unknown_score"])
    counted = np.arange(len(known)) >= START
    found: Row = {"n": len(known), "false_alarms": float(auto[known & counted].mean())}
    if known.all():
        return found
    found["detected"] = float(auto[~known & counted].mean())
    found["scores"] = {
        name: {
            "auroc": auroc(score, known),
            "passing": float((score[~known] >= np.quantile(score[known], 0.05)).mean()),
        }
        for name, score in values.items()
    }
    found["against"] = {name: difference(values["unknown_score"], values[name], known) for name in RIVALS}
    return found


def hits_of(base: Answerer, images: Encodings, rule: Any) -> Hits:
    """Whether each image of a stream is answered rightly, by TCA's default under a rule for unknown images."""
    made = over_classes(base, images)
    made.gate = UnknownGate(rule)
    found = [
        made.answer(images.encoded(row), lambda row=row: plain_of(images, row)).index
        for row in range(len(images.labels))
    ]
    return np.array(found) == images.labels


def accuracy_of(base: Answerer, one: Encodings, other: Encodings | None, changed: Encodings | None, seed: int) -> Row:
    """Right answers on known images, in percent: without unknown ones, with a fifth, and over changes of domain."""
    dice = np.random.default_rng(200 + seed)
    halved, order = half_list(one, seed), dice.permutation(len(one.labels))
    few = fewer(halved, dice)
    known = few.labels >= 0
    alone = taken(few, np.flatnonzero(known))
    cases = {"some of other classes": (alone, few)}
    if other is not None:
        strange = dice.permutation(len(other.labels))[: int(SHARE * len(one.labels))]
        mixed = joined(one, other, strange)
        places = dice.permutation(len(mixed.labels))
        far = taken(mixed, places)
        cases["other data set"] = (taken(far, np.flatnonzero(far.labels >= 0)), far)
    found: Row = {}
    for kind, (pure, full) in cases.items():
        inside = full.labels >= 0
        plain = pure.zero_shot(np.arange(len(pure.labels))).argmax(1).numpy() == pure.labels
        rows = {"zero-shot": plain, "off, none unknown": hits_of(base, pure, "off")}
        rows |= {f"{rule}, a fifth unknown": hits_of(base, full, rule)[inside] for rule in ("off", "auto")}
        found[kind] = percents(rows) | paired(rows["auto, a fifth unknown"], rows["off, none unknown"])
    if changed is not None:
        half = len(one.labels) // 2
        both = taken(joined(one, changed, order[half:]), np.r_[order[:half], np.arange(len(order) - half) + len(order)])
        both = replace(both, labels=one.labels[order])
        plain = both.zero_shot(np.arange(len(order))).argmax(1).numpy() == both.labels
        rows = {"zero-shot": plain} | {rule: hits_of(base, both, rule) for rule in ("off", "auto")}
        found["change of domain"] = percents(rows) | paired(rows["auto"], rows["off"])
    return found


def percents(rows: dict[str, Hits]) -> Row:
    """Number of images, and right answers in percent."""
    return {"n": len(next(iter(rows.values())))} | {name: 100 * float(hit.mean()) for name, hit in rows.items()}


def paired(ours: Hits, theirs: Hits) -> Row:
    """Images that only one of two is right on."""
    return {"better": int((ours & ~theirs).sum()), "worse": int((~ours & theirs).sum())}


def change_over(group: Sequence[Row]) -> str:
    """The paired difference in points over all draws, with its 95 % bootstrap interval.

    An image that several draws hold counts as often; the interval is a little too narrow by that.
    """
    n, better, worse = (sum(one[key] for one in group) for key in ("n", "better", "worse"))
    drawn = np.random.default_rng(0).multinomial(n, [better / n, worse / n, 1 - (better + worse) / n], 10_000)
    low, high = np.quantile(100 * (drawn[:, 0] - drawn[:, 1]) / n, (0.025, 0.975))
    return f"{100 * (better - worse) / n:+.1f} [{low:+.1f}, {high:+.1f}]"


def named(one: Encodings) -> str:
    """Model, set and condition."""
    return f"{one.model} {one.dataset} {one.condition}"


def show_scores(rows: Sequence[Row]) -> None:
    """Print means over draws by stream and kind, and over everything chosen on and not chosen on."""
    for part in (True, False):
        here = [row for row in rows if row["chosen_on"] == part]
        if not here:
            continue
        print("the rule was chosen on these" if part else "others")
        for kind in dict.fromkeys(row["kind"] for row in here):
            group = [row for row in here if row["kind"] == kind]
            alarms, most = (100 * f([row["false_alarms"] for row in group]) for f in (np.mean, np.max))
            seen = [100 * row["detected"] for row in group if "detected" in row]
            print(f"  {kind} ({len(group)}): false alarms {alarms:.1f} (most {most:.1f})", end="")
            print(f", detected {np.mean(seen):.0f}" if seen else "")
            for name in group[0].get("scores", {}):
                both = [100 * np.mean([row["scores"][name][k] for row in group]) for k in ("auroc", "passing")]
                print(f"    {name:24} {both[0]:.1f} / {both[1]:.0f}")
        mixed = [row for row in here if "against" in row]
        means = {s: 100 * np.mean([row["scores"][s]["auroc"] for row in mixed]) for s in mixed[0]["scores"]}
        passing = {s: 100 * np.mean([row["scores"][s]["passing"] for row in mixed]) for s in mixed[0]["scores"]}
        print("  mean:", ", ".join(f"{s} {means[s]:.1f} / {passing[s]:.0f}" for s in means))
        for rival in RIVALS:
            below = sum(row["against"][rival][2] < -1 for row in mixed)
            print(f"  wholly more than a point below {rival}: {below} of {len(mixed)}")


def show_accuracy(rows: Sequence[Row]) -> None:
    """Print means over draws."""
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        for kind, found in row["accuracy"].items():
            groups[kind, row["stream"]].append(found)
            groups[kind, "mean of those chosen on" if row["chosen_on"] else "mean of others"].append(found)
    for (kind, name), group in sorted(groups.items()):
        shown = [key for key in group[0] if key not in ("n", "better", "worse")]
        cells = ", ".join(f"{key} {np.mean([one[key] for one in group]):.1f}" for key in shown)
        print(f"{kind:22} {name:36} {group[0]['n']:4} | {cells}; auto changes {change_over(group)}")


def main() -> None:
    """Measure, print, and write where told."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["scores", "accuracy"])
    parser.add_argument("--encodings", type=Path, required=True)
    parser.add_argument("--models", type=Path, default=Path("."), help="folder of the models that are not embedded")
    parser.add_argument("--only", nargs="*", default=[""], help="beginnings of MODEL SET CONDITION, joined by dots")
    parser.add_argument("--draws", type=int, default=DRAWS)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    every = [read_encodings(file) for file in sorted(args.encodings.glob("*.npz")) if ".views" not in file.name]
    rows: list[Row] = []
    ready: dict[str, Answerer] = {}
    wanted = [one for one in every if len(one.text)]
    wanted = [one for one in wanted if any(named(one).replace(" ", ".").startswith(start) for start in args.only)]
    for one, seed in tqdm([(one, seed) for one in wanted for seed in range(args.draws)], unit="draw"):
        about = {"stream": named(one), "seed": seed, "chosen_on": one.model in CHOSEN or named(one) in CHOSEN}
        clean = [e for e in every if (e.model, e.condition) == (one.model, "none") and e.dataset != one.dataset]
        if args.what == "scores":
            rows += [about | {"kind": mixed.kind} | separation_of(mixed) for mixed in streams(one, clean, seed)]
            continue
        base = ready.setdefault(one.model, answerer(one, "tca", args.models))
        other = next((e for e in clean if len(e.text)), None)
        same = [
            e for e in every if (e.model, e.dataset) == (one.model, one.dataset) and len(e.labels) == len(one.labels)
        ]
        changed = next((e for e in same if one.condition == "none" and e.condition.startswith("contrast")), None)
        rows.append(about | {"accuracy": accuracy_of(base, one, other, changed, seed)})
    (show_scores if args.what == "scores" else show_accuracy)(rows)
    if args.output:
        with replacing(args.output) as temporary:
            temporary.write_text("[\n" + ",\n".join(map(json.dumps, rounded(rows))) + "\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
