"""State that no client sends: it belongs to one stream, follows it through eviction and restart, and ends with it."""

from __future__ import annotations

from pathlib import Path

from tests.serve.server import expected, fresh_adapter, pictures, running, saved_state, scores_of


def test_implicit_state(tmp_path: Path) -> None:
    """Two streams take turns, one of them deleted and made again under its old name in the middle."""
    flags = ("--max-batch", "1", "--max-resident", "1")
    kept, renewed = fresh_adapter(), fresh_adapter()
    with running(tmp_path / "store", *flags) as server:
        server.create("kept")
        server.create("renewed")
        for image in pictures()[:5]:
            assert scores_of(server.send("kept", image)) == expected(kept, image)
            assert scores_of(server.send("renewed", image)) == expected(renewed, image)
        server.client.delete("/v1/streams/renewed").raise_for_status()
        assert not (tmp_path / "store" / "streams" / "renewed").exists()
        server.create("renewed", R=0.7)
        renewed = fresh_adapter(R=0.7)
        assert server.client.get("/v1/streams/renewed").json()["health"]["seen"] == 0
        server.kill()
    with running(tmp_path / "store", *flags) as server:
        for image in pictures()[5:9]:
            assert scores_of(server.send("kept", image)) == expected(kept, image)
            assert scores_of(server.send("renewed", image)) == expected(renewed, image)
        assert server.state("kept") == saved_state(kept, tmp_path)
        assert server.state("renewed") == saved_state(renewed, tmp_path)


def test_another_model_does_not_take_over_a_state(tmp_path: Path) -> None:
    with running(tmp_path / "store") as server:
        server.create("door")
        server.send("door", pictures()[0])
        server.stop()
    with running(tmp_path / "store", "--model", "tiny-siglip") as server:
        answer = server.client.post(
            "/v1/streams/door/images", content=pictures()[0], headers={"Content-Type": "image/png"}
        )
        assert (answer.status_code, answer.json()["error"]["type"]) == (409, "damaged_stream")
        assert "another model" in answer.json()["error"]["message"]
    with running(tmp_path / "store") as server:
        assert server.send("door", pictures()[1])["seq"] == 2
