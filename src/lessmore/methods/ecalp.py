"""ECALP: labels spread from the class texts to the images, along a graph that grows with the stream.

Li et al., "Efficient and Context-Aware Label Propagation for Zero-/Few-Shot Training-Free Adaptation of Vision-Language
Models", ICLR 2025, arXiv 2412.18303. The nodes are the C texts t_c and the images so far; the present image has two
nodes, one that stays and one to be answered. Every image points at its k nearest images, which may include itself, and
at its nearest texts, with the weights A:

    image a → image b:  s(a, b)^γ,  s the cosine of w∘f and f', f the older of the two features; w = var_c t_c
    image a → text c:   (f_a·t_c)^γ

With W = A + A' and D the diagonal of its row sums, W̃ = D^−½ W D^−½. Labels Y are one-hot for texts. An earlier image
starts from its most probable class at the last step, with a fifth of that probability. In each of three rounds, images
take Y ← W̃·Y and texts keep their labels. The answer is the Y of the present image.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lessmore.errors import ConfigError, StateError
from lessmore.methods.feature_stream import FeatureStream, Stepped
from lessmore.methods.registry import Setup, register_method
from lessmore.storage.state import finite_but


@dataclass(frozen=True)
class ECALPOptions:
    """ECALP's own settings; the defaults are the authors', the same for all data, but for `capacity`."""

    images: int = 8
    """k, images that an image points at."""
    texts: int = 3
    """Texts that an image points at."""
    gamma: float = 10.0
    """γ, the power that similarities are raised to."""
    rounds: int = 3
    """How often labels are passed on."""
    carry: float = 0.2
    """What an image keeps of its last label when the next image comes."""
    capacity: int = 4096
    """Images that are kept, the latest ones. The authors keep them all."""

    def __post_init__(self) -> None:
        """Validate once; every later use may trust the values."""
        if min(self.images, self.texts, self.rounds, self.capacity) < 1:
            raise ConfigError("images, texts, rounds and capacity must be at least 1")
        if not self.gamma > 0 or self.carry < 0:
            raise ConfigError(f"gamma must be positive and carry not negative, not {self.gamma} and {self.carry}")


class ECALPState(NamedTuple):
    """What ECALP remembers: N images in a ring, the t-th at place t mod N."""

    seen: Tensor
    """Images seen, `[]` int64."""
    features: Tensor
    """w∘f, unit length, `[N, E]`."""
    nearest: Tensor
    """Places of the nearest images, the nearest first, `[N, k]` int64."""
    similarities: Tensor
    """How near these are, `[N, k]`; −∞ where there is none."""
    text_nearest: Tensor
    """The nearest texts, `[N, texts]` int64."""
    text_similarities: Tensor
    """How near these are, `[N, texts]`."""
    labels: Tensor
    """The most probable class after the last image, `[N]` int64."""
    beliefs: Tensor
    """Its value, times `carry`, `[N]`."""


class Edges(NamedTuple):
    """Edges of n images."""

    nearest: Tensor
    """Images pointed at, `[n, k]`."""
    weights: Tensor
    """Weights of these edges, 0 where there is none, `[n, k]`."""
    text_nearest: Tensor
    """Texts pointed at, `[n, texts]`."""
    text_weights: Tensor
    """Weights of these edges, `[n, texts]`."""


def k_nearest(similarities: Tensor, places: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k highest similarities of every row, the first of equal ones first, and their places; −∞ fills up.

    Args:
        similarities: `[n, m]`.
        places: What they are the similarities of, `[n, m]`.
        k: How many to keep.

    Returns:
        Places and similarities, `[n, k]` each.
    """
    missing = max(k - similarities.shape[1], 0)
    order = similarities.sort(dim=1, descending=True, stable=True).indices[:, :k]
    kept = F.pad(similarities.gather(1, order), (0, missing), value=-torch.inf)
    return F.pad(places.gather(1, order), (0, missing)), kept


def propagate(graph: Edges, start: Tensor, rounds: int) -> Tensor:
    """Labels of the images after some rounds.

    Args:
        graph: Edges of n images.
        start: Labels of the images before, `[n, C]`. Texts have their own class.
        rounds: How often labels are passed on.

    Returns:
        Labels of the images, `[n, C]`.
    """
    nearest, weights, text_nearest, text_weights = graph
    degree = weights.sum(dim=1) + text_weights.sum(dim=1)
    degree = degree.index_add(0, nearest.flatten(), weights.flatten())
    text_degree = start.new_zeros(start.shape[1]).index_add(0, text_nearest.flatten(), text_weights.flatten())
    scale, text_scale = 1 / (degree.sqrt() + 1e-6), 1 / (text_degree.sqrt() + 1e-6)
    from_text = torch.zeros_like(start).scatter(1, text_nearest, text_weights * text_scale[text_nearest])
    labels = start
    for _ in range(rounds):
        scaled = scale[:, None] * labels
        passed = (weights[..., None] * scaled[nearest]).sum(dim=1)
        back = (weights[..., None] * scaled[:, None]).flatten(0, 1)
        labels = scale[:, None] * (from_text + passed.index_add(0, nearest.flatten(), back))
    return labels


