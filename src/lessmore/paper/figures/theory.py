"""The supplement's PAC-Bayes argument, measured: do its quantities behave as it needs?

It says that a selection V̂ of tokens is drawn with the Gibbs weight exp(−λ Var cos(V̂, t_c)), and that

    E_ood[−cos(V̂, t_c)] ≤ E_id[−cos(V, t_c)] + √(½ (KL(Q‖P) + log(m/δ)))

with a prior P that the reservoir stands for. Here, the cosine of a token is that of the token alone after the tower's
own pooling and projection; a selection is the uniform distribution over its tokens; and the prior is what the nearest
class anchor attends to, with the reservoir as it was before the image.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lessmore.core.condense.source import KEPT, MERGED, PRUNED
from lessmore.core.reservoir import ready_anchors
from lessmore.paper.figures.request import Request, json_data, online
from lessmore.paper.figures.trace import Station, token_features, trace_blocks

IMAGES = 100
DRAWS = 200
"""Random selections of the same size that each selection is compared with."""
LAMBDAS = (1.0, 10.0, 100.0, 1e3, 1e4)
DELTA = 0.05
GROUPS = {"kept": KEPT, "merged": MERGED, "pruned": PRUNED}


class Chosen(NamedTuple):
    """One image at one condensing block."""

    cosine: Tensor
    """cos(token, t_c), [n] float64."""
    fate: Tensor
    """[n]"""
    prior: Tensor | None
    """[n] float64, sums to 1; None where the reservoir was empty."""
    random: Tensor
    """Random selections as large as the kept one, [DRAWS, k]."""

    def of(self, group: str) -> Tensor:
        """Numbers of the tokens of a group, [k]; `all` is all."""
        everything = torch.arange(len(self.fate))
        return everything if group == "all" else everything[self.fate == GROUPS[group]]


def chosen_tokens(request: Request, station: Station, label: int, generator: torch.Generator) -> Chosen:
    """The tokens that arrive at a condensing block, and what it does with them.

    Args:
        request: The model and the texts.
        station: The block, for a batch of one.
        label: The image's true class.
        generator: Draws the random selections.
    """
    assert station.fate is not None
    features = token_features(request.vlm.vision, station.tokens)[0].double().cpu()
    fate = station.fate[0].cpu()
    k, n = int((fate == KEPT).sum()), len(fate)
    random = torch.rand(DRAWS, n, generator=generator).argsort(dim=1)[:, :k]
    prior = None if station.prior is None else station.prior[0].double().cpu()
    return Chosen(features @ request.text[label].double().cpu(), fate, prior, random)


def variance(cosine: Tensor) -> Tensor:
    """Population variance over the last dimension: `[..., k]` → `[...]`."""
    return cosine.var(dim=-1, correction=0)


def divergence(selection: Tensor, prior: Tensor) -> Tensor:
    """KL of the uniform distribution over a selection to the prior, in nats, `[...]`: −log k − mean of log P over it.

    Args:
        selection: Numbers of the tokens, `[..., k]`.
        prior: P over all tokens, `[n]`.
    """
    log = prior.clamp_min(torch.finfo(prior.dtype).tiny).log()
    return -math.log(selection.shape[-1]) - log[selection].mean(dim=-1)


def gibbs(own: Tensor, random: Tensor, lam: float) -> float:
    """Log of a selection's Gibbs weight over the mean weight of random selections, in nats; 0 is as likely as chance.

    Args:
        own: Its variance, `[]`.
        random: Variances of the random selections, `[S]`.
        lam: λ, the inverse temperature.
    """
    return float(-lam * own - (torch.logsumexp(-lam * random, dim=0) - math.log(len(random))))


def image_measures(one: Chosen) -> dict[str, Any]:
    """What is averaged over images."""
    groups = {name: one.of(name) for name in ("all", *GROUPS)}
    own, random = variance(one.cosine[groups["kept"]]), variance(one.cosine[one.random])
    found: dict[str, Any] = {
        "variance": {name: _number(variance(one.cosine[at])) for name, at in groups.items() if len(at) > 1},
        "cosine": {name: _number(one.cosine[at].mean()) for name, at in groups.items() if len(at)},
        "less_than_all": float(own < variance(one.cosine)),
        "less_than_random": float((own < random).double().mean()),
        "gibbs": {f"{lam:g}": gibbs(own, random, lam) for lam in LAMBDAS},
    }
    found["variance"]["random"] = _number(random.mean())
    if one.prior is not None:
        found["kl"] = {name: _number(divergence(at, one.prior)) for name, at in groups.items() if len(at)}
        found["kl"]["random"] = _number(divergence(one.random, one.prior).mean())
    return found


def _number(value: Tensor) -> float:
    return float(value)


def measure(request: Request) -> dict[str, Any]:
    """The figure's numbers, block by block, and the bound with its assumptions."""
    config, adaptation = request.condensation(), request.settings.adaptation
    generator = torch.Generator().manual_seed(0)
    blocks: dict[int, list[dict[str, Any]]] = {}
    reach = [1.0, -1.0]
    images = 0
    for met in online(request):
        anchors = ready_anchors(met.before, adaptation.ready)
        for station in trace_blocks(request.vlm.vision, met.sample.pixels, config, anchors).condensing():
            one = chosen_tokens(request, station, met.sample.label, generator)
            reach = [min(reach[0], float(one.cosine.min())), max(reach[1], float(one.cosine.max()))]
            blocks.setdefault(station.block, []).append(image_measures(one))
        images += 1
    data = {
        **request.about(),
        "images": images,
        "draws": DRAWS,
        "delta": DELTA,
        "cosine_range": reach,
        "blocks": {str(block): _averages(rows) for block, rows in blocks.items()},
    }
    data["bound"] = bound(data)
    data["assumptions"] = assumptions(data)
    return json_data(data)


