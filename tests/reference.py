"""TCA once more, slowly: float64, lists and loops, one image at a time, straight from section 3 of the paper.

Shared with the fast implementation are only the configuration and the weights, so each can be checked by the other.
Patches are counted from 0 without the class token; n is a number of patches, N one of tokens, class token included.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lessmore.config import Adaptation, Condensation
from lessmore.core.vit import ACTIVATIONS as TORCH_ACTIVATIONS
from lessmore.core.vit import ViT

Array = NDArray[np.float64]
_erf = np.vectorize(math.erf, otypes=[np.float64])

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "quick_gelu": lambda x: x / (1 + np.exp(-1.702 * x)),
    "gelu": lambda x: x * (1 + _erf(x / math.sqrt(2))) / 2,
    "gelu_tanh": lambda x: x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x / (1 + np.exp(-x)),
}
Place = tuple[float, float]
PADDING = 3
"""Keys that the reference adds to images of any shape, and masks."""


def softmax(x: Array) -> Array:
    """Softmax over the last axis; the largest entry is taken out first, so nothing overflows."""
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def cosine(a: Array, b: Array) -> float:
    """cos(a, b), and 0 where either vector is zero."""
    norms = math.sqrt(float(a @ a)) * math.sqrt(float(b @ b))
    return float(a @ b) / norms if norms > 0 else 0.0


class Tower:
    """The frozen visual encoder E_v in numpy: V^{l+1} = V' + MLP(V'), V' = V^l + Attention(V^l)."""

    def __init__(self, vit: ViT) -> None:
        self.shape, self.heads, self.first = (
            vit.shape,
            vit.shape.blocks.heads,
            vit.shape.class_token + vit.shape.registers,
        )
        self.w: dict[str, Array] = {k: v.cpu().numpy().astype(np.float64) for k, v in vit.state_dict().items()}
        used: list[Any] = [block.mlp for block in vit.blocks]
        self.activations = [
            next(ACTIVATIONS[name] for name, f in TORCH_ACTIVATIONS.items() if f is mlp.activation) for mlp in used
        ]

    def linear(self, name: str, x: Array) -> Array:
        """Wx + b, with b = 0 where the layer has none."""
        return x @ self.w[f"{name}.weight"].T + self.w.get(f"{name}.bias", 0.0)

    def norm(self, name: str, x: Array) -> Array:
        """LayerNorm over the last axis (biased variance)."""
        deviation = np.sqrt(x.var(axis=-1, keepdims=True) + self.shape.blocks.eps)
        return (x - x.mean(axis=-1, keepdims=True)) / deviation * self.w[f"{name}.weight"] + self.w[f"{name}.bias"]

    def embed(self, pixels: Array) -> Array:
        """Pixels [3, H, W] to tokens [N, D]: class token, registers, then one patch after the other, row by row."""
        side, kernel = self.shape.patch, self.w["patch_embed.weight"]
        tokens = [self.w["class_embed"]] if self.shape.class_token else []
        tokens += list(self.w.get("registers", []))
        for top in range(0, pixels.shape[1] - side + 1, side):
            for left in range(0, pixels.shape[2] - side + 1, side):
                patch = pixels[:, top : top + side, left : left + side]
                tokens.append((kernel * patch).sum(axis=(1, 2, 3)) + self.w.get("patch_embed.bias", 0.0))
        rows, columns = (length // side for length in pixels.shape[1:])
        x = np.stack(tokens) + (self.stretched(rows, columns) if self.shape.flexible else self.w["positions"])
        return self.norm("norm_pre", x) if self.shape.pre_norm else x

    def stretched(self, rows: int, columns: int) -> Array:
        """Positions of a grid [rows · columns, D]: means of those learned, weighted by a tent around each place.

        The tent is as wide as the distance of two patches of the grid, but not narrower than that of two learned.
        """
        side = self.shape.image_size // self.shape.patch
        learned = self.w["positions"].reshape(side, side, -1)
        weights = []
        for length in (rows, columns):
            apart = side / length
            tents = [
                [max(0.0, 1 - abs(i + 0.5 - (j + 0.5) * apart) / max(apart, 1)) for i in range(side)]
                for j in range(length)
            ]
            weights.append([[w / sum(tent) for w in tent] for tent in tents])
        places = [
            sum(weights[0][r][i] * weights[1][c][j] * learned[i, j] for i in range(side) for j in range(side))
            for r in range(rows)
            for c in range(columns)
        ]
        return np.stack(places)

    def places(self, tokens: int) -> list[Place]:
        """Where every token lies: class token and registers at (0, 0), patches row by row."""
        rope, side = self.shape.rope, self.shape.image_size // self.shape.patch
        if rope is None:
            return [(0.0, 0.0)] * tokens
        lines = [rope.start + rope.step * i for i in range(side)]
        grid = [(c, r) if rope.columns_first else (r, c) for r in lines for c in lines]
        return [(0.0, 0.0)] * self.first + grid

    def turned(self, x: Array, places: list[Place]) -> Array:
        """Queries or keys [N, D]: in every head, numbers 2j and 2j + 1 turn as one point of the plane.

        The first half of the pairs turns by the first coordinate, the other half by the second, ever more slowly.
        """
        d, out = x.shape[1] // self.heads, x.copy()
        for token, place in enumerate(places):
            for pair in range(d // 2):
                axis, j = divmod(pair, d // 4)
                angle = place[axis] * self.speed(j, d // 4)
                for head in range(self.heads):
                    a, b = head * d + 2 * pair, head * d + 2 * pair + 1
                    out[token, a] = x[token, a] * math.cos(angle) - x[token, b] * math.sin(angle)
                    out[token, b] = x[token, a] * math.sin(angle) + x[token, b] * math.cos(angle)
        return out

    def speed(self, j: int, pairs: int) -> float:
        """How far pair j of those of one coordinate turns for each unit of it."""
        rope = self.shape.rope
        if rope is None:
            return 0.0
        return rope.base ** (-j / pairs) if rope.turns is None else rope.turns[j]

    def border(self) -> int:
        """Number of the first block of the other kind, which sees no places; there may be none."""
        return self.shape.blocks.depth - (self.shape.head.depth if self.shape.head else 0)

    def project(self, i: int, x: Array) -> tuple[Array, Array, Array]:
        """Queries, keys and values [N, D] of block i, not turned yet."""
        x = x if self.shape.blocks.post_norm else self.norm(f"blocks.{i}.norm1", x)
        q, k, v = np.split(self.linear(f"blocks.{i}.attn.qkv", x), 3, axis=1)
        return q, k, v

    def attention_update(self, i: int, mixed: Array) -> Array:
        """From what the heads found [N, D] to what is added to the tokens."""
        y = self.norm(f"blocks.{i}.attn.norm", mixed) if self.shape.blocks.inner_norm else mixed
        y = self.linear(f"blocks.{i}.attn.out", y)
        y = self.norm(f"blocks.{i}.norm1", y) if self.shape.blocks.post_norm else y
        return y * self.w.get(f"blocks.{i}.scale1", 1.0)

    def heads_attend(self, q: Array, k: Array, v: Array, heads: int | None = None) -> tuple[Array, Array]:
        """softmax(q k^T / sqrt(d)) v, head by head: the heads' outputs side by side [Q, D], and maps [H, Q, keys].

        Where images differ in shape, the batch is padded as hosts pad it: with keys that a mask takes out.
        """
        heads, keys = heads or self.heads, len(k)
        d, maps, outputs = q.shape[1] // heads, [], []
        if self.shape.flexible:
            k, v = (np.vstack([x, np.full((PADDING, x.shape[1]), 7.0)]) for x in (k, v))
        mask = np.where(np.arange(len(k)) < keys, 0.0, -np.inf)
        for h in range(heads):
            part = slice(h * d, (h + 1) * d)
            maps.append(softmax(q[:, part] @ k[:, part].T / math.sqrt(d) + mask))
            outputs.append(maps[-1] @ v[:, part])
        return np.concatenate(outputs, axis=1), np.stack(maps)[:, :, :keys]

    def attend(
        self,
        i: int,
        x: Array,
        anchor: Array | None,
        anchor_kv: bool,
        times: list[int] | None = None,
        places: list[Place] | None = None,
    ) -> tuple[Array, Array]:
        """Block i's attention, eq. (domain-aware-eval): queries [V; A], keys and values [V; A] iff `anchor_kv`.

        Returns what is added to the tokens [N, D] and the maps [H, queries, keys]; the anchor, if there is one, is the
        last query and (iff `anchor_kv`) the last key. It gives no output. Token j is there as a key times[j] times
        over, literally; the map has one column for it. The anchor lies where the class token does, else in the middle.
        """
        N = len(x)
        stacked = x if anchor is None else np.vstack([x, anchor])
        keys = N + int(anchor is not None and anchor_kv)
        q, k, v = self.project(i, stacked)
        if self.shape.rope is not None and i < self.border():
            where = self.places(N) if places is None else places
            own = [] if anchor is None else [(0.0, 0.0) if self.first else mean_place(where, times)]
            q, k = self.turned(q, where + own), self.turned(k, where + own)
        owner = np.repeat(np.arange(keys), [*(times or [1] * N), 1][:keys])
        mixed, maps = self.heads_attend(q, k[owner], v[owner])
        maps = np.stack([maps[:, :, owner == j].sum(axis=2) for j in range(keys)], axis=2)
        return self.attention_update(i, mixed[:N]), maps

    def mlp(self, name: str, x: Array, i: int = 0) -> Array:
        """Two linear layers around the activation of block i; some have a gate, or a norm."""
        hidden = self.linear(f"{name}.up", x)
        if f"{name}.gate.weight" in self.w:
            hidden = hidden * self.activations[i](self.linear(f"{name}.gate", x))
        else:
            hidden = self.activations[i](hidden)
        return self.linear(
            f"{name}.down", self.norm(f"{name}.norm", hidden) if f"{name}.norm.weight" in self.w else hidden
        )

    def add_mlp(self, i: int, x: Array) -> Array:
        """The second half of block i, residual included."""
        norm = f"blocks.{i}.norm2"
        if self.shape.blocks.post_norm:
            y = self.norm(norm, self.mlp(f"blocks.{i}.mlp", x, i))
        else:
            y = self.mlp(f"blocks.{i}.mlp", self.norm(norm, x), i)
        y = x + y * self.w.get(f"blocks.{i}.scale2", 1.0)
        return self.norm(f"blocks.{i}.norm_out", y) if self.shape.head and i == self.border() - 1 else y

    def map_pool(self, x: Array) -> Array:
        """A learned probe attends to all tokens, then a residual MLP: [N, D] to [D]."""
        D = x.shape[1]
        q, kv = self.linear("map_pool.q", self.w["map_pool.probe"][None]), self.linear("map_pool.kv", x)
        y = self.linear("map_pool.out", self.heads_attend(q, kv[:, :D], kv[:, D:], self.shape.pool_heads)[0])[0]
        return y + self.mlp("map_pool.mlp", self.norm("map_pool.norm", y))

    def class_pool(self, x: Array) -> Array:
        """The class token [D]."""
        return x[0]

    def mean_pool(self, x: Array) -> Array:
        """The mean of the patches [D]."""
        return x[self.first :].mean(axis=0)

    def pool(self, x: Array) -> Array:
        """Tokens [N, D] after the last block to the feature z [E], not normalised."""
        if self.shape.norm_then_pool:
            x = self.norm("norm_post", x)
        pools = {"map": self.map_pool, "class": self.class_pool, "mean": self.mean_pool}
        if self.shape.pool == "class_mean":
            return np.concatenate([self.finish(self.class_pool(x)), self.finish(self.mean_pool(x))])
        return self.finish(pools[self.shape.pool](x))

    def finish(self, pooled: Array) -> Array:
        """The last norm, where it comes after pooling, and the projection."""
        if not self.shape.norm_then_pool:
            pooled = self.norm("norm_post", pooled)
        return self.linear("projection", pooled) if self.shape.projection else pooled


def mean_place(places: list[Place], times: list[int] | None) -> Place:
    """The middle of some places, each counted as often as it is there."""
    weights = times or [1] * len(places)
    total = sum(weights)
    row, column = (sum(w * p[axis] for w, p in zip(weights, places, strict=True)) / total for axis in (0, 1))
    return row, column


def new_places(places: list[Place], record: Condensed, chosen: str, times: list[int], sized: bool) -> list[Place]:
    """Where the patches that leave a block lie, from where those lay that entered it."""
    fused = [Cluster(record.pruned[0], record.pruned)] if record.fused else []
    out = [places[j] for j in record.kept]
    for cluster in [*record.merged, *fused]:
        members = cluster.members
        if chosen == "centre":
            out.append(places[cluster.centre])
        elif chosen == "first":
            out.append(places[min(members)])
        else:
            out.append(mean_place([places[j] for j in members], [times[j] for j in members] if sized else None))
    return out


TABLE = [(1.0, 0.0), (0.95, 0.0175), (0.9, 0.035), (0.8, 0.07), (0.7, 0.10), (0.6, 0.14)]


class Split(NamedTuple):
    """How the n patches that enter a condensing block are divided, and what leaves it."""

    keep: int
    ambiguous: int
    pruned: int
    centres: int
    fused: int

    @property
    def leaving(self) -> int:
        """Patch tokens after the block."""
        return self.keep + self.centres + self.fused


def table_rate(R: float) -> float:
    """The rate of the released code for R: straight lines between the table's points, the last one prolonged."""
    segments = list(pairwise(TABLE))
    (R0, rate0), (R1, rate1) = next((s for s in segments if s[1][0] <= R), segments[-1])
    return rate0 + (rate1 - rate0) * (R0 - R) / (R0 - R1)


def schedule(n: int, config: Condensation) -> Split:
    """Counts of one condensing block: the released rule for `table` and `rate`, floor(R n) leave for `exact`,
    ceil(R n) stay as they are for `keep`."""
    (a, b), fuses = config.merge_prune, config.pruned == "fuse"
    fewest, spared = 0, 0
    if config.counts == "exact":  # exactly `out` leave, so there must be something for each centre and the fused token
        out, fewest, spared = math.floor(round(config.R * n, 9)), config.K if a > 0 else 0, int(fuses and b > 0)
        rest = total = n - (out - fewest - spared)
    elif config.counts == "keep":
        rest = total = n - math.ceil(round(config.R * n, 9))
    else:
        rate = table_rate(config.R) if config.rate is None else config.rate
        left = math.ceil(round((1 - rate) * n, 9))
        m = n + 1 - left
        rest, total = n - (left - 2 * m), 3 * m
    if n - rest < 1:
        raise ValueError(f"of {n} patches none would be kept")
    ambiguous = (2 * total * a + (a + b)) // (2 * (a + b))  # floor(total a/(a+b) + 1/2), in integers
    ambiguous = max(fewest, min(rest - spared, ambiguous))
    pruned = rest - ambiguous
    return Split(n - rest, ambiguous, pruned, min(config.K, ambiguous), int(fuses and pruned > 0))


def score_rows(maps: Array, first: int, N: int, has_anchor: bool, rows: str, times: list[int] | None = None) -> Array:
    """Per head the attention every patch receives, [H, n]: the class row, the anchor's row or the mean of the two.

    Not renormalised over the patches. Without a class token the mean over all patches' queries takes its place, where
    token j asks times[j] times.
    """
    of_class = maps[:, 0, first:N] if first else np.average(maps[:, :N, :N], axis=1, weights=times)
    if not has_anchor or rows == "class":
        return of_class
    of_anchor = maps[:, N, first:N]
    return of_anchor if rows == "anchor" else (of_class + of_anchor) / 2


def order_patches(rows: Array, score: str) -> list[int]:
    """Patches best first, by S_head = (1/H) sum_h rank_h(i) or by S = (1/H) sum_h attention; ties by index."""
    s, patches = rows.mean(axis=0), range(rows.shape[1])
    if score == "mean":
        return sorted(patches, key=lambda j: (-s[j], j))
    rank_sum = [0 for _ in patches]
    for row in rows:
        for rank, j in enumerate(sorted(patches, key=lambda j: (-row[j], j))):
            rank_sum[j] += rank
    return sorted(patches, key=lambda j: (rank_sum[j], -s[j], j))


class Cluster(NamedTuple):
    """One merged token: its centre and all members, the centre among them, in the order of their scores."""

    centre: int
    members: list[int]


def coreset(points: list[Array], K: int) -> list[Cluster]:
    """Greedy K-centre on points given best first: farthest-first from point 0, then all to their nearest centre."""
    far = [[float(np.linalg.norm(a - b)) for b in points] for a in points]
    centres: list[int] = []
    while len(centres) < min(K, len(points)):
        others = [i for i in range(len(points)) if i not in centres]
        centres.append(max(others, key=lambda i: min((far[i][c] for c in centres), default=0.0)))
    clusters = [Cluster(c, []) for c in centres]
    for i in range(len(points)):
        min(clusters, key=lambda k: (k.centre != i, far[i][k.centre])).members.append(i)  # a centre is its own
    return clusters


def merged_value(points: list[Array], cluster: Cluster, merge: str, times: list[int] | None = None) -> Array:
    """Eq. (token_merged): the mean of the cluster, or weights 1/distance to the centre, 1 at distance 0.

    times: how often each point counts.
    """
    weights = []
    for i in cluster.members:
        far = float(np.linalg.norm(points[i] - points[cluster.centre]))
        weights.append((1.0 if merge == "mean" or far == 0 else 1 / far) * (times[i] if times else 1))
    return np.sum([w * points[i] for w, i in zip(weights, cluster.members, strict=True)], axis=0) / sum(weights)


class Condensed(NamedTuple):
    """What one condensing block did, with which class's anchor, by positions among the patches that entered it."""

    block: int
    anchor: int | None
    kept: list[int]
    merged: list[Cluster]
    pruned: list[int]
    fused: bool


def condense(
    x: Array, s: Array, order: list[int], split: Split, merge: str, times: list[int] | None = None
) -> tuple[Array, list[Cluster]]:
    """Algorithm 1 on the patches x [n, D] between attention and MLP: kept, merged and fused tokens, in this order."""
    keep, ambiguous = split.keep, order[split.keep : split.keep + split.ambiguous]
    points, often = [x[j] for j in ambiguous], [times[j] for j in ambiguous] if times else None
    clusters = coreset(points, split.centres)
    tokens = [x[j] for j in order[:keep]] + [merged_value(points, cluster, merge, often) for cluster in clusters]
    if split.fused:
        tokens.append(np.sum([s[j] * x[j] for j in order[keep + split.ambiguous :]], axis=0))
    return np.stack(tokens), [Cluster(ambiguous[c.centre], [ambiguous[i] for i in c.members]) for c in clusters]


def regroup(weights: Sequence[float] | Array, record: Condensed) -> Array:
    """Weights of patches (received attention, sizes) after condensing: merged and fused tokens carry the sum of their
    members'."""
    fused = [record.pruned] if record.fused else []
    groups = [[j] for j in record.kept] + [cluster.members for cluster in record.merged] + fused
    return np.array([sum(weights[j] for j in group) for group in groups])


class Entry(NamedTuple):
    """One stored sample: anchor tokens of all layers [L, D], feature [E], key H, and its number in the stream."""

    tokens: Array
    feature: Array
    key: float
    id: int


class Reservoir:
    """R = {R_c}: for every class a list of up to M slots."""

    def __init__(self, classes: int, M: int, strategy: str) -> None:
        self.slots: list[list[Entry]] = [[] for _ in range(classes)]
        self.M, self.strategy = M, strategy

    def ready(self, rule: str) -> list[int]:
        """Classes whose anchors may be used."""
        if rule == "class":
            return [c for c, entries in enumerate(self.slots) if entries]
        return list(range(len(self.slots))) if all(len(entries) >= 2 for entries in self.slots) else []

    def mean(self, c: int) -> Array:
        """A_c = mean of the stored anchor tokens of class c, [L, D]."""
        return np.sum([entry.tokens for entry in self.slots[c]], axis=0) / len(self.slots[c])

    def badness(self, candidates: list[Entry], i: int) -> float:
        """What candidate i is evicted for; the largest goes."""
        if self.strategy == "fifo":
            return -float(candidates[i].id)
        if self.strategy == "uncertainty":
            return candidates[i].key
        u = [entry.tokens.mean(axis=0) for entry in candidates]
        similar = sum(cosine(u[i], u[j]) for j in range(len(u)) if j != i) / (len(u) - 1)
        return candidates[i].key + (similar if self.strategy == "diversity" else -similar)

    def update(self, c: int, new: Entry) -> None:
        """Store a sample in R_c; of M + 1 the worst goes, on ties the newcomer, then the lowest slot."""
        stored = self.slots[c]
        candidates = [new, *stored]
        if len(stored) < self.M:
            stored.append(new)
        elif (victim := max(range(self.M + 1), key=lambda i: self.badness(candidates, i))) > 0:
            stored[victim - 1] = new


def layer_weights(L: int, beta: float, kind: str) -> Array:
    """P = exp(l / beta) normalised to sum 1, l = 1..L or L values from 0 to 1."""
    return softmax((np.linspace(0, 1, L) if kind == "linspace" else np.arange(1.0, L + 1)) / beta)


def unit(tokens: Array) -> Array:
    """Each layer's token [L, D] at length 1."""
    return tokens / np.linalg.norm(tokens, axis=1, keepdims=True)


def whole(tokens: Array, w: Array) -> Array:
    """All layers [L, D] as one vector, in which layer l has weight w_l."""
    return np.concatenate([math.sqrt(w[layer]) * tokens[layer] for layer in range(len(tokens))])


def token_classifier(
    tokens: Array, slots: list[list[Entry]], config: Adaptation, skip: int | None = None, middle: Array | None = None
) -> Array:
    """p_token [C] of eq. (logit_correction); `skip` is the id of an entry left out, 0 for a class with none left.

    `middle` [L, D] is taken off tokens and entries, all at length 1; the cosine is then one of all layers together.
    """
    w = layer_weights(len(tokens), config.beta, config.layer_weights)
    scores = []
    for entries in slots:
        values = []
        for entry in [entry for entry in entries if entry.id != skip]:
            a = sum(w[layer] * cosine(tokens[layer], entry.tokens[layer]) for layer in range(len(tokens)))
            if middle is not None:
                a = cosine(whole(unit(tokens) - middle, w), whole(unit(entry.tokens) - middle, w))
            values.append(math.exp(-config.sharpness * (1 - a)) if config.kernel == "exp" else a)
        scores.append(sum(values) / (len(values) if config.over == "mean" else 1) if values else 0.0)
    return np.array(scores)


class Seen(NamedTuple):
    """What the centre keeps of an image besides its logits, for as much as is left of it."""

    left: float
    power: float  # mean squared logit
    turn: float  # from the image before
    high: float  # largest and smallest logit without the mean before it; 0 for the first
    low: float
    answer: int
    top: int  # the class that stands out most


class Deviation(NamedTuple):
    """How far an image, and the one before it, lay from the mean in the direction of the images before them."""

    left: float
    x: float
    previous: float


class Centre:
    """What all images of a stream have in common, taken off their logits, as docs/labelfree.md has it.

    Kept are the images themselves, each with what is left of it, so that every sum is made anew.
    """

    def __init__(self, text: Array, debias: str) -> None:
        self.text, self.bold, self.camera = text, debias == "bold", debias == "camera"
        self.images: list[tuple[float, Array]] = []  # what is left of an image, its logits and feature
        self.frames: list[Array] = []  # features of the frames that were no exact repeats
        self.distances: list[tuple[float, float]] = []  # how new a frame was, and its squared distance from the mean
        self.seen: list[Seen] = []
        self.deviations: list[Deviation] = []
        self.recent = np.zeros(1)
        self.w, self.evidence, self.x, self.changes = 0.0, 0.0, 0.0, 0
        self.last: Array | None = None

    def mean(self) -> Array:
        """m and the mean feature, over what is left."""
        return np.asarray(np.sum([left * z for left, z in self.images], axis=0) / sum(left for left, _ in self.images))

    def left(self) -> float:
        """What is left of all images."""
        return sum(image.left for image in self.seen)

    def shares(self, classes: list[int]) -> list[float]:
        """Of each class, where these are the images'."""
        found = list(zip(self.seen, classes, strict=True))
        return [sum(i.left for i, c in found if c == k) / max(self.left(), 1e-9) for k in range(len(self.text))]

    def news(self, feature: Array) -> float:
        """How much a frame counts: its distance to the nearest of the last 16, against frames from their mean."""
        if not self.camera or not self.images:
            self.frames.append(feature)
            return 1.0
        nearest = min(float(((feature - frame) ** 2).sum()) for frame in self.frames[-16:])
        nearest = nearest if len(self.frames) >= 16 else min(nearest, 4.0)
        away = float(((feature - self.mean()[len(self.text) :]) ** 2).sum())
        faded = [(count * 0.99 ** (len(self.distances) - i), far) for i, (count, far) in enumerate(self.distances)]
        spread = (sum(count * far for count, far in faded) + away) / (sum(count for count, _ in faded) + 1)
        u = min(1.0, nearest / max(0.25 * spread, 1e-6))
        self.distances.append((u, away))
        self.frames += [feature] if u > 0 else []
        return u

    def few(self) -> float:
        """Whether classes may be few: 0 where the rest is high rather than low, 1 where it is as high as low, and
        for a camera as much as 2.5."""
        span = sum(i.left * (i.high - i.low) for i in self.seen)
        lopsided = sum(i.left * (i.high + i.low) for i in self.seen) / span if span > 0 else 0.0
        return 0.0 if lopsided > 0.25 else min((0.25 - lopsided) / 0.1, 2.5 if self.camera else 1.0)

    def observe(self, logits: Array, feature: Array) -> Array:
        """Logits of the next image, without the centre: (z − w·(m − 4·h·often))_c / |t_c − w·t̄|."""
        z, p, C, u = logits - logits.mean(), softmax(logits), len(logits), self.news(feature)
        both = np.concatenate([z, feature])
        K = math.exp(-sum(s * math.log(s) for s in self.shares([i.answer for i in self.seen]) if s > 0))
        often = [max(0.0, s - 3 / C) for s in self.shares([i.top for i in self.seen])]
        turn = 0.0 if self.last is None else float(((p - self.last) ** 2).sum())
        before = self.mean()[:C] if self.images else np.zeros(C)
        rest = z - before if self.images else np.zeros(C)
        changed = bool(self.images) and self.watch(self.recent[:C] - before, rest, u, u * turn)
        self.last = p
        self.images.append((u, both))
        self.seen.append(Seen(u, float((z**2).mean()), turn, float(rest.max()), float(rest.min()), -1, -1))
        mean, few = self.mean()[:C], self.few()
        power = sum(i.left * i.power for i in self.seen) / self.left()
        turns = sum(i.left * i.turn for i in self.seen)
        chance = 1 / (1 + turns) + (0.25 if self.bold else 1.0) * (1 + few) * (1 / K - 1 / C)
        self.w = max(0.0, 1 - power / max(float((mean**2).mean()), 1e-12) * chance)
        answer, top = int((z - max(0.0, 1 - few) * self.w * mean).argmax()), int((z - before).argmax())
        self.seen[-1] = self.seen[-1]._replace(answer=answer, top=top)
        height = sum(i.left * i.high for i in self.seen) / self.left()
        self.recent = self.recent + u * (both - self.recent) / min(max(self.left(), 1), 16)
        if changed:
            self.start_again()
        self.forget()
        lengths = [max(float(np.linalg.norm(t - self.w * self.text.mean(axis=0))), 1e-6) for t in self.text]
        return np.array([(z[c] - self.w * (mean[c] - 4 * height * often[c])) / lengths[c] for c in range(C)])

    def watch(self, drift: Array, rest: Array, u: float, turn: float) -> bool:
        """Whether the domain has changed: too much evidence that images lie where the last ones do, not the mean."""
        known, many = self.left() + u > 32, sum(d.left for d in self.deviations)
        previous, self.x = self.x, float(drift @ rest) / max(float(np.linalg.norm(drift)), 1e-9) if known else 0.0
        squares = sum(d.left * d.x**2 for d in self.deviations)
        products = sum(d.left * d.x * d.previous for d in self.deviations)
        rho = min(max(products / max(squares, 1e-9), 0.0), 0.95)
        if many > 16:
            usual = max(math.sqrt(squares / many), 1e-9)
            self.evidence = max(0.0, self.evidence + (turn * (self.x / usual - 0.5) if known else 0.0))
        if known:
            self.deviations.append(Deviation(1.0, self.x, previous))
        keep = min(1.0, 1000 / (many + known)) if self.deviations else 1.0
        self.deviations = [d._replace(left=keep * d.left) for d in self.deviations]
        return self.evidence > 10 * (1 + rho) / (1 - rho)

    def start_again(self) -> None:
        """The mean is that of the last images, and all that was seen counts as much as they do."""
        self.evidence, self.changes = 0.0, self.changes + 1
        keep = 16 / self.left()
        self.images = [(16.0, self.recent)]
        self.seen = [i._replace(left=keep * i.left) for i in self.seen]

    def forget(self) -> None:
        """All but the last 150 turns."""
        keep = 150 / max(sum(i.left * i.turn for i in self.seen), 150)
        self.images = [(keep * left, z) for left, z in self.images]
        self.seen = [i._replace(left=keep * i.left) for i in self.seen]


@dataclass
class Encoding:
    """One image through the condensing encoder."""

    pooled: Array  # output of the tower [E], as it comes
    feature: Array  # the same, L2-normalised
    summary: Array  # summary token of every block, [L, D]
    tokens: list[int]  # tokens after each block, the class token counted
    condensed: list[Condensed]


@dataclass
class Result(Encoding):
    """One step of the stream: `index` is the argmax of `corrected`, `ids` each class's slots after the step."""

    logits: Array  # zero-shot logits z of the condensed encoder, [C]
    corrected: Array  # z or p with the correction added, [C]
    index: int
    key: float
    ids: list[list[int]]


class Reference:
    """TCA on a stream of single images; `text` [C, E] is used as given."""

    def __init__(self, vit: ViT, text: Any, logit_scale: float, condensation: Condensation, adaptation: Adaptation):
        self.tower, self.condensation, self.adaptation = Tower(vit), condensation, adaptation
        self.text, self.logit_scale = np.asarray(text, dtype=np.float64), float(logit_scale)
        self.reservoir = Reservoir(len(self.text), adaptation.M, adaptation.strategy)
        self.centre = Centre(self.text, adaptation.debias)
        self.middle = np.zeros((self.tower.shape.blocks.depth, self.tower.shape.blocks.width))
        self.seen = 0

    def nearest(self, i: int, summary: list[Array]) -> int | None:
        """c* = argmax_c cos(v^l, A_c^{l-1}) over the ready classes, the lowest on ties; none at block 0."""
        classes = self.reservoir.ready(self.adaptation.ready)
        if i == 0 or not classes or not self.condensation.uses_anchor:
            return None
        return max(classes, key=lambda c: cosine(summary[i - 1], self.reservoir.mean(c)[i - 1]))

    def summarise(self, x: Array, received: Array, times: list[int]) -> Array:
        """A^l: the class token after the block; without one the mean of all tokens, plain or by received attention."""
        if self.tower.first:
            return x[0]
        weights = times if self.condensation.summary == "mean" else received
        return np.average(x, axis=0, weights=weights)

    def encode(self, pixels: Any) -> Encoding:
        """Image [3, H, W] through the tower with the anchors stored so far; the reservoir is left as it is."""
        config, tower, first = self.condensation, self.tower, self.tower.first
        x = tower.embed(np.asarray(pixels, dtype=np.float64))
        times = [1] * len(x)  # how many patches each token counts for
        places = tower.places(len(x))
        summary, tokens, condensed = list[Array](), list[int](), list[Condensed]()
        for i in range(tower.shape.blocks.depth):
            condenses = config.active and i in config.layers
            c = self.nearest(i, summary) if condenses else None
            anchor = None if c is None else self.reservoir.mean(c)[i - 1]
            update, maps = tower.attend(i, x, anchor, config.anchor_kv, times, places)
            x, N = x + update, len(x)
            received = np.average(maps[:, first:N, first:N], axis=1, weights=times[first:]).mean(axis=0)
            if condenses:
                rows = score_rows(maps, first, N, anchor is not None, config.rows, times)
                order, split = order_patches(rows, config.score), schedule(N - first, config)
                patches, clusters = condense(x[first:], rows.mean(axis=0), order, split, config.merge, times[first:])
                x = np.vstack([x[:first], patches])
                kept, pruned = order[: split.keep], order[split.keep + split.ambiguous :]
                condensed.append(Condensed(i, c, kept, clusters, pruned, bool(split.fused)))
                received = regroup(received, condensed[-1])
                moved = new_places(places[first:], condensed[-1], config.place, times[first:], config.proportional)
                places = [*places[:first], *moved]
                carried = regroup(times[first:], condensed[-1]).tolist() if config.proportional else [1] * len(patches)
                times = [*times[:first], *carried]
            x = tower.add_mlp(i, x)
            summary.append(self.summarise(x, received, times))
            tokens.append(len(x))
        pooled = tower.pool(np.repeat(x, times, axis=0))
        return Encoding(pooled, pooled / np.linalg.norm(pooled), np.stack(summary), tokens, condensed)

    def step(self, pixels: Any) -> Result:
        """One image of the stream: encode, then correct and remember, in the order the adaptation asks for."""
        config, encoding = self.adaptation, self.encode(pixels)
        z = self.logit_scale * (self.text @ encoding.feature)
        believed = z if config.debias == "off" else self.centre.observe(z, encoding.feature)
        p, c = softmax(believed), int(believed.argmax())
        terms = [-q * math.log(q) if q > 0 else 0.0 for q in p]
        key = float(sum(terms) if config.key == "entropy" else terms[c])
        new = Entry(encoding.summary, encoding.feature, key, self.seen)
        if config.order == "update_first":
            self.reservoir.update(c, new)
        own, middle = self.seen if config.exclude_own else None, None
        if config.debias != "off":
            self.middle += (0.95 * unit(encoding.summary) - self.middle) / min(self.seen + 21, 300)
            middle = self.middle
        correction = token_classifier(encoding.summary, self.reservoir.slots, config, own, middle)
        if config.order == "predict_first":
            self.reservoir.update(c, new)
        self.seen += 1
        if config.debias != "off":
            tops = [sum(i.left for i in self.centre.seen if i.top == k) for k in range(len(self.text))]
            turns = sum(image.left * image.turn for image in self.centre.seen)
            trust = [n / (n + 0.5) * turns / (turns + 20) for n in tops]
            correction = np.array([a * b for a, b in zip(correction, trust, strict=True)])
        corrected = (believed if config.domain == "logits" else p) + config.lam * correction
        ids = [[entry.id for entry in entries] for entries in self.reservoir.slots]
        return Result(**vars(encoding), logits=z, corrected=corrected, index=int(corrected.argmax()), key=key, ids=ids)
