"""Everything an operator can set: flags of `lessmore serve`, variables `LESSMORE_SERVE_…`, lines of a YAML file."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_type_hints
from urllib.parse import urlsplit, urlunsplit

from lessmore.errors import ConfigError

Durability = Literal["journal", "snapshot", "none"]
ENVIRONMENT = "LESSMORE_SERVE_"


@dataclass(frozen=True)
class ServerSettings:
    """Settings of one server."""

    model: Annotated[str, "an embedded model, a hub id, a folder, or open_clip:NAME/TAG"] = "tiny"
    classes: Annotated[str | None, "class list of streams that bring none: a file with one per line, or a,b,c"] = None
    host: Annotated[str, "address to listen on; any but a loopback address needs --api-keys"] = "127.0.0.1"
    port: Annotated[int, "port to listen on; 0 takes a free one"] = 8080
    store: Annotated[str | None, "folder or fsspec URL of journals and snapshots; ~/.local/share/lessmore/serve"] = None
    db: Annotated[str | None, "SQLAlchemy URL of the registry; SQLite in the store's folder"] = None
    api_keys: Annotated[str | None, "YAML file of hashed API keys; see --make-key"] = None
    durability: Annotated[Durability, "journal: no sent answer is lost; snapshot: at most --snapshot-every"] = "journal"
    fsync: Annotated[bool, "wait for the disk before an answer leaves: survives loss of power, too"] = False
    snapshot_every: Annotated[int, "images between two snapshots of a stream"] = 500
    max_batch: Annotated[int, "images of different streams encoded together; 1 answers exactly as an Adapter does"] = 16
    max_wait_ms: Annotated[float, "time to wait for a batch to fill"] = 0.0
    queue: Annotated[int, "images that may wait for one stream"] = 64
    queue_total: Annotated[int, "images that may wait in all"] = 1024
    max_resident: Annotated[int, "streams kept in memory; the others come back with their next image"] = 256
    memory_limit_mb: Annotated[int, "memory that the states of streams may take"] = 4096
    max_classes: Annotated[int, "classes of one stream"] = 1000
    max_body_mb: Annotated[int, "largest body of a request"] = 64
    max_bodies_mb: Annotated[int, "bodies held at the same time, all together"] = 512
    body_timeout: Annotated[float, "seconds that a client may pause while it sends a body"] = 30.0
    timeout_ms: Annotated[int, "time an image may wait where the client sets no X-Timeout-Ms"] = 30_000
    grace: Annotated[float, "seconds after SIGTERM in which queued images are still answered"] = 30.0
    decoders: Annotated[int, "processes that decode images; 0 takes one for each core"] = 0
    engine: Annotated[str, "cpu or eager; auto takes the fastest for the device"] = "auto"
    device: Annotated[str, "cpu, cuda, cuda:1; auto takes a GPU if there is one"] = "auto"
    thumbnails: Annotated[bool, "keep small pictures of newest and stored images in memory, for the live page"] = False
    dtype: Annotated[str, "type of the weights: float32, bfloat16 or float16"] = "float32"
    ray: Annotated[int, "replicas under Ray Serve, which share --store and --db by URL; 0 serves from here"] = 0
    log: Annotated[Literal["json", "quiet"], "json: a line per request on stderr; quiet: warnings alone"] = "json"

    def __post_init__(self) -> None:
        for name in _POSITIVE:
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be above 0, not {getattr(self, name)}")
        for name in _AT_LEAST_ZERO:
            if not getattr(self, name) >= 0:
                raise ConfigError(f"{name} must be 0 or more, not {getattr(self, name)}")
        if not 0 <= self.port < 65536:
            raise ConfigError(f"port must be 0 to 65535, not {self.port}")
        if not self.loopback and self.api_keys is None:
            raise ConfigError(
                f"host {self.host} can be reached from other machines, and there are no API keys; "
                "give --api-keys FILE, or listen on 127.0.0.1"
            )

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        try:
            return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def store_place(self) -> str:
        """Where journals and snapshots lie."""
        home = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
        return self.store or str(Path(home).expanduser() / "lessmore" / "serve")

    def printable(self) -> dict[str, Any]:
        """All settings, without the passwords that URLs may hold."""
        return {name: without_password(value) for name, value in asdict(self).items()}


class Option(NamedTuple):
    """A setting, as a command line needs to know it."""

    name: str
    kind: Any
    default: Any
    help: str


def options() -> list[Option]:
    """All settings."""
    hints = get_type_hints(ServerSettings, include_extras=True)
    return [Option(one.name, *_kind_and_help(hints[one.name], one.default)) for one in fields(ServerSettings)]


def _kind_and_help(hint: Any, default: Any) -> tuple[Any, Any, str]:
    kind, text = get_args(hint)
    return kind, default, text


_POSITIVE = (
    "snapshot_every", "max_batch", "queue", "queue_total", "max_resident", "memory_limit_mb", "max_classes",
    "max_body_mb", "max_bodies_mb", "body_timeout", "timeout_ms",
)  # fmt: skip
_AT_LEAST_ZERO = ("max_wait_ms", "grace", "decoders", "ray")


def without_password(value: Any) -> Any:
    """The value; of a URL with a user, the user's part and its query are hidden."""
    if not isinstance(value, str) or "://" not in value:
        return value
    parts = urlsplit(value)
    place = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"***@{place}" if "@" in parts.netloc else place, query=""))


def from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Settings that the environment names, as texts.

    Raises:
        ConfigError: A variable with our prefix names no setting.
    """
    known = {ENVIRONMENT + one.name.upper(): one.name for one in fields(ServerSettings)}
    given = {name: value for name, value in environment.items() if name.startswith(ENVIRONMENT)}
    for name in given:
        if name not in known:
            raise ConfigError(f"{name} is no setting of lessmore serve; see lessmore serve --help")
    return {known[name]: value for name, value in given.items()}