def _averages(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over images and half the width of their 95 % intervals, under the same names."""
    found: dict[str, Any] = {"with_prior": sum("kl" in row for row in rows)}
    for part in ("variance", "cosine", "gibbs", "kl"):
        names = dict.fromkeys(name for row in rows for name in row.get(part, {}))
        found[part] = {name: _mean([row[part][name] for row in rows if name in row.get(part, {})]) for name in names}
    for part in ("less_than_all", "less_than_random"):
        found[part] = float(np.mean([row[part] for row in rows]))
    return found


def _mean(values: list[float]) -> dict[str, float]:
    array: NDArray[np.float64] = np.asarray(values)
    half = 1.96 * array.std(ddof=1) / math.sqrt(len(array)) if len(array) > 1 else 0.0
    return {"mean": float(array.mean()), "half": float(half)}


def bound(data: dict[str, Any]) -> dict[str, Any] | None:
    """Both sides at the last condensing block: as printed, and with the 1/m of the usual bound; None without a prior.

    The usual one (Maurer's form of McAllester's) is for losses in [0, 1]; −cos spans 2, hence the factor.
    """
    last = list(data["blocks"].values())[-1]
    if not last["with_prior"]:
        return None
    m, kl = last["with_prior"], max(0.0, last["kl"]["kept"]["mean"])
    return {
        "m": m,
        "left": -last["cosine"]["kept"]["mean"],
        "right_without_root": -last["cosine"]["all"]["mean"],
        "root_as_printed": math.sqrt((kl + math.log(m / DELTA)) / 2),
        "root_with_1_over_m": 2 * math.sqrt((kl + math.log(2 * math.sqrt(m) / DELTA)) / (2 * m)),
    }


def assumptions(data: dict[str, Any]) -> list[dict[str, Any]]:
    """What the argument needs, what was found, and whether that is met; None where it cannot be measured."""
    blocks = data["blocks"].values()
    smaller = float(np.mean([b["less_than_all"] for b in blocks]))
    chance = float(np.mean([b["less_than_random"] for b in blocks]))
    low, high = data["cosine_range"]
    rows: list[dict[str, Any]] = [
        {
            "needs": "kept tokens vary less in cos(token, text) than all tokens",
            "found": f"so in {100 * smaller:.0f} % of images and blocks",
            "met": smaller > 0.5,
        },
        {
            "needs": "the selection is drawn from the Gibbs posterior, so is of low variance among its like",
            "found": f"it is not drawn but fixed by ranks; {100 * chance:.0f} % of random selections vary more",
            "met": False,
        },
        {
            "needs": "a loss in [0, 1]",
            "found": f"cosines between {low:.2f} and {high:.2f}".replace("-", "−")
            + "; −cos must be shifted and halved",
            "met": True,
        },
        {
            "needs": "a prior that does not depend on the data",
            "found": "the reservoir holds earlier images of the same stream",
            "met": False,
        },
        {
            "needs": "one distribution on both sides",
            "found": "E_id is over pre-training images, which nobody has; the same images with all tokens stand in",
            "met": None,
        },
    ]
    kl = [b["kl"] for b in blocks if b["with_prior"]]
    if kl:
        own, random = (float(np.mean([k[name]["mean"] for k in kl])) for name in ("kept", "random"))
        found = f"KL {own:.3f} nats, against {random:.3f} of random selections"
        rows.append(
            {"needs": "the selection lies nearer to the prior than chance does", "found": found, "met": own < random}
        )
    if data["bound"]:
        root = data["bound"]["root_as_printed"]
        found = f"as printed nothing divides by m: it is {root:.2f}, and −cos spans 2 at most"
        rows.append({"needs": "a root that shrinks with the number of images", "found": found, "met": False})
    return rows