@register_method("ecalp", ECALPOptions)
class ECALP(FeatureStream[ECALPState, ECALPOptions]):
    """Keeps the graph of the images and the labels they had last."""

    state_problem = staticmethod(finite_but("similarities"))

    def __init__(self, setup: Setup, options: ECALPOptions) -> None:
        super().__init__(setup, options)
        self.telling = self.text.var(dim=0, correction=0)
        """w up to a factor, which a cosine does not see, `[E]`."""

    def empty(self) -> ECALPState:
        """No images."""
        own, text, N = self.options, self.text, self.options.capacity
        few = min(own.texts, len(text))
        return ECALPState(
            seen=self.count(),
            features=text.new_zeros(N, text.shape[1]),
            nearest=torch.zeros(N, own.images, dtype=torch.int64, device=text.device),
            similarities=text.new_full((N, own.images), -torch.inf),
            text_nearest=torch.zeros(N, few, dtype=torch.int64, device=text.device),
            text_similarities=text.new_zeros(N, few),
            labels=torch.zeros(N, dtype=torch.int64, device=text.device),
            beliefs=text.new_zeros(N),
        )

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a `state()`.

        Raises:
            StateError: A tensor does not fit, or points at an image or a class that does not exist.
        """
        lengths = {"nearest": self.options.capacity, "text_nearest": len(self.text), "labels": len(self.text)}
        for name, length in lengths.items():
            if name in state and not bool(((state[name] >= 0) & (state[name] < length)).all()):
                raise StateError(f"the saved state's {name!r} points at something that does not exist")
        if "seen" in state and int(state["seen"]) < 0:
            raise StateError("the saved state's 'seen' is negative")
        super().restore(state)

    def step(self, state: ECALPState, feature: Tensor, logits: Tensor) -> Stepped[ECALPState]:
        """Add the image to the graph, propagate labels, and keep the labels of the images; all in place.

        Args:
            state: The graph before the image; changed in place.
            feature: L2-normalised, `[E]`.
            logits: Zero-shot, `[C]`.
        """
        own, seen = self.options, int(state.seen)
        place, n = seen % own.capacity, min(seen + 1, own.capacity)
        self._place_(state, place, feature, logits)
        near = (state.features @ feature[:, None])[:n]  # to the present image, its own similarity among them
        start = F.one_hot(state.labels[:n], len(logits)) * state.beliefs[:n, None]
        # The row that is added belongs to the node to be answered, which starts without a label.
        labels = propagate(self._graph(state, near, place), F.pad(start, (0, 0, 0, 1)), own.rounds)
        values, state.labels[:n] = labels[:n].max(dim=1)
        state.beliefs[:n] = own.carry * values
        self._remember_(state, near, place)
        total = labels[n].sum()
        scores = torch.where(total > 0, labels[n] / total, logits.softmax(dim=-1))  # no edges: nothing was passed on
        return Stepped(scores, state._replace(seen=state.seen + 1), torch.ones_like(total, dtype=torch.bool))

    def _place_(self, state: ECALPState, place: int, feature: Tensor, logits: Tensor) -> None:
        """Put the image in its place in the ring, and forget the one that was there."""
        state.features[place] = F.normalize(self.telling * feature, dim=0)
        state.similarities.masked_fill_(state.nearest == place, -torch.inf)
        state.similarities[place] = -torch.inf
        state.beliefs[place] = 0
        cosines = logits[None] / self.setup.logit_scale
        nearest, similarities = k_nearest(cosines, torch.arange(len(logits), device=logits.device)[None], len(logits))
        few = state.text_nearest.shape[1]
        state.text_nearest[place], state.text_similarities[place] = nearest[0, :few], similarities[0, :few]

    def _graph(self, state: ECALPState, near: Tensor, place: int) -> Edges:
        """The edges of n images and, last, of the present image's second node."""
        n, k = len(near), self.options.images
        here, again = torch.full_like(near, place, dtype=torch.int64), torch.full_like(near, n, dtype=torch.int64)
        nearest, similarities = k_nearest(
            torch.cat([state.similarities[:n], near, near], dim=1),
            torch.cat([state.nearest[:n], here, again], dim=1),
            k,
        )
        everyone = torch.arange(n + 1, device=near.device)[None]
        own_nearest, own_similarities = k_nearest(torch.cat([near, near[place, None]]).T, everyone, k)
        nearest[place], similarities[place] = own_nearest[0], own_similarities[0]
        rows = torch.cat([torch.arange(n, device=near.device), here[:1, 0]])
        return Edges(
            torch.cat([nearest, own_nearest]),
            self._weights(torch.cat([similarities, own_similarities])),
            state.text_nearest[rows],
            self._weights(state.text_similarities[rows]),
        )

    def _remember_(self, state: ECALPState, near: Tensor, place: int) -> None:
        """Add the present image, once, to the neighbours of the others, and find its own among them."""
        n, k = len(near), self.options.images
        here = torch.full_like(near, place, dtype=torch.int64)
        nearest, similarities = k_nearest(
            torch.cat([state.similarities[:n], near], dim=1), torch.cat([state.nearest[:n], here], dim=1), k
        )
        own_nearest, own_similarities = k_nearest(near.T, torch.arange(n, device=near.device)[None], k)
        nearest[place], similarities[place] = own_nearest[0], own_similarities[0]
        state.nearest[:n], state.similarities[:n] = nearest, similarities

    def _weights(self, similarities: Tensor) -> Tensor:
        """Similarities to the power γ; images that point away from each other have no edge."""
        return similarities.clamp_min(0) ** self.options.gamma

    def matmul_macs(self) -> int:
        """The feature against all images, N·E."""
        return self.options.capacity * self.text.shape[1]

    def solver_macs(self) -> int:
        """Labels along every edge of a full graph, in both directions, in every round: 2·rounds·(N + 1)·k·C."""
        own = self.options
        return 2 * own.rounds * (own.capacity + 1) * own.images * len(self.text)
