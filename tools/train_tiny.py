"""Train an embedded model on the embedded world: one unattended command, bounded by minutes.

python tools/train_tiny.py tiny --minutes 7 --out src/lessmore/assets/tiny
python tools/train_tiny.py tiny-siglip --minutes 7 --out src/lessmore/assets/tiny-siglip
python tools/train_tiny.py tiny --evaluate --out src/lessmore/assets/tiny   # accuracies of a stored model again
"""

from __future__ import annotations

import argparse
import math
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tiny_report as report
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import CLIPConfig, CLIPModel, SiglipConfig, SiglipModel
from transformers.utils.logging import disable_progress_bar

from lessmore.assets import world
from lessmore.assets.fields import send
from lessmore.assets.words import CONTEXT, END, PAD, START, TEMPLATES, Words

WIDTH, HEADS, MLP, TEXT_BLOCKS = 128, 4, 512, 4
CHECKPOINT = ("checkpoint-weights.pt", "checkpoint-optimizer.pt")
# Which attributes a caption says (shape, colour, pattern), and how often: words must be understood one by one.
SAID = {
    (1, 1, 1): 0.50,
    (1, 0, 0): 0.08,
    (1, 1, 0): 0.12,
    (1, 0, 1): 0.12,
    (0, 1, 1): 0.06,
    (0, 1, 0): 0.06,
    (0, 0, 1): 0.06,
}
PLAIN_TEMPLATE = 0.5  # share of captions that are the bare caption


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=["tiny", "tiny-siglip"])
    parser.add_argument("--out", type=Path, required=True, help="folder of the model; checkpoints go there too")
    parser.add_argument("--minutes", type=float, help="wall-clock of the training; the schedule follows the clock")
    parser.add_argument("--steps", type=int, help="stop after this many steps (whichever limit comes first)")
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--decay", type=float, default=0.1)
    parser.add_argument("--warmup", type=int, default=300, help="steps")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume", action="store_true", help="continue from the checkpoint in --out")
    parser.add_argument("--evaluate", action="store_true", help="only evaluate the model in --out")
    parser.add_argument("--eval-images", type=int, default=2400)
    parser.add_argument("--calibrate", action="store_true", help="also sweep the shifts' strengths, into results.json")
    parser.add_argument("--threads", type=int, help="CPU threads")
    parser.add_argument("--blocks", type=int, default=12, help="vision blocks; fewer for a quick look on a CPU")
    parser.add_argument("--shapes", type=int, default=24, help="train on the first shapes only, for a quick look")
    args = parser.parse_args()
    if not (args.evaluate or args.minutes or args.steps):
        parser.error("say when to stop: --minutes or --steps")
    return args


def tower(blocks: int) -> dict[str, Any]:
    """Sizes both towers share, in transformers' words."""
    return {"hidden_size": WIDTH, "intermediate_size": MLP, "num_hidden_layers": blocks, "num_attention_heads": HEADS}


def build(name: str, words: Words, blocks: int) -> CLIPModel | SiglipModel:
    """The untrained model, about 3.3 M parameters."""
    ids = {"pad_token_id": words.ids[PAD], "bos_token_id": words.ids[START], "eos_token_id": words.ids[END]}
    text = {**tower(TEXT_BLOCKS), "vocab_size": len(words), "max_position_embeddings": CONTEXT, **ids}
    vision = {**tower(blocks), "image_size": world.SIZE, "patch_size": 8}
    if name == "tiny":
        sides = {"projection_dim": WIDTH, "hidden_act": "quick_gelu"}
        return CLIPModel(CLIPConfig(text_config=text | sides, vision_config=vision | sides, projection_dim=WIDTH))
    text["projection_size"] = WIDTH
    model = SiglipModel(SiglipConfig(text_config=text, vision_config=vision))
    with torch.no_grad():  # SigLIP starts at 10 and -10 for one positive in 32,768; ours are about one in a hundred
        model.logit_scale.fill_(math.log(10))
        model.logit_bias.fill_(-6.0)
    return model


