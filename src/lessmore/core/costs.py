"""What one image costs, part by part, before anything runs.

Two accountings, both in multiply-accumulates (MACs; the paper's "GFLOPs" are GMACs):

`paper` follows the tool used for the paper's tables. It counts convolutions, linear layers, the two attention products,
and five per element of a LayerNorm. An anchor counts as one more token of its block. Of scoring, merging and correction
it counts only the products of ToMe's matching. In the table's variant of ToMe the first LayerNorm counts three times,
because the code used for the table runs it three times.
`matmul` counts every matrix product this package runs for the image, and nothing else, so that it can be compared with
torch's own counter.

ATS keeps as many tokens as an image needs. Its schedule is an upper bound, and so is its cost. The steps of an image
say what it really took; pass them as `plan` to count that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from lessmore.config import PAIRING, Adaptation, Condensation
from lessmore.core.condense.schedule import Schedule, Stage, schedule
from lessmore.core.condense.source import Step
from lessmore.core.text import TextShape
from lessmore.core.vit import BlockShape, ViTShape

Accounting = Literal["paper", "matmul"]
PARTS = ("embedding", "attention", "mlp", "scoring", "merging", "head", "correction")


@dataclass(frozen=True)
class Costs:
    """MACs of one image by part; `text` is the cost of all class prompts, paid once."""

    parts: dict[str, int]
    text: int
    tokens: tuple[int, ...]
    """Tokens, class token included, that leave each block."""
    gradient: int
    """MACs of a backward pass from the logits of one image to its first block, all weights frozen; `matmul` only."""
    text_gradient: int
    """The same for all class prompts, from their embeddings to their words."""

    @property
    def macs(self) -> int:
        """MACs of one image."""
        return sum(self.parts.values())

    @property
    def gmacs(self) -> float:
        """10⁹ multiply-accumulates of one image, the paper's "GFLOPs"."""
        return self.macs / 1e9

    @property
    def gflops(self) -> float:
        """10⁹ floating-point operations of one image, two per multiply-accumulate."""
        return 2 * self.gmacs


class _Pass(NamedTuple):
    """One block as counted: N tokens enter, N′ go through the MLP, `anchored` if an anchor takes part."""

    block: BlockShape
    N: int
    N_mlp: int
    stage: Stage | None
    anchored: bool
    matched: int
    """Of the N tokens, those that matching looks at."""
    sized: tuple[bool, bool]
    """Whether the tokens count by how many patches they stand for, before and after the block condensed."""


def costs(
    vision: ViTShape,
    condensation: Condensation,
    adaptation: Adaptation | None = None,
    classes: int = 1000,
    text: TextShape | None = None,
    prompts: int = 0,
    accounting: Accounting = "matmul",
    anchored: bool = True,
    plan: Schedule | None = None,
) -> Costs:
    """The cost of one image.

    Args:
        vision: Shape of the vision tower.
        condensation: How tokens are condensed.
        adaptation: The correction that follows; None for zero-shot.
        classes: Number of classes.
        text: Shape of the text tower; None leaves the prompts out.
        prompts: Number of prompts embedded for the class list.
        accounting: What is counted.
        anchored: Whether the reservoir has an anchor to offer; after the first images it has.
        plan: The schedule of an image as it was, from `taken_steps`; None takes the condensation's.
    """
    plan = plan or schedule(vision.patches, vision.blocks.depth, condensation)
    anchored = anchored and adaptation is not None and condensation.uses_anchor
    passes = list(_passes(vision, plan, anchored, _counts_sizes(condensation)))
    last = passes[-1].N_mlp
    if accounting == "paper":
        parts = _paper_parts(vision, passes, last, condensation)
        per_prompt = 0 if text is None else _paper_text(text)
    else:
        parts = _matmul_parts(vision, passes, last, condensation, adaptation, classes)
        per_prompt = 0 if text is None else _matmul_text(text)
    gradient = _gradient(passes, parts, condensation) if accounting == "matmul" else 0
    text_gradient = 0 if text is None or accounting == "paper" else per_prompt + _text_products(text)
    tokens = tuple(p.N_mlp for p in passes)
    return Costs(parts, per_prompt * prompts, tokens, gradient, text_gradient * prompts)


