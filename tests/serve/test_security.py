"""Keys, scopes, whose streams they are, addresses; what a log may not hold."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from lessmore.cli import parse
from lessmore.errors import ConfigError
from lessmore.serve.auth import make_key, read_keys
from lessmore.serve.opened import opened_service
from lessmore.serve.settings import ServerSettings, from_environment, without_password
from tests.serve.server import Server, pictures, running

KEYS = {name: make_key(name) for name in ("reader", "door", "gate", "chief")}
SCOPES = {
    "reader": "[read]",
    "door": "[read, classify]",
    "gate": "[read, classify]",
    "chief": "[read, classify, admin]",
}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("guarded")
    entries = [
        entry.replace("[read, classify]", SCOPES.get(name, "[read, classify]")) for name, (_, entry) in KEYS.items()
    ]
    (folder / "keys.yaml").write_text("keys:\n" + "".join(entries))
    flags = ("--api-keys", str(folder / "keys.yaml"), "--host", "0.0.0.0")
    with running(folder / "store", *flags) as server:
        server.client = httpx.Client(base_url=server.address.replace("0.0.0.0", "127.0.0.1"), timeout=60)
        yield server


def with_key(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {KEYS[name][0]}"}


def test_no_key_and_wrong_keys(guarded: Server) -> None:
    for headers in ({}, {"X-API-Key": "guess"}, {"Authorization": "Basic " + KEYS["chief"][0]}, {"X-API-Key": ""}):
        answer = guarded.client.get("/v1/streams", headers=headers)
        assert (answer.status_code, answer.json()["error"]["type"]) == (401, "unauthorised")
        assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert guarded.client.get("/metrics").status_code == 401
    assert guarded.client.get("/healthz").status_code == guarded.client.get("/readyz").status_code == 200


def test_scopes_and_owners(guarded: Server) -> None:
    client, png = guarded.client, {"Content-Type": "image/png"}
    assert client.post("/v1/streams", json={"id": "front"}, headers=with_key("door")).status_code == 201
    assert client.post("/v1/streams", json={"id": "x"}, headers=with_key("reader")).status_code == 403
    send = "/v1/streams/front/images"
    assert client.post(send, content=pictures()[0], headers=with_key("door") | png).status_code == 200
    assert client.post(send, content=pictures()[0], headers=with_key("chief") | png).status_code == 200
    for stranger in ("gate", "reader"):
        assert client.get("/v1/streams/front", headers=with_key(stranger)).status_code == 404
        assert client.get("/v1/streams", headers=with_key(stranger)).json()["streams"] == []
    assert client.delete("/v1/streams/front", headers=with_key("gate")).status_code == 404
    assert client.get("/v1/streams/front/state", headers=with_key("door")).status_code == 403
    assert client.get("/v1/streams/front/state", headers=with_key("chief")).status_code == 200
    assert [one["owner"] for one in client.get("/v1/streams", headers=with_key("chief")).json()["streams"]] == ["door"]
    assert client.get("/metrics", headers={"X-API-Key": KEYS["reader"][0]}).status_code == 200


def test_log_lines_are_json_and_hold_no_secret(guarded: Server) -> None:
    guarded.client.get("/v1/streams", headers=with_key("door") | {"X-Request-Id": "my-request.1"})
    guarded.client.get("/v1/streams", headers=with_key("door") | {"X-Request-Id": 'odd "\\ id'})
    text = guarded.log.read_text()
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    assert "my-request.1" in {line.get("request") for line in lines}
    assert all({"time", "level", "message"} <= line.keys() for line in lines)
    assert not any(key in text for key, _ in KEYS.values()) and "odd" not in text
    assert lines[0]["message"] == "start" and lines[0]["settings"]["host"] == "0.0.0.0"


def test_other_machines_need_keys() -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1", "example.org"):
        with pytest.raises(ConfigError, match="give --api-keys FILE"):
            ServerSettings(host=host)
    for host in ("127.0.0.1", "::1", "localhost", "127.8.0.1"):
        assert ServerSettings(host=host).loopback


@pytest.mark.parametrize(
    "text",
    ["", "keys: []", "keys: 3", "a: b", "keys:\n  - name: a", "keys:\n  - {name: a, sha256: zz, scopes: [read]}",
     "keys:\n  - {name: a, sha256: " + "0" * 64 + ", scopes: [root]}",
     "keys:\n  - {name: 'a b', sha256: " + "0" * 64 + ", scopes: [read]}",
     "keys:\n" + 2 * ("  - {name: a, sha256: " + "0" * 64 + ", scopes: [read]}\n")],
)  # fmt: skip
def test_bad_key_files(text: str, tmp_path: Path) -> None:
    (tmp_path / "keys.yaml").write_text(text)
    with pytest.raises(ConfigError):
        read_keys(tmp_path / "keys.yaml")


def test_settings_are_printed_without_passwords() -> None:
    shown = ServerSettings(db="postgresql://me:secret@host/db?password=secret", store="s3://bucket/a?key=secret")
    assert "secret" not in json.dumps(shown.printable()) and shown.printable()["db"] == "postgresql://***@host/db"
    assert without_password("/a/path") == "/a/path"


def test_an_engine_that_cannot_serve_is_refused_by_name() -> None:
    for engine in ("openvino", "graph", "chunk"):
        with (
            pytest.raises(ConfigError, match=f"{engine}.*take auto, cpu or eager"),
            opened_service(ServerSettings(engine=engine), []),
        ):
            pass


def test_the_environment_sets_what_flags_do() -> None:
    assert from_environment({"LESSMORE_SERVE_PORT": "9", "PATH": "x"}) == {"port": "9"}
    with pytest.raises(ConfigError, match="LESSMORE_SERVE_PROT is no setting"):
        from_environment({"LESSMORE_SERVE_PROT": "9"})


def test_flags_before_file_before_environment(tmp_path: Path) -> None:
    (tmp_path / "serve.yaml").write_text("port: 2\nqueue: 3\n")
    code = (
        "from lessmore.cli import parse\n"
        f"a = parse(['serve', '--config', {str(tmp_path / 'serve.yaml')!r}, '--port', '5']).serve\n"
        "print(a.port, a.queue, a.max_batch)"
    )
    environment = {"LESSMORE_SERVE_QUEUE": "7", "LESSMORE_SERVE_MAX_BATCH": "4", "PYTHONPATH": ":".join(sys.path)}
    told = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert told.stdout.split() == ["5", "3", "4"], told
    assert parse(["serve"]).serve.port == 8080


def test_the_base_library_knows_nothing_of_the_server() -> None:
    code = (
        "import lessmore.adapter, sys; print([m for m in sys.modules if m.startswith(('lessmore.serve', 'fastapi'))])"
    )
    told = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": ":".join(sys.path)}, capture_output=True, text=True
    )
    assert told.stdout.strip() == "[]", told
