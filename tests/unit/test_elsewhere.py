"""Windows and Macs, as far as this can be tested without them: imports, encodings, calls that exist nowhere else."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import lessmore
from lessmore.errors import ConfigError
from lessmore.models.devices import choose_device

SOURCE = Path(lessmore.__file__).parent
POSIX_MODULES = ("fcntl", "grp", "posix", "pty", "pwd", "resource", "termios", "tty")
_NAMES = """
O_NOCTTY O_NOFOLLOW O_NONBLOCK WNOHANG chown chroot fchmod fchown fork forkpty getegid geteuid getgid getgroups getpgid
getuid killpg lchown mkfifo nice openpty register_at_fork sched_getaffinity setpgid setsid setuid statvfs sync sysconf
uname wait3 wait4
"""
POSIX_CALLS = set(_NAMES.split())
_SIGNALS = """
SIGALRM SIGCHLD SIGHUP SIGKILL SIGPIPE SIGQUIT SIGUSR1 SIGUSR2 alarm pause pthread_sigmask setitimer sigwait
"""
POSIX_SIGNALS = set(_SIGNALS.split())
WITHOUT_POSIX = """
import importlib, os, pkgutil, sys
import torch, numpy, PIL.Image, safetensors.torch, jsonargparse, tqdm, yaml, jinja2, concurrent.futures, multiprocessing
import filelock, logging.handlers, subprocess, tempfile
for name in {calls!r}:
    if hasattr(os, name):
        delattr(os, name)
for name in {modules!r}:
    sys.modules[name] = None
import signal
for name in {signals!r}:
    if hasattr(signal, name):
        delattr(signal, name)
import lessmore
for found in pkgutil.walk_packages(lessmore.__path__, "lessmore."):
    if ".kernels" not in found.name and not found.name.endswith("__main__"):
        try:
            importlib.import_module(found.name)
        except ImportError as error:
            if error.name in {modules!r}:
                raise
from lessmore.engines.cores import usable_cores
assert usable_cores() >= 1
adapter = lessmore.adapt("tiny", ["a circle", "a star"])
adapter(PIL.Image.new("RGB", (64, 64), "red"))
adapter.save({state!r})
adapter.restore({state!r})
from lessmore.cli import main
os.mkdir({photos!r})
for name in ("a", "b"):
    PIL.Image.new("RGB", (64, 64), "red").save(os.path.join({photos!r}, name + ".png"))
try:
    import av
    watched = main(["watch", {photos!r}, "--model", "tiny", "--classes", "a circle,a star", "--once", "--quiet"])
except ImportError:
    watched = 0
print(sorted(name for name in sys.modules if name.count(".") == 1 and name.startswith("lessmore.")))
print("well" if watched == 0 else "watch gave " + str(watched))
"""


def test_everything_imports_and_runs_where_there_is_no_posix(tmp_path: Path) -> None:
    places = {"state": str(tmp_path / "state"), "photos": str(tmp_path / "photos")}
    names = {"calls": sorted(POSIX_CALLS), "signals": sorted(POSIX_SIGNALS), "modules": POSIX_MODULES}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_POSIX.format(**names, **places)], capture_output=True, text=True
    )
    assert done.stdout.strip().endswith("well"), done.stderr[-2000:]
    for room in ("adapter", "cameras", "cli", "data", "engines", "lab", "methods", "models", "paper", "serve"):
        assert f"'lessmore.{room}'" in done.stdout


def sources() -> Iterator[tuple[str, str, ast.AST]]:
    """Every node of the package's code: where it is, the file's text, the node."""
    for file in sorted(SOURCE.rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)):
            yield f"{file.relative_to(SOURCE).as_posix()}:{getattr(node, 'lineno', 0)}", text, node


def modules_of(node: ast.AST) -> set[str]:
    """What an import statement imports."""
    if isinstance(node, ast.Import):
        return {one.name for one in node.names}
    return {node.module or ""} if isinstance(node, ast.ImportFrom) else set()


def test_calls_of_posix_alone_are_guarded() -> None:
    """A module uses such a call only if it asks for it by name, and such a module only if it asks for the platform."""
    unguarded = []
    for place, text, node in sources():
        owner, call = (ast.unparse(node.value), node.attr) if isinstance(node, ast.Attribute) else ("", "")
        posix = {"os": POSIX_CALLS, "signal": POSIX_SIGNALS}.get(owner, set())
        if call in posix and f'hasattr({owner}, "{call}")' not in text:
            unguarded.append(f"{place} {owner}.{call}")
        if call in ("add_signal_handler", "AF_UNIX"):
            unguarded.append(f"{place} {owner}.{call}")
        if modules_of(node) & set(POSIX_MODULES) and 'sys.platform == "win32"' not in text:
            unguarded.append(f"{place} {modules_of(node)}")
    assert unguarded == []


def test_text_files_are_read_and_written_in_utf_8() -> None:
    """Windows would otherwise take the code page of the machine."""
    calls = [(place, node) for place, _, node in sources() if isinstance(node, ast.Call)]
    texts = [(place, node) for place, node in calls if getattr(node.func, "attr", "") in ("read_text", "write_text")]
    assert texts
    assert [place for place, node in texts if not any(word.arg == "encoding" for word in node.keywords)] == []


def test_a_server_says_by_name_that_it_does_not_run_on_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its store is locked by a call that Windows does not have; nothing is made there before that is said."""
    store = pytest.importorskip("lessmore.serve.store")
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(ConfigError, match="run the server there, or in a container"):
        store.FolderStore(tmp_path / "store", fsync=True)
    assert not (tmp_path / "store").exists()


def test_webcams_have_the_names_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    video = pytest.importorskip("lessmore.cameras.video")
    listed = [SimpleNamespace(name="Front camera"), SimpleNamespace(name="Microscope")]
    monkeypatch.setattr(
        video.av, "enumerate_input_devices", lambda form: listed if form == "dshow" else [], raising=False
    )
    found = {}
    for system in ("linux", "darwin", "win32"):
        monkeypatch.setattr(sys, "platform", system)
        found[system] = video._webcam(1)[:2]
    assert found == {
        "linux": ("/dev/video1", "v4l2"),
        "darwin": ("1", "avfoundation"),
        "win32": ("video=Microscope", "dshow"),
    }
    with pytest.raises(OSError, match="there are 2 cameras"):
        video._webcam(2)


@pytest.mark.parametrize("name", ["mps", "xpu:9", "cuda:99"])
def test_a_device_that_is_not_there_is_refused_by_name(name: str) -> None:
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError, NotImplementedError):
        with pytest.raises(ConfigError, match=rf"device '{name}' cannot be used .*; take auto or cpu"):
            choose_device(name)
    else:
        assert str(choose_device(name)) == name