def _passes(vision: ViTShape, plan: Schedule, anchored: bool, sizes: bool) -> Iterator[_Pass]:
    N, before = vision.tokens, False
    for i, stage in enumerate(plan):
        after, sized = N if stage is None else stage.out + vision.first, before or (sizes and stage is not None)
        guided = anchored and stage is not None and i > 0
        yield _Pass(vision.block(i), N, after, stage, guided, N - vision.registers, (before, sized))
        N, before = after, sized


def _counts_sizes(condensation: Condensation) -> bool:
    """Whether attention and means see how many patches a token stands for, once tokens are condensed."""
    return condensation.proportional if condensation.rule in ("coreset", "matching") else condensation.rule in PAIRING


def taken_steps(steps: list[Step], depth: int) -> Schedule:
    """The schedule of one image as it was, from its steps.

    Args:
        steps: The steps of one image.
        depth: Number of blocks.
    """
    stages = {step.block: step.stage for step in steps}
    return tuple(stages.get(i) for i in range(depth))


def _paper_parts(vision: ViTShape, passes: list[_Pass], last: int, condensation: Condensation) -> dict[str, int]:
    D, N = vision.blocks.width, vision.tokens
    norm = 15 if condensation.rule == "matching" and condensation.metric == "attention" else 5
    tokens = [p.N + p.anchored for p in passes]
    parts = dict.fromkeys(PARTS, 0)
    parts["embedding"] = vision.patches * 3 * vision.patch**2 * D + (5 * N * D if vision.pre_norm else 0)
    parts["attention"] = sum(norm * n * D + 4 * n * D * D + 2 * n * n * D for n in tokens)
    parts["mlp"] = sum(5 * p.N_mlp * D * (1 + p.block.out_norm) + p.N_mlp * _mlp(p.block) for p in passes)
    inner = [p for p in passes if p.block.inner_norm]
    parts["attention"] += sum(5 * (p.N + p.anchored) * D for p in inner)
    parts["mlp"] += sum(5 * p.N_mlp * p.block.mlp for p in inner)
    parts["merging"] = sum(_matching(p, condensation) for p in passes)
    parts["head"] = (
        5 * (last if vision.norm_then_pool else 1) * D + _head(vision, last) + (5 * D) * (vision.pool == "map")
    )
    return parts


def _matmul_parts(
    vision: ViTShape,
    passes: list[_Pass],
    last: int,
    condensation: Condensation,
    adaptation: Adaptation | None,
    classes: int,
) -> dict[str, int]:
    D = vision.blocks.width
    parts = dict.fromkeys(PARTS, 0)
    parts["embedding"] = vision.patches * 3 * vision.patch**2 * D
    parts["attention"] = sum(_attention(p, condensation) for p in passes)
    parts["mlp"] = sum(p.N_mlp * _mlp(p.block) for p in passes)
    parts["scoring"] = sum(_scoring(p, condensation, vision.class_token, classes) for p in passes)
    parts["scoring"] += 0 if vision.first else sum(_averaging(p, condensation) for p in passes)
    parts["merging"] = sum(_merging(p, condensation) for p in passes)
    weighted = (last - vision.first) * D if vision.pool in ("mean", "class_mean") and passes[-1].sized[1] else 0
    parts["head"] = _head(vision, last) + weighted + classes * vision.embed
    parts["correction"] = 0 if adaptation is None else _correction(vision.blocks, adaptation, classes)
    return parts


def _attention(p: _Pass, condensation: Condensation) -> int:
    """q, k, v of every token (and the anchor), both attention products, output projection; the anchor has no output."""
    D, keys = p.block.width, p.N + (p.anchored and condensation.anchor_kv)
    return 3 * (p.N + p.anchored) * D * D + p.N * D * D + 2 * p.N * keys * D


def _mlp(block: BlockShape) -> int:
    """The MLP of one token: up and down, and the gate where there is one."""
    return (3 if block.gated else 2) * block.width * block.mlp


