"""Published code of methods on features, held against ours on the same features: answers that differ, and why.

    python benchmarks/peers_field.py --onzeta DIR --oga DIR --ecalp DIR --ttabc DIR \
        --model DIR --root DATA --dataset eurosat caltech101 --corruption none contrast:3 --limit 300

The folders are checkouts of idstcv/OnZeta, cfuchs2023/OGA, Yushu-Li/ECALP and walawalagoose/TTABC (for DOTA and BCA);
those not given are left out. None of that code belongs to this repository. It runs as it is on the CPU: `.cuda()`
stays here, and modules it imports without using them on this path are stood in for. `as published` keeps its
conversions to half precision, `float32` undoes them; `ties in order` lets the first of equal neighbours win. Ours runs
in float32 and, to tell what rounding decides, in float64.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from labelfree_streams import data_set, world_set
from torch import Tensor
from tqdm import tqdm

import lessmore
from lessmore.config import preset
from lessmore.core.encoder import PLAIN, Encoded, encode
from lessmore.methods import Setup, make_method
from lessmore.models.vlm import VLM
from lessmore.storage.files import write_json


class Shelf(NamedTuple):
    """One stream of features."""

    name: str
    vlm: VLM
    features: Tensor
    """Unit length, float32, `[n, E]`."""
    text: Tensor
    """Unit length, float32, `[C, E]`."""
    scale: float

    @property
    def logits(self) -> Tensor:
        """Zero-shot's, `[n, C]`."""
        return self.scale * self.features @ self.text.T


class Peer(NamedTuple):
    """One published implementation."""

    method: str
    """The name of ours."""
    settings: str
    options: Callable[[int], dict[str, Any]]
    """Options of ours for a stream of n images, where they are not the defaults."""
    scores: Callable[[str, Shelf], Tensor]
    """Its scores `[n, C]`, from its checkout and a stream; only their order within a row matters."""


@contextmanager
def on_the_cpu(half: bool) -> Iterator[None]:
    """`.cuda()` changes nothing, and unless `half` neither does `.half()`."""
    with ExitStack() as stack:
        for kind in (torch.Tensor, torch.nn.Module):
            stack.enter_context(patch.object(kind, "cuda", lambda self, *rest, **named: self))
            if not half:
                stack.enter_context(patch.object(kind, "half", lambda self: self))
        stack.enter_context(patch.object(torch.cuda, "is_available", lambda: False))
        yield


def load(checkout: str, path: str, unused: tuple[str, ...] = ()) -> Any:
    """A module of a checkout by its file; `unused` are modules that it imports and this path does not need."""
    stand_ins = {name: _Anything(name) for name in unused}
    spec = importlib.util.spec_from_file_location(Path(path).stem + "_published", Path(checkout) / path)
    assert spec is not None, path
    assert spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    with patch.dict(sys.modules, stand_ins):
        spec.loader.exec_module(module)
    return module


