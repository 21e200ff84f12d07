"""A real PostgreSQL and a real S3 protocol server, started here on free loopback ports, stopped in the middle."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from lessmore.errors import ConfigError
from lessmore.serve.errors import TakenOverError, UnavailableError
from lessmore.serve.objectstore import ObjectStore
from lessmore.serve.opened import open_store
from lessmore.serve.registry import StreamRegistry, StreamRow
from lessmore.serve.settings import ServerSettings
from tests.serve.server import expected, free_port, fresh_adapter, pictures, running, saved_state, scores_of

pytestmark = pytest.mark.services
pytest.importorskip("psycopg", reason="needs the extra services")


class Postgres:
    """A cluster of its own in a temporary folder; PostgreSQL refuses to run as root, so root runs it as nobody."""

    def __init__(self, folder: Path) -> None:
        found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
        home = shutil.which("initdb") or (str(found[-1]) if found else None)
        if home is None:
            pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
        self.bin, self.data, self.port = Path(home).resolve().parent, folder / "data", free_port()
        self.user = "nobody" if os.getuid() == 0 else None
        if self.user:
            os.chown(folder, pwd.getpwnam(self.user).pw_uid, -1)
        self.run("initdb", "-D", self.data, "-U", "lessmore", "-A", "trust", "--no-sync")

    def run(self, program: str, *words: str | Path) -> None:
        command = [str(self.bin / program), *map(str, words)]
        told = subprocess.run(command, user=self.user, capture_output=True, text=True, cwd="/", timeout=120)
        assert told.returncode == 0, told.stderr

    def start(self) -> None:
        options = f"-p {self.port} -h 127.0.0.1 -k {self.data} -F"
        log = self.data / "log"
        self.run("pg_ctl", "-D", self.data, "-o", options, "-l", log, "-w", "start")

    def stop(self) -> None:
        self.run("pg_ctl", "-D", self.data, "-m", "immediate", "-w", "stop")

    @property
    def url(self) -> str:
        return f"postgresql+psycopg://lessmore@127.0.0.1:{self.port}/postgres"


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with TemporaryDirectory(dir="/tmp") as name:
        os.chmod(name, 0o755)
        cluster = Postgres(Path(name))
        cluster.start()
        yield cluster
        cluster.stop()


def test_the_registry_says_the_same_in_both(postgres: Postgres, tmp_path: Path) -> None:
    rows = [
        StreamRow(f"s{i}", "ab"[i % 2], None if i else "naïve 'name'; --", {"classes": ["é", "b"]}) for i in range(5)
    ]
    told = []
    for url in (f"sqlite:///{tmp_path}/registry.db", postgres.url):
        registry = StreamRegistry(url, fsync=False)
        for row in rows:
            registry.add(row)
        registry.configure("s1", {"classes": ["z"]})
        registry.remove("s2")
        pages = registry.page(None, "", 2), registry.page("a", "", 10), registry.page(None, "s3", 10)
        told.append((registry.count(), registry.find("s1"), registry.find("s2"), pages))
        for row in rows:
            registry.remove(row.id)
        registry.close()
    assert told[0] == told[1] and told[0][0] == 4


def test_a_server_on_postgres_that_is_killed_and_restarted(postgres: Postgres, tmp_path: Path) -> None:
    flags, adapter = ("--db", postgres.url, "--max-batch", "1"), fresh_adapter()
    with running(tmp_path / "store", *flags) as server:
        server.create("door")
        for image in pictures()[:4]:
            assert scores_of(server.send("door", image)) == expected(adapter, image)
        server.kill()
    with running(tmp_path / "store", *flags) as server:
        assert scores_of(server.send("door", pictures()[4])) == expected(adapter, pictures()[4])
        postgres.stop()
        told = server.client.post("/v1/streams", json={"id": "other"})
        assert (told.status_code, told.json()["error"]["type"]) == (503, "unavailable")
        assert int(told.headers["Retry-After"]) > 0
        assert scores_of(server.send("door", pictures()[5])) == expected(adapter, pictures()[5])
        postgres.start()
        server.create("other")
        assert server.state("door") == saved_state(adapter, tmp_path)
        assert "traceback" not in server.log.read_text()


def test_what_is_no_database(tmp_path: Path) -> None:
    for url in ("nonsense", "nonsense://x", "sqlite:////no/such/folder/x.db", "postgresql+psycopg://127.0.0.1:1/x"):
        with pytest.raises(ConfigError, match="database"):
            StreamRegistry(url, fsync=False)


def test_a_database_that_goes_away_is_unavailable(postgres: Postgres) -> None:
    registry = StreamRegistry(postgres.url, fsync=False)
    postgres.stop()
    with pytest.raises(UnavailableError, match="registry cannot be reached"):
        registry.count()
    postgres.start()
    assert registry.count() >= 0
    registry.close()


def test_a_server_on_s3_that_is_killed_and_restarted(bucket: str, tmp_path: Path) -> None:
    adapter = fresh_adapter()
    flags = ("--db", f"sqlite:///{tmp_path}/registry.db", "--max-batch", "1", "--snapshot-every", "3")
    flags = (*flags, "--max-resident", "1", "--store", f"{bucket}/killed")
    for part in (slice(0, 4), slice(4, 9), slice(9, 11)):
        with running(tmp_path / "log", *flags) as server:
            if part.start == 0:
                server.create("door")
                server.create("other")
            for image in pictures()[part]:
                assert scores_of(server.send("door", image)) == expected(adapter, image)
                server.send("other", image)
            assert server.state("door") == saved_state(adapter, tmp_path)
            server.kill()


def test_a_newer_server_takes_over(bucket: str) -> None:
    """The older one may not write, and what it would have written is ignored."""
    older = ObjectStore(f"{bucket}/taken")
    older.append("s", b"one")
    newer = ObjectStore(f"{bucket}/taken")
    assert older.holds("s") and newer.journal("s") == b"one" and newer.holds("s") and not older.holds("s")
    with pytest.raises(TakenOverError, match="another server has taken over"):
        older.append("s", b"lost")
    newer.append("s", b"two")
    assert newer.journal("s") == b"onetwo"
    newest = ObjectStore(f"{bucket}/taken")
    assert newest.journal("s") == b"onetwo"
    newest.append("s", b"three")
    newest.replace("s", lambda path: path.write_bytes(b"snapshot") and None)
    newest.append("s", b"four")
    last = ObjectStore(f"{bucket}/taken")
    found = last.snapshot("s")
    assert found is not None and found.read_bytes() == b"snapshot" and last.journal("s") == b"four"
    last.delete("s")
    assert last.snapshot("s") is None and last.journal("s") == b"" and not newest.holds("s")


def test_a_store_behind_a_url_needs_a_registry_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="give --db URL"):
        open_store("s3://lessmore-test/x", ServerSettings())
    with pytest.raises(ConfigError, match="cannot be used"):
        ObjectStore("nonsense://x")
