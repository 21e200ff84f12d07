"""Names of things that packages may add: each given once, found in installed packages, refused where it is unclear."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from lessmore.errors import ConfigError
from lessmore.registry import Registry


def build(**things: object) -> Registry[object]:
    registry: Registry[object] = Registry("gadget", "lessmore.test.gadgets", adopt=lambda found: found)
    for name, thing in things.items():
        registry.add(name, thing)
    return registry


def install(folder: Path, package: str, code: str, entries: str) -> None:
    """A package as pip would leave it, without pip."""
    (folder / f"{package}.py").write_text(code)
    facts = folder / f"{package}-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(f"[lessmore.test.gadgets]\n{entries}\n")


def first() -> None: ...


def second() -> None: ...


def test_a_decorator_gives_a_name() -> None:
    registry = build()
    assert registry.register("one")(first) is first
    assert registry.names() == ["one"]
    assert registry.find("one") is first


def test_a_name_belongs_to_one_thing() -> None:
    registry = build(one=first)
    with pytest.raises(ConfigError, match=r"gadget 'one' is already .*\.first; give .*\.second another name"):
        registry.add("one", second)
    assert registry.find("one") is first


def test_the_same_definition_may_be_registered_again() -> None:
    registry = build()

    def cell() -> object:
        def gadget() -> None: ...

        registry.add("one", gadget)
        return gadget

    cell()
    latest = cell()
    assert registry.find("one") is latest


def test_two_lambdas_are_two_things() -> None:
    registry = build(one=lambda: 1)
    with pytest.raises(ConfigError, match="already"):
        registry.add("one", lambda: 2)


@pytest.mark.parametrize("name", ["", "  ", None, 3])
def test_a_name_is_a_text(name: object) -> None:
    with pytest.raises(ConfigError, match="needs a name"):
        build().add(name, first)  # type: ignore[arg-type]


def test_an_unknown_name_gets_a_suggestion() -> None:
    with pytest.raises(ConfigError, match="unknown gadget 'onne'; did you mean one"):
        build(one=first).find("onne")


def test_an_installed_package_is_imported_when_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import pathlib\npathlib.Path(__file__).with_name('seen').touch()\ngadget = {}"
    install(tmp_path, "toy_lazy", code, "lazy = toy_lazy:gadget")
    monkeypatch.syspath_prepend(tmp_path)
    registry = build(one=first)
    assert registry.names() == ["lazy", "one"]
    assert registry.own() == {"one": first}
    assert not (tmp_path / "seen").exists()
    assert registry.find("lazy") == {}
    assert (tmp_path / "seen").exists()


def test_a_package_may_register_what_it_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import sys\ndef gadget(): ...\nsys.modules['toy_test_registry'].add('own', gadget)\n"
    install(tmp_path, "toy_own", code, "own = toy_own:gadget")
    monkeypatch.syspath_prepend(tmp_path)
    registry = build()
    monkeypatch.setitem(sys.modules, "toy_test_registry", registry)
    assert registry.find("own").__name__ == "gadget"  # type: ignore[attr-defined]
    assert registry.find("own") is registry.own()["own"]


def test_a_package_cannot_take_a_name_that_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "toy_thief", "gadget = 1", "one = toy_thief:gadget")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"'one' is claimed by .*first and by toy_thief:gadget; uninstall one"):
        build(one=first).find("one")


def test_two_packages_cannot_share_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("toy_left", "toy_right"):
        install(tmp_path, package, "gadget = 1", f"both = {package}:gadget")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="claimed by toy_left:gadget and by toy_right:gadget"):
        build().find("both")


@pytest.mark.parametrize("code", ["raise RuntimeError('broken on import')", "other = 1"])
def test_a_broken_package_is_one_typed_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    install(tmp_path, f"toy_broken{len(code)}", code, f"broken = toy_broken{len(code)}:gadget")
    monkeypatch.syspath_prepend(tmp_path)
    registry = build(one=first)
    assert registry.find("one") is first
    with pytest.raises(ConfigError, match=r"'broken' cannot be imported from toy_broken.*reinstall"):
        registry.find("broken")


def test_a_package_that_must_register_and_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "toy_mute", "gadget = 1", "mute = toy_mute:gadget")
    monkeypatch.syspath_prepend(tmp_path)
    registry: Registry[object] = Registry("gadget", "lessmore.test.gadgets")
    with pytest.raises(ConfigError, match="importing toy_mute:gadget registers no gadget 'mute'; decorate it"):
        registry.find("mute")
