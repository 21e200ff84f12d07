"""Does the answer depend on precision or device? The same streams in float32, float16 and bfloat16, on CPU and GPU.

    python benchmarks/precision.py pack --model DIR --data DIR --output streams.safetensors
    python benchmarks/precision.py run streams.safetensors --device cpu --output benchmarks/results/precision.jsonl
    python benchmarks/precision.py run streams.safetensors --device cuda --output benchmarks/results/precision.jsonl
    python benchmarks/precision.py report benchmarks/results/precision.jsonl

`pack` puts a vision tower, class embeddings and a few hundred image files into one safetensors file, so that `run`
needs nothing else, on whatever machine; `run` appends a line per stream, method and precision as it goes. `report`
compares zero-shot answers with float32 on the CPU one by one, and adapted runs, where one flipped answer changes what
follows, by their accuracy with a paired bootstrap interval.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import ImageEnhance
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from tqdm import tqdm

import lessmore
from lessmore.config import Preset, preset
from lessmore.core.vit import BlockShape, ViT, ViTShape
from lessmore.data.images import load_image
from lessmore.methods import Setup, make_method
from lessmore.models.preprocess import Preprocess

TEMPLATES = {"eurosat": ["a centered satellite photo of {}."], "tiny-imagenet": ["a photo of a {}."]}
# Written out, so that the recorded answers stay what they say whatever the presets become.
_RANK = {
    "pruned": "fuse",
    "anchor_kv": True,
    "over": "mean",
    "order": "predict_first",
    "lam": 3.0,
    "beta": 1.0,
    "sharpness": 5.0,
}
PLANS: dict[str, tuple[str, Preset]] = {
    "zeroshot": ("zeroshot", preset("fixed", R=1.0)),
    "tca, rank score": ("tca", preset("fixed", **_RANK)),
    "tca, released": ("tca", preset("released")),
}
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def eurosat(root: Path) -> tuple[list[Path], list[int], list[str]]:
    """Test images, labels and class names of EuroSAT in CoOp's layout."""
    rows = json.loads((root / "eurosat" / "split_zhou_EuroSAT.json").read_text())["test"]
    names = dict(sorted({label: name for _, label, name in rows}.items()))
    return [root / "eurosat" / "2750" / path for path, _, _ in rows], [row[1] for row in rows], list(names.values())


def tiny_imagenet(root: Path) -> tuple[list[Path], list[int], list[str]]:
    """Validation images, labels and class names of Tiny-ImageNet by its manifest."""
    lines = (root / "tiny-imagenet-val" / "manifest.csv").read_text().splitlines()
    header, *rows = (line.split(",", 2) for line in lines)
    where = {name: header.index(name) for name in ("path", "label", "classname")}
    labels = [int(row[where["label"]]) for row in rows]
    names = {int(row[where["label"]]): row[where["classname"]].strip('"') for row in rows}
    return [root / "tiny-imagenet-val" / row[where["path"]] for row in rows], labels, [names[i] for i in sorted(names)]


def pack(args: argparse.Namespace) -> None:
    """Write one file that holds everything `run` needs."""
    vlm = lessmore.load(args.model)
    assert isinstance(vlm.preprocess, Preprocess)
    tensors = {f"vision.{name}": tensor.half() for name, tensor in vlm.vision.state_dict().items()}
    for stream, read in (("eurosat", eurosat), ("tiny-imagenet", tiny_imagenet)):
        files, labels, names = read(Path(args.data))
        chosen = np.random.default_rng(0).permutation(len(files))[: args.images]
        blobs = [files[i].read_bytes() for i in chosen]
        tensors[f"{stream}.bytes"] = torch.frombuffer(bytearray(b"".join(blobs)), dtype=torch.uint8)
        tensors[f"{stream}.sizes"] = torch.tensor([len(blob) for blob in blobs])
        tensors[f"{stream}.labels"] = torch.tensor([labels[i] for i in chosen])
        tensors[f"{stream}.text"] = vlm.classifier(names, TEMPLATES[stream])
    facts = {"shape": asdict(vlm.vision.shape), "preprocess": asdict(vlm.preprocess), "scale": vlm.logit_scale}
    save_file(tensors, args.output, {"facts": json.dumps(facts)})


