"""The recipe in Diff-TPT's page, run with a tiny pipeline of the class it names and random weights."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from lessmore.assets import world
from lessmore.cli import main
from lessmore.lab.report.tokens import as_picture

diffusers = pytest.importorskip("diffusers", reason="diffusers is not installed")
PAGE = Path(__file__).parents[2] / "docs/methods/diff-tpt.md"


def write_pipeline(folder: Path) -> None:
    """As small as the parts can be made; the image encoder takes 224 pixels, as the real one does."""
    import transformers

    torch.manual_seed(0)
    small = {"block_out_channels": (8, 16), "norm_num_groups": 8}
    unet = diffusers.UNet2DConditionModel(
        **small,
        layers_per_block=1,
        sample_size=8,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=16,
    )
    vae = diffusers.AutoencoderKL(
        **small, down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2
    )
    encoder = transformers.CLIPVisionConfig(
        hidden_size=16,
        projection_dim=16,
        intermediate_size=16,
        num_attention_heads=2,
        num_hidden_layers=1,
        patch_size=32,
    )
    diffusers.StableDiffusionImageVariationPipeline(
        vae=vae,
        image_encoder=transformers.CLIPVisionModelWithProjection(encoder),
        unet=unet,
        scheduler=diffusers.PNDMScheduler(skip_prk_steps=True),
        safety_checker=None,
        feature_extractor=transformers.CLIPImageProcessor(),
        requires_safety_checker=False,
    ).save_pretrained(folder)


def recipe(**replaced: str) -> str:
    """The page's code for a CPU, with a few words replaced."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    words = {
        '"cuda"': '"cpu"',
        "float16": "float32",
        "range(63)": "range(3)",
        "guidance_scale=3.0": "guidance_scale=3.0, num_inference_steps=2",
        **{f'"{name}"': f'"{value}"' for name, value in replaced.items()},
    }
    for old, new in words.items():
        assert old in code
        code = code.replace(old, new)
    return code


def test_the_recipe_writes_what_the_method_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    classes = world.test_classes(2)
    scene = world.world_sample(3, 7, classes)
    for i, (pixels, label) in enumerate(zip(world.draw_scene(scene)[0], scene.index.tolist(), strict=True)):
        place = tmp_path / "photos" / world.world_class_names(classes)[label]
        place.mkdir(parents=True, exist_ok=True)
        as_picture(pixels).save(place / f"{i}.jpg")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    with torch.random.fork_rng(devices=[]):
        write_pipeline(Path("pipeline"))
        exec(recipe(**{"lambdalabs/sd-image-variations-diffusers": "pipeline"}), names)
    files = list(Path("variations").glob("*/*.png"))
    assert len(files) == 9
    assert len({file.read_bytes() for file in files}) == 9
    options = '{"folder": "variations", "variations": 3, "views": 4}'
    arguments = ["--model", "tiny", "--method", "diff-tpt", "--dataset", "folder:photos", "--options", options]
    assert main(["run", *arguments, "--output", "runs", "--quiet", "--workers", "0"]) == 0