class _Anything(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        return [] if name == "__path__" else None if name[0] == "_" else object


def onzeta(checkout: str, shelf: Shelf) -> Tensor:
    """Its whole main function, with features for images and their places for labels, in the order they have."""
    module = load(checkout, "main_online.py", ("clip", "torchvision", "torchvision.datasets"))
    n, C = len(shelf.features), len(shelf.text)
    kept: list[Tensor] = []

    def keep(output: Tensor, target: Tensor, topk: tuple[int, ...]) -> list[float]:
        kept.append(output)
        return [0.0 for _ in topk]

    clip, images = types.SimpleNamespace(), [(feature, i % C) for i, feature in enumerate(shelf.features)]
    clip.load = lambda name: (_Model(), None)
    wishes = ["", "--repeat", "1", "-j", "0", "--tau_t", str(1 / shelf.scale), "--tau_i", str(4 / shelf.scale)]
    with ExitStack() as stack:
        for name, value in {
            "clip": clip,
            "datasets": types.SimpleNamespace(ImageFolder=lambda folder, transform: images),
            "zeroshot_classifier": lambda *ignored: shelf.text.T,
            "accuracy": keep,
        }.items():
            stack.enter_context(patch.object(module, name, value))
        stack.enter_context(patch.object(torch, "randperm", torch.arange))
        stack.enter_context(patch.object(sys, "argv", wishes))
        stack.enter_context(redirect_stdout(io.StringIO()))
        module.main()
    assert kept[-1].shape == (n, C)
    return kept[-1]


class _Model(torch.nn.Module):
    def encode_image(self, images: Tensor) -> Tensor:
        return images


def oga(half: bool) -> Callable[[str, Shelf], Tensor]:
    """Its class, called as its runner calls it with batches of one; half: its memory in half precision."""

    def scores(checkout: str, shelf: Shelf) -> Tensor:
        module = load(checkout, "OGA/OGA_core.py")
        model, out = module.GaussAdapt(shelf.text, shot_capacity=8), []
        model = model if half else model.float()
        for feature, logits in zip(shelf.features[:, None], shelf.logits[:, None], strict=True):
            p = logits.softmax(-1)
            entropy = -torch.sum(torch.log(p + 1e-9) * p, dim=-1)
            model.update_memory(feature, logits, p, entropy, logits.argmax(dim=1), tau=0.05)
            out.append(model.get_MAP(p, model.get_log_probs(feature), tau=0.05, simplex_p=True)[0])
        return torch.cat(out)

    return scores


def ecalp(ordered: bool) -> Callable[[str, Shelf], Tensor]:
    """Its propagation, called as its main script calls it: what is propagated, before a softmax of zeros and ones.

    The present image is there twice, as near to everybody as itself, and torch leaves open which of the two is the
    eighth neighbour. ordered: the first one is, as in ours.
    """

    def scores(checkout: str, shelf: Shelf) -> Tensor:
        module = load(checkout, "utils/iterative_label_propagation.py")
        out: list[Tensor] = []
        plain = torch.Tensor.softmax

        def keep(self: Tensor, *rest: Any, **named: Any) -> Tensor:
            out.append(self)
            return plain(self, *rest, **named)

        with patch.object(torch.Tensor, "softmax", keep), ExitStack() as stack:
            if ordered:
                stack.enter_context(patch.object(torch.Tensor, "topk", _first_of_equal_ones))
            for i in tqdm(range(len(shelf.features)), desc="published ECALP", leave=False):
                seen = torch.cat([shelf.features[: i + 1], shelf.features[i : i + 1]])
                module.iterative_label_propagation(seen, shelf.text, 3, 8, 8, gamma=10.0, alpha=1.0, max_iter=3)
        found = torch.cat(out)
        return found / found.sum(dim=1, keepdim=True)

    return scores


def _first_of_equal_ones(self: Tensor, k: int, dim: int = -1, largest: bool = True) -> tuple[Tensor, Tensor]:
    values, places = self.sort(dim=dim, descending=largest, stable=True)
    return values.narrow(dim, 0, k), places.narrow(dim, 0, k)


TTABC = ("clip", "data", "data.imagnet_prompts", "data.cifar_prompts", "ttabc", "ttabc.utils", "ttabc.utils.tools")
TTABC += ("ttabc.model_selection", "ttabc.model_selection.base_method")


def dota(half: bool) -> Callable[[str, Shelf], Tensor]:
    """Its state, called as its loop calls it with one view; half: its answers in half precision, as published."""

    def scores(checkout: str, shelf: Shelf) -> Tensor:
        module = load(checkout, "ttabc/model_selection/dota.py", TTABC)
        settings = argparse.Namespace(epsilon=1e-4, sigma=2e-3)
        C, E = shelf.text.shape
        model, out = module.DOTAState(settings, E, C, torch.full((E, C), 1e-3)), []
        model.update()
        for feature, logits in zip(shelf.features[:, None], shelf.logits[:, None], strict=True):
            weight = torch.clamp(0.02 * model.c.mean(), max=0.3)
            out.append((logits + weight * model.predict(feature.half())).softmax(-1))
            model.fit(feature, logits.softmax(-1))
            model.update()
        return torch.cat(out)

    return scores


def bca(checkout: str, shelf: Shelf) -> Tensor:
    """Its state, called as its loop calls it with one view."""
    module = load(checkout, "ttabc/model_selection/bca.py", TTABC)
    settings = argparse.Namespace(threshold1=0.05, init_count1=20_000, threshold2=0.65, init_count2=1, selection_p=0.1)
    model = module.BCAState(settings, shelf.text, tem=shelf.scale)
    return torch.cat([model.bca_step(feature) for feature in shelf.features[:, None]])


PEERS = {
    "onzeta": [Peer("onzeta", "as published", lambda n: {"horizon": n}, onzeta)],
    "oga": [
        Peer("oga", "as published", lambda n: {}, oga(half=True)),
        Peer("oga", "float32", lambda n: {}, oga(half=False)),
    ],
    "ecalp": [
        Peer("ecalp", "as published", lambda n: {"capacity": n}, ecalp(ordered=False)),
        Peer("ecalp", "ties in order", lambda n: {"capacity": n}, ecalp(ordered=True)),
    ],
    "ttabc": [
        Peer("dota", "as published", lambda n: {}, dota(half=True)),
        Peer("dota", "float32", lambda n: {}, dota(half=False)),
        Peer("bca", "as published", lambda n: {}, bca),
    ],
}
"""By the name of the option that takes the checkout."""


def ours(method: str, shelf: Shelf, options: dict[str, Any], dtype: torch.dtype) -> Tensor:
    """Our scores `[n, C]` in that precision."""
    setup = Setup(shelf.vlm.vision, shelf.text.to(dtype), shelf.scale, preset("default"), options=options)
    stream: Any = make_method(method, setup)
    features = shelf.features.to(dtype)
    return torch.stack([stream.answer(Encoded(f[None], f.new_empty(1, 0, 0), [])).scores for f in features])


def compared(peer: Peer, checkout: str, shelf: Shelf) -> dict[str, Any]:
    """How often published and our answers differ on a stream, and by how much."""
    n = len(shelf.features)
    with torch.no_grad(), on_the_cpu(half=peer.settings == "as published"):
        theirs = peer.scores(checkout, shelf).float()
    single, double = (ours(peer.method, shelf, peer.options(n), dtype) for dtype in (torch.float32, torch.float64))
    differs = theirs.argmax(dim=1) != single.argmax(dim=1)
    margins = double[differs].topk(2, dim=1).values
    return {
        "method": peer.method,
        "published": peer.settings,
        "stream": shelf.name,
        "images": n,
        "differ": int(differs.sum()),
        "from zero-shot": int((double.argmax(dim=1) != shelf.logits.argmax(dim=1)).sum()),
        "ours, float64 against float32": int((single.argmax(dim=1) != double.argmax(dim=1)).sum()),
        "largest difference": float((theirs - double).abs().max()),
        "largest margin where they differ": float((margins[:, 0] - margins[:, 1]).max()) if len(margins) else 0.0,
    }


@torch.no_grad()
def shelves(args: argparse.Namespace) -> Iterator[Shelf]:
    """One stream for every data set and corruption, in a random order."""
    vlm = lessmore.load(args.model)
    for name in args.dataset:
        label, found, batches = (world_set if name == "world" else data_set)(vlm, name, args)
        order = torch.randperm(len(found["labels"]), generator=torch.Generator().manual_seed(0))
        for condition in args.corruption:
            parts = [encode(vlm.vision, pixels, PLAIN).feature for pixels in tqdm(batches(condition), leave=False)]
            features = torch.cat(parts)[order]
            text = torch.tensor(found["text"])
            yield Shelf(f"{label}, {condition}", vlm, features, text / text.norm(dim=1, keepdim=True), found["scale"])


def main() -> None:
    """Compare and print, and write where told."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in PEERS:
        parser.add_argument(f"--{name}", metavar="CHECKOUT")
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--root")
    parser.add_argument("--dataset", nargs="+", default=["world"])
    parser.add_argument("--corruption", nargs="+", default=["none", "contrast:3"])
    parser.add_argument("--limit", type=int, default=300, help="images of each data set (default: 300)")
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    args.other = False
    rows: list[dict[str, Any]] = []
    print("| " + " | ".join(COLUMNS) + " |\n" + "|---" * len(COLUMNS) + "|")
    for shelf in shelves(args):
        for name, peers in PEERS.items():
            for peer in peers if getattr(args, name) else ():
                rows.append(compared(peer, getattr(args, name), shelf))
                print(
                    "| "
                    + " | ".join(
                        f"{rows[-1][c]:.2g}" if isinstance(rows[-1][c], float) else str(rows[-1][c]) for c in COLUMNS
                    )
                    + " |",
                    flush=True,
                )
    if args.output:
        write_json(args.output, {"schema": "lessmore.peers_field/1", "model": Path(args.model).name, "rows": rows})


COLUMNS = (
    "method",
    "published",
    "stream",
    "images",
    "differ",
    "from zero-shot",
    "ours, float64 against float32",
    "largest difference",
    "largest margin where they differ",
)

if __name__ == "__main__":
    main()
