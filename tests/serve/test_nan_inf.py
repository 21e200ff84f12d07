"""Numbers that are not finite: in a model, in a state, in an image. They are refused and counted, and go no further."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load, load_file, save_file

from lessmore.assets import model_folder
from lessmore.storage.state import write_state
from tests.serve.server import CLASSES, Server, fresh_adapter, pictures, running, saved_state

PNG = {"Content-Type": "image/png"}


def test_nan_inf_in_the_model(tmp_path: Path) -> None:
    """A model whose weights are broken answers no image, and the server says that it is not ready."""
    broken = tmp_path / "model"
    shutil.copytree(model_folder("tiny"), broken)
    weights = load_file(broken / "model.safetensors")
    name = next(name for name in weights if "vision" in name and "layers.3" in name and weights[name].ndim == 2)
    weights[name][0, 0] = torch.inf
    save_file(weights, broken / "model.safetensors")
    with running(tmp_path / "store", "--model", str(broken), "--classes", ",".join(CLASSES[:5])) as server:
        assert server.client.get("/readyz").status_code == 503
        server.create("door")
        for image in pictures()[:3]:
            answer = server.client.post("/v1/streams/door/images", content=image, headers=PNG)
            assert (answer.status_code, answer.json()["error"]["type"]) == (422, "non_finite")
        assert server.client.get("/v1/streams/door").json()["health"]["refused"] == 3
        assert server.metrics()["lessmore_images_total"] == 0


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_nan_inf_in_a_state(shared_server: Server, value: float, tmp_path: Path) -> None:
    """A state with a right checksum and a number that is none is refused as a whole."""
    stream, adapter = f"nan-{value}".replace("nan-nan", "nan-a"), fresh_adapter()
    shared_server.create(stream)
    shared_server.send(stream, pictures()[0])
    adapter(pictures()[0])
    data = shared_server.client.get(f"/v1/streams/{stream}/state").content
    facts = json.loads(json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]["facts"])
    tensors = load(data)
    tensors["feature_sum"][0] = value
    write_state(tmp_path / "bad", tensors, facts["identity"], facts["facts"])
    answer = shared_server.client.put(f"/v1/streams/{stream}/state", content=(tmp_path / "bad").read_bytes())
    assert (answer.status_code, answer.json()["error"]["type"]) == (422, "refused_state")
    assert "not finite" in answer.json()["error"]["message"] and str(tmp_path) not in answer.text
    assert shared_server.state(stream) == saved_state(adapter, tmp_path)


def test_nan_inf_in_an_image(shared_server: Server) -> None:
    """A floating-point TIFF with a NaN."""
    file = io.BytesIO()
    pixels = torch.full((40, 40), 0.5)
    pixels[3, 3] = torch.nan
    Image.fromarray(pixels.numpy()).save(file, "TIFF")
    shared_server.create("float")
    answer = shared_server.client.post("/v1/streams/float/images", content=file.getvalue(), headers=PNG)
    assert (answer.status_code, answer.json()["error"]["type"]) == (422, "broken_image")