class Captions:
    """Every sentence training can say, tokenised once: tokens [templates, sayings, CONTEXT]."""

    def __init__(self, words: Words, device: str) -> None:
        self.sizes = [len(world.SHAPES) + 1, len(world.COLOURS) + 1, len(world.PATTERNS) + 1]
        sayings = torch.cartesian_prod(*(torch.arange(n) - 1 for n in self.sizes))  # -1 is unsaid
        said = [[None if i < 0 else i for i in row] for row in sayings.tolist()]
        names = [(world.class_name(*row), world.caption(*row)) for row in said]
        texts = [[t.format(name, a=caption) for name, caption in names] for t in TEMPLATES]
        self.tokens = torch.stack([words(row) for row in texts]).to(device)
        self.device = device

    def draw(self, labels: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """One caption each for labels [B, 3] → tokens [B, CONTEXT] and what is said [B, 3], -1 where unsaid."""
        B = len(labels)
        variants, odds = torch.tensor(list(SAID)), torch.tensor(list(SAID.values()))
        spoken = variants[torch.multinomial(odds, B, replacement=True, generator=generator)].bool()
        said = torch.where(spoken, labels, -1)
        row = ((said[:, 0] + 1) * self.sizes[1] + said[:, 1] + 1) * self.sizes[2] + said[:, 2] + 1
        template = torch.randint(len(TEMPLATES), (B,), generator=generator)
        template[torch.rand(B, generator=generator) < PLAIN_TEMPLATE] = 0
        return self.tokens[send(template, self.device), send(row, self.device)], send(said, self.device)


def matches(labels: Tensor, said: Tensor) -> Tensor:
    """[B, B] bool: image i (labels [B, 3]) is rightly described by caption j (said [B, 3], -1 where unsaid)."""
    pairs = (labels[:, None] == said[None]) | (said[None] < 0)
    return pairs.all(-1)


def clip_loss(logits: Tensor, match: Tensor) -> Tensor:
    """Softmax loss with several positives, logits and match [images, captions].

    A caption is aimed at all its images alike; an image at its captions in inverse proportion to how many images
    each fits, as the exact log-density ratio would have it: what is said precisely counts more.
    """
    share = match / match.sum(0)
    to_text = -(share / share.sum(1, keepdim=True) * logits.log_softmax(1)).sum(1).mean()
    to_image = -(share * logits.log_softmax(0)).sum(0).mean()
    return (to_text + to_image) / 2


def siglip_loss(logits: Tensor, match: Tensor) -> Tensor:
    """Sigmoid loss over all pairs, per image."""
    return -F.logsigmoid(torch.where(match, logits, -logits)).sum() / len(logits)


def augment(images: Tensor, generator: torch.Generator) -> Tensor:
    """Slight contrast, brightness and noise, so that training is not about exact pixel values; still clean images."""
    u = torch.rand(len(images), 3, 1, 1, 1, device=images.device, generator=generator)
    mean = images.mean((1, 2, 3), keepdim=True)
    images = mean + (images - mean) * (0.85 + 0.25 * u[:, 0]) + 0.1 * (u[:, 1] - 0.5)
    noise = torch.randn(images.shape, device=images.device, generator=generator)
    return (images + 0.025 * u[:, 2] * noise).clamp(0, 1)


def optimizer_for(model: nn.Module, lr: float, decay: float, fused: bool) -> torch.optim.AdamW:
    """AdamW that decays matrices only."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": decay},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.98), eps=1e-6, fused=fused)


@dataclass
class Progress:
    """How far training is, by steps or by the clock, whichever is further; saved with the checkpoint."""

    steps: int | None
    seconds: float | None
    step: int = 0
    elapsed: float = 0.0

    def fraction(self) -> float:
        """0 at the start, 1 when it is time to stop."""
        by_steps = self.step / self.steps if self.steps else 0.0
        by_clock = self.elapsed / self.seconds if self.seconds else 0.0
        return min(1.0, max(by_steps, by_clock))

    def lr_factor(self, warmup: int) -> float:
        """Linear warm-up, then a cosine down to a hundredth."""
        cosine = 0.5 * (1 + math.cos(math.pi * self.fraction()))
        return min(1.0, (self.step + 1) / warmup) * max(cosine, 0.01)


def atomic_save(value: Any, path: Path) -> None:
    """torch.save, whole or not at all."""
    partial = path.with_name(path.name + ".part")
    torch.save(value, partial)
    os.replace(partial, path)


def save_checkpoint(folder: Path, model: nn.Module, optimizer: torch.optim.AdamW, progress: Progress) -> None:
    """Two files of less than 16 MiB each; the moments are kept in bfloat16, which a resumed run does not notice."""
    state = optimizer.state_dict()
    halved = {
        i: {k: v.bfloat16() if v.dim() else v for k, v in moments.items()} for i, moments in state["state"].items()
    }
    atomic_save({"state": halved, "param_groups": state["param_groups"]}, folder / CHECKPOINT[1])
    atomic_save(
        {"model": model.state_dict(), "step": progress.step, "elapsed": progress.elapsed}, folder / CHECKPOINT[0]
    )


def load_checkpoint(folder: Path, model: nn.Module, optimizer: torch.optim.AdamW, progress: Progress) -> None:
    """Continue where a checkpoint left off; without one, say so and start afresh."""
    if not all((folder / name).is_file() for name in CHECKPOINT):
        print(f"no checkpoint in {folder}, starting afresh", flush=True)
        return
    weights = torch.load(folder / CHECKPOINT[0], map_location="cpu")
    model.load_state_dict(weights["model"])
    optimizer.load_state_dict(torch.load(folder / CHECKPOINT[1], map_location="cpu"))  # casts to the parameters' type
    progress.step, progress.elapsed = weights["step"], weights["elapsed"]
    print(f"resumed at step {progress.step}", flush=True)


class Trainer:
    """Model, optimiser and random streams of one run."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.device = args, args.device
        torch.manual_seed(args.seed)
        self.words = Words()
        self.model = build(args.model, self.words, args.blocks).to(self.device)
        self.captions = Captions(self.words, self.device)
        self.combos = torch.tensor([c for c in world.trained_combinations() if c[0] < args.shapes])
        self.classes = [c for c in world.test_classes() if c[0] < args.shapes]
        self.optimizer = optimizer_for(self.model, args.lr, args.decay, "cuda" in self.device)
        self.progress = Progress(args.steps, args.minutes * 60 if args.minutes else None)
        if args.resume:
            load_checkpoint(args.out, self.model, self.optimizer, self.progress)

    def batch(self) -> tuple[Tensor, Tensor, Tensor]:
        """Images ready for the tower, tokens, and who matches whom; the step alone decides what they are."""
        seed = world.TRAINING_SEEDS + self.args.seed * 2**24 + self.progress.step
        scene = world.world_sample(self.args.batch, seed, self.combos)
        tokens, said = self.captions.draw(scene.labels, torch.Generator().manual_seed(seed))
        images = augment(world.draw_scene(scene, self.device)[0], torch.Generator(self.device).manual_seed(seed))
        return report.normalise(images), tokens, matches(send(scene.labels, self.device), said)

    def step(self) -> Tensor:
        """One optimiser step; the loss stays on the device."""
        images, tokens, match = self.batch()
        with torch.autocast(self.device.split(":")[0], torch.bfloat16):
            out = self.model(input_ids=tokens, pixel_values=images)
        vision, text = (F.normalize(e.float(), dim=-1) for e in (out.image_embeds, out.text_embeds))
        logits = self.model.logit_scale.exp() * vision @ text.T
        siglip = self.args.model == "tiny-siglip"
        loss = siglip_loss(logits + self.model.logit_bias, match) if siglip else clip_loss(logits, match)
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = self.args.lr * self.progress.lr_factor(self.args.warmup)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            self.model.logit_scale.clamp_(max=math.log(100))
        return loss.detach()

    def quick_accuracy(self, n: int = 480) -> float:
        """Clean accuracy in percent on few images of the test classes."""
        self.model.eval()
        weights = report.class_weights(self.model, self.classes, self.words)
        scene = world.world_sample(n, report.EVAL_SEED + 1, self.classes)
        hits = report.correct(self.model, weights, scene, "clean", 0)
        self.model.train()
        return 100 * hits.float().mean().item()

    def save(self) -> None:
        """A checkpoint to continue from, and the model as it is."""
        self.args.out.mkdir(parents=True, exist_ok=True)
        save_checkpoint(self.args.out, self.model, self.optimizer, self.progress)
        report.export(self.model, self.args.model, self.words, self.args.out)

    def run(self) -> None:
        """Train until the steps or the minutes are over; a line every 10 s, a checkpoint every minute."""
        progress, before = self.progress, self.progress.elapsed
        start = told = saved = time.monotonic()
        first = progress.step
        self.model.train()
        while progress.fraction() < 1:
            loss = self.step()
            progress.step += 1
            if progress.step % 20 == 0:
                loss.item()  # waits for the device, so that the clock is honest
            now = time.monotonic()
            progress.elapsed = before + now - start
            if now - told > 10 or progress.step == first + 1:
                self.tell(loss.item(), (progress.step - first) / (now - start))
                told = now
            if now - saved > 60:
                self.save()
                print(f"{'':10}accuracy {self.quick_accuracy():.1f} %", flush=True)
                saved = now
        self.save()

    def tell(self, loss: float, speed: float) -> None:
        """One line of progress; a loss that is no number ends the run before it is saved over a good checkpoint."""
        at, scale = self.progress, self.model.logit_scale.exp().item()
        print(
            f"{at.elapsed:6.0f} s  step {at.step:6d}  {speed:6.2f} steps/s  loss {loss:.4f}  scale {scale:.1f}",
            flush=True,
        )
        if not math.isfinite(loss):
            raise SystemExit("the loss is not finite; continue from the last checkpoint with --resume and a lower --lr")


def finish(args: argparse.Namespace, run: dict[str, Any]) -> None:
    """Evaluate what was stored, as stored; write results.json and sheet.png beside it."""
    kind = CLIPModel if args.model == "tiny" else SiglipModel
    model = kind.from_pretrained(args.out, dtype=torch.float32).to(args.device)
    results = report.evaluate(model, Words.load(args.out), args.eval_images)
    print(report.table(results), flush=True)
    if args.calibrate:
        results["calibration"] = report.calibrate(model, Words.load(args.out), args.eval_images // 2)
        print({k: v["suggested"] for k, v in results["calibration"].items() if k != "clean"}, flush=True)
    report.write_json(args.out / "results.json", {"model": args.model, **results, **run, **report.provenance()})
    report.sheet(args.out / "sheet.png")


def main() -> None:
    """Train and evaluate, or only evaluate."""
    args = arguments()
    disable_progress_bar()
    if args.threads:
        torch.set_num_threads(args.threads)
    if args.evaluate:
        finish(args, {})
        return
    trainer = Trainer(args)
    print(f"{sum(p.numel() for p in trainer.model.parameters()):,} parameters on {args.device}", flush=True)
    trainer.run()
    at = trainer.progress
    recipe = {"batch": args.batch, "lr": args.lr, "decay": args.decay, "seed": args.seed}
    finish(args, {"training": {"steps": at.step, "seconds": round(at.elapsed), **recipe}})
    for name in CHECKPOINT:
        (args.out / name).unlink()


if __name__ == "__main__":
    main()