def unpack(path: str) -> tuple[ViT, float, dict[str, dict[str, Tensor]]]:
    """The tower in float32, the logit scale, and per stream: pixels [T, 3, H, W], labels [T], text [C, E]."""
    with safe_open(path, framework="pt") as file:
        facts = json.loads(file.metadata()["facts"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a dict)
    shape = facts["shape"]
    vit = ViT(ViTShape(**{**shape, "blocks": BlockShape(**shape["blocks"])})).eval().requires_grad_(False)
    vit.load_state_dict({name[7:]: tensor.float() for name, tensor in tensors.items() if name.startswith("vision.")})
    preprocess = Preprocess(**{k: tuple(v) if isinstance(v, list) else v for k, v in facts["preprocess"].items()})
    streams = {}
    for name in ("eurosat", "tiny-imagenet"):
        blobs = tensors[f"{name}.bytes"].split(tensors[f"{name}.sizes"].tolist())
        images = [load_image(blob.numpy().tobytes()) for blob in blobs]
        common = {"labels": tensors[f"{name}.labels"], "text": tensors[f"{name}.text"]}
        streams[name] = {"pixels": torch.stack([preprocess(image) for image in images]), **common}
        pale = [ImageEnhance.Contrast(image).enhance(0.4) for image in images]
        streams[f"{name}, contrast 0.4"] = {"pixels": torch.stack([preprocess(image) for image in pale]), **common}
    return vit, facts["scale"], streams


@torch.no_grad()
def answers(vit: ViT, scale: float, stream: dict[str, Tensor], plan: str) -> Tensor:
    """Predicted classes [T] of one method over one stream, one image at a time."""
    method, chosen = PLANS[plan]
    weight = vit.positions
    one = make_method(method, Setup(vit, stream["text"].to(weight.device), scale, chosen))
    pixels = stream["pixels"].to(weight.device, weight.dtype)
    return torch.stack([one.predict(image[None]).scores.argmax() for image in pixels]).cpu()


def difference(a: Tensor, b: Tensor) -> tuple[float, float, float]:
    """Mean of a − b in points with a paired 95 % bootstrap interval, for correctness vectors [T]."""
    gap = (a.float() - b.float()).numpy()
    picks = np.random.default_rng(0).integers(0, len(gap), (2000, len(gap)))
    low, high = np.quantile(gap[picks].mean(axis=1), [0.025, 0.975])
    return 100 * float(gap.mean()), 100 * float(low), 100 * float(high)


def run(args: argparse.Namespace) -> None:
    """Answer every stream by every method in three precisions, a line of JSON for each."""
    tower, scale, streams = unpack(args.file)
    place = torch.cuda.get_device_name() if args.device == "cuda" else f"{torch.get_num_threads()} threads"
    with Path(args.output).open("a") as out, tqdm(total=len(streams) * len(args.dtypes) * len(PLANS)) as bar:
        for name, whole in streams.items():
            stream = {**whole, "pixels": whole["pixels"][: args.images], "labels": whole["labels"][: args.images]}
            for dtype in args.dtypes:
                vit = ViT(tower.shape).eval().requires_grad_(False)
                vit.load_state_dict(tower.state_dict())
                vit = vit.to(args.device, DTYPES[dtype])
                for plan in PLANS:
                    start = time.perf_counter()
                    found = answers(vit, scale, stream, plan)
                    row = {
                        "stream": name,
                        "method": plan,
                        "device": args.device,
                        "dtype": dtype,
                        "torch": torch.__version__,
                        "place": place,
                        "ms_per_image": 1000 * (time.perf_counter() - start) / len(found),
                        "labels": stream["labels"].tolist(),
                        "answers": found.tolist(),
                    }
                    print(json.dumps(row), file=out, flush=True)
                    bar.update()


def report(args: argparse.Namespace) -> None:
    """Compare every run with float32 on the CPU, over the images both have answered."""
    rows: list[dict[str, Any]] = [json.loads(line) for line in Path(args.file).read_text().splitlines()]
    base = {(r["stream"], r["method"]): r for r in rows if (r["device"], r["dtype"]) == ("cpu", "float32")}
    print("| stream | method | where | images | top-1 | same answer | accuracy difference, 95 % interval |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        first = base[row["stream"], row["method"]]
        n = min(len(row["answers"]), len(first["answers"]))
        found, other, labels = (torch.tensor(v[:n]) for v in (row["answers"], first["answers"], row["labels"]))
        mean, low, high = difference(found == labels, other == labels)
        accuracy, same = (100 * float((found == x).float().mean()) for x in (labels, other))
        print(
            f"| {row['stream']} | {row['method']} | {row['device']} {row['dtype']} | {n} | {accuracy:.2f} | {same:.2f} "
            f"% | {mean:+.2f} [{low:+.2f}, {high:+.2f}] |"
        )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    packer = commands.add_parser("pack", help="make the file that `run` takes")
    packer.add_argument("--model", required=True)
    packer.add_argument("--data", required=True)
    packer.add_argument("--output", required=True)
    packer.add_argument("--images", type=int, default=600)
    packer.set_defaults(do=pack)
    runner = commands.add_parser("run", help="answer the streams in every precision")
    runner.add_argument("file")
    runner.add_argument("--device", choices=["cpu", "cuda"], required=True)
    runner.add_argument("--dtypes", nargs="+", choices=list(DTYPES), default=list(DTYPES))
    runner.add_argument("--images", type=int, default=600, help="of each stream")
    runner.add_argument("--output", required=True)
    runner.set_defaults(do=run)
    reporter = commands.add_parser("report", help="print the table of what was run")
    reporter.add_argument("file")
    reporter.set_defaults(do=report)
    args = parser.parse_args()
    args.do(args)


if __name__ == "__main__":
    main()