def _gradient(passes: list[_Pass], parts: dict[str, int], condensation: Condensation) -> int:
    """A linear layer of frozen weights costs as much backwards as forwards, a product of two activations twice that."""
    products = sum(2 * p.N * (p.N + (p.anchored and condensation.anchor_kv)) * p.block.width for p in passes)
    return parts["attention"] + products + parts["mlp"] + parts["head"]


def _scoring(p: _Pass, condensation: Condensation, class_token: bool, classes: int) -> int:
    """The nearest anchor, the class token's row (towers without one read it off their attention), the anchor's row."""
    if p.stage is None:
        return 0
    D, keys = p.block.width, p.N + (p.anchored and condensation.anchor_kv)
    if condensation.rule in PAIRING:
        return p.N * p.N * D if condensation.metric == "attention" else 0
    rows = int(class_token) + (p.anchored and condensation.rows != "class")
    return rows * keys * D + p.anchored * classes * D


def _averaging(p: _Pass, condensation: Condensation) -> int:
    """In towers without a class token: the mean attention row, where sizes weight it, and the weighted mean token."""
    pooled = condensation.summary == "attn_pool"
    attends = pooled or (p.stage is not None and condensation.rule not in PAIRING)
    keys = p.N + (p.anchored and condensation.anchor_kv)
    rows = p.block.heads * p.N * keys if attends and p.sized[0] else 0
    return rows + (p.N_mlp * p.block.width if pooled or p.sized[1] else 0)


def _matching(p: _Pass, condensation: Condensation) -> int:
    """Similarities of the tokens at even places and those at odd ones, or (`energy`) of all patches.

    Keys are as long as a head, attention rows as there are tokens.
    """
    if p.stage is None or condensation.rule not in PAIRING:
        return 0
    length = p.block.width // p.block.heads if condensation.metric == "keys" else p.N
    pairs = p.stage.patches**2 if condensation.rule == "energy" else (p.matched + 1) // 2 * (p.matched // 2)
    return pairs * length


def _merging(p: _Pass, condensation: Condensation) -> int:
    """Distances between the ambiguous tokens, their weighted means, the fused token; or matching and its sums."""
    if p.stage is None:
        return 0
    stage, D = p.stage, p.block.width
    if condensation.rule in PAIRING:
        homes = stage.ambiguous if condensation.rule == "energy" else p.matched // 2
        return _matching(p, condensation) + homes * stage.ambiguous * (D + 1)
    merged = stage.ambiguous**2 * D + stage.centres * stage.ambiguous * D if stage.centres else 0
    return merged + stage.fused * stage.pruned * D


def _correction(block: BlockShape, adaptation: Adaptation, classes: int) -> int:
    """Cosines with every stored token of every layer, and those among the candidates of one class.

    Debiasing multiplies the mean token of the stream with every stored token as well. With λ = 0 no cosine is taken.
    """
    M, D = adaptation.M, block.width
    eviction = (M + 1) ** 2 * D if adaptation.strategy in ("similarity", "diversity") else 0
    rows = 0 if adaptation.lam == 0 else 1 if adaptation.debias == "off" else 2
    return rows * classes * M * block.depth * D + eviction


def _head(vision: ViTShape, N: int) -> int:
    """Pooling and projection."""
    D = vision.blocks.width
    hidden = vision.pool_mlp or vision.blocks.mlp
    pool = 2 * D * D + 2 * N * D * D + 2 * N * D + 2 * D * hidden if vision.pool == "map" else 0
    return pool + (D * vision.embed if vision.projection else 0)


def _matmul_text(text: TextShape) -> int:
    """MACs of one prompt."""
    block, T = text.blocks, text.context
    D = block.width
    per_block = 4 * T * D * D + 2 * T * T * D + 2 * T * D * block.mlp
    return block.depth * per_block + D * text.embed


def _text_products(text: TextShape) -> int:
    """Of these, the two attention products."""
    return text.blocks.depth * 2 * text.context**2 * text.blocks.width


def _paper_text(text: TextShape) -> int:
    """MACs of one prompt with LayerNorms."""
    block, T = text.blocks, text.context
    return _matmul_text(text) + (2 * block.depth + 1) * 5 * T * block.width
