"""One server for all tests that leave it as it is, started when the first of them asks for it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

pytest.importorskip("fastapi", reason="needs the extra serve")
pytest.importorskip("httpx", reason="needs the extra serve")

from tests.serve.server import Server, free_port, running


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("shared") / "store", "--max-batch", "1") as server:
        yield server


@pytest.fixture(scope="session")
def bucket() -> Iterator[str]:
    """A bucket of a server that speaks S3; credentials and address come from the environment, as in production."""
    pytest.importorskip("s3fs", reason="needs the extra services")
    pytest.importorskip("moto", reason="needs the extra services")
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-c", f"from moto.server import main; main(['-H', '127.0.0.1', '-p', '{port}'])"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    given = {"AWS_ENDPOINT_URL": address, "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**given, "AWS_DEFAULT_REGION": "us-east-1"}.items():
            patch.setenv(name, value)
        import httpx
        import s3fs

        for _ in range(600):
            try:
                httpx.get(address)
                break
            except httpx.TransportError:
                time.sleep(0.1)
        s3fs.S3FileSystem().mkdir("lessmore-test")
        yield "s3://lessmore-test"
        server.terminate()
        server.wait()
