"""Where adaptation fails: answers it broke, and answers that stay wrong, the most confident first."""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from lessmore.core.correction import probabilities
from lessmore.core.encoder import PLAIN, encode
from lessmore.paper.figures import style
from lessmore.paper.figures.request import Drawn, FigureSample, Met, Request, json_data, online

IMAGES = 300
SHOWN = 5
"""Images per row of the figure."""
Kind = Literal["right", "fixed", "broken", "wrong"]
KINDS: tuple[Kind, ...] = ("right", "fixed", "broken", "wrong")


class Case(NamedTuple):
    """One image, answered twice."""

    sample: FigureSample
    before: int
    before_probability: float
    after: int
    after_probability: float

    @property
    def kind(self) -> Kind:
        """What adaptation did to matched zero-shot's answer."""
        was, now = self.before == self.sample.label, self.after == self.sample.label
        return ("right" if was else "fixed") if now else ("broken" if was else "wrong")


@torch.no_grad()
def judge(request: Request, met: Met) -> Case:
    """One image with matched zero-shot's answer (R = 1) and TCA's.

    Args:
        request: Model, texts and settings.
        met: The image's step in TCA's stream.
    """
    feature = encode(request.vlm.vision, met.sample.pixels, PLAIN).feature[0]
    before = (request.vlm.logit_scale * (request.text.to(feature.dtype) @ feature)).softmax(dim=-1)
    after = probabilities(met.answer.corrected, request.settings.adaptation.domain)
    return Case(met.sample, *_top(before), *_top(after))


def _top(scores: Tensor) -> tuple[int, float]:
    best = int(scores.argmax())
    return best, float(scores[best])


def worst(cases: list[Case], kind: Kind, most: int = SHOWN) -> list[Case]:
    """The most confident cases of a kind; every true class comes once before any comes twice.

    Args:
        cases: All cases.
        kind: Which of them.
        most: How many to return.
    """
    ranked = sorted((c for c in cases if c.kind == kind), key=lambda c: (-c.after_probability, c.sample.i))
    turn: Counter[int] = Counter()
    placed = []
    for case in ranked:
        placed.append((turn[case.sample.label], case))
        turn[case.sample.label] += 1
    return [case for _, case in sorted(placed, key=lambda one: one[0])[:most]]  # stable: confidence stays the order


def measure(request: Request, cases: list[Case]) -> dict[str, Any]:
    """The figure's numbers: counts of each outcome, also by domain, and the images shown.

    Args:
        request: What the figure is of.
        cases: All cases.
    """
    domains = sorted({case.sample.domain for case in cases})
    return json_data(
        {
            **request.about(),
            "images": len(cases),
            "outcomes": _outcomes(cases),
            "by_domain": {d: _outcomes([c for c in cases if c.sample.domain == d]) for d in domains},
            "shown": {kind: [_row(request, case) for case in worst(cases, kind)] for kind in ("broken", "wrong")},
        }
    )


def _outcomes(cases: list[Case]) -> dict[str, int]:
    counted = Counter(case.kind for case in cases)
    return {kind: counted[kind] for kind in KINDS}


def _row(request: Request, case: Case) -> dict[str, Any]:
    return {
        "i": case.sample.i,
        "id": case.sample.id,
        "domain": case.sample.domain,
        "class": request.names[case.sample.label],
        "before": request.names[case.before],
        "before_probability": case.before_probability,
        "after": request.names[case.after],
        "after_probability": case.after_probability,
    }


_ROWS: dict[Kind, str] = {"broken": "Adaptation broke the answer", "wrong": "Wrong before and after"}


def draw(request: Request) -> Drawn:
    """Two rows of images: broken, and wrong before and after."""
    cases = [judge(request, met) for met in online(request)]
    data = measure(request, cases)
    rows = {kind: worst(cases, kind) for kind in _ROWS}
    figure = style.canvas(0.4 + 2.4 * len(rows))
    style.headline(figure, "Where adaptation fails")
    for part, (kind, title) in zip(style.split_rows(figure, [1.0] * len(rows)), _ROWS.items(), strict=True):
        count = data["outcomes"][kind]
        part.suptitle(
            f"{title}: {count} of {data['images']} images", fontsize=style.TITLE, color=style.INK, x=0.01, ha="left"
        )
        _tiles(part.subplots(1, SHOWN), request, rows[kind])
    return style.add_caption(figure, data, _caption(request, data))


def _tiles(axes: Any, request: Request, cases: list[Case]) -> None:
    many = len(request.about()["domains"]) > 1
    for ax in axes[len(cases) :]:
        ax.axis("off")
    if not cases:
        axes[0].text(0, 0.5, "none", fontsize=style.LABEL, color=style.MUTED)
    for ax, case in zip(axes, cases, strict=False):
        truth, before, after = (
            style.shorten(request.names[c], 23) for c in (case.sample.label, case.before, case.after)
        )
        domain = f"\n{case.sample.domain}" if many else ""
        lines = f"before ({case.before_probability:.2f}):\n{before}\nafter ({case.after_probability:.2f}):\n{after}"
        style.show_picture(ax, case.sample.picture, truth, lines + domain, interpolation="antialiased")


def _caption(request: Request, data: dict[str, Any]) -> str:
    found = data["outcomes"]
    return (
        f"{request.where()}, {request.method()} online over {data['images']} images: {found['right']} right before and "
        f"after, {found['fixed']} fixed, {found['broken']} broken, {found['wrong']} wrong before and after. Above each "
        f"image its true class; before: matched zero-shot on all tokens; after: {request.method()}, each with its "
        "probability. Shown are the most confident wrong answers, one for each true class before any class gets a "
        "second."
    )
