"""Licences: what CI refuses, and that the page names everything it must."""

from __future__ import annotations

import pytest

from tools.licences import PAGE, Package, installed, kind_of, needed, page_of, violations


@pytest.mark.parametrize(
    ("licence", "kind"),
    [
        ("MIT", "permissive"),
        ("Apache-2.0 WITH LLVM-exception", "permissive"),
        ("Apache-2.0 OR GPL-2.0", "permissive"),
        ("MPL-2.0 AND MIT", "weak copyleft"),
        ("GNU Lesser General Public License v3 (LGPLv3)", "weak copyleft"),
        ("GNU General Public License v3", "strong copyleft"),
        ("AGPL-3.0-only", "strong copyleft"),
        ("GPL-3.0 with the GCC runtime exception", "weak copyleft"),
        ("LicenseRef-NVIDIA-Proprietary", "proprietary"),
        ("not stated", "unknown"),
    ],
)
def test_kinds(licence: str, kind: str) -> None:
    assert kind_of(licence) == kind


@pytest.mark.parametrize("kind", ["strong copyleft", "unknown"])
def test_the_base_refuses_what_binds_its_users(kind: str) -> None:
    bad = Package("bad", "GPL-3.0", kind, True, ())  # type: ignore[arg-type]
    assert "bad is needed by the base" in violations([bad], page_of([bad]))[0]
    assert violations([bad._replace(base=False)], page_of([bad])) == []


def test_what_is_not_permissive_must_be_listed() -> None:
    weak = Package("weak", "MPL-2.0", "weak copyleft", True, ())
    full = Package("full", "MIT", "permissive", True, ("libgomp (GPL-3.0 with the GCC runtime exception)",))
    plain = Package("plain", "MIT", "permissive", True, ())
    assert [text.split()[0] for text in violations([weak, full, plain], "")] == ["weak", "full"]
    assert violations([weak, full, plain], page_of([weak, full, plain])) == []


def test_the_base_is_what_the_package_declares() -> None:
    base = needed("lessmore")
    assert {"torch", "numpy", "pillow", "safetensors", "tqdm", "jsonargparse", "pyyaml"} <= base
    more = {"transformers", "open-clip-torch", "pytest", "ray"}
    assert not base & more
    assert more <= needed("lessmore", ["dev"])


def test_what_is_installed_here_passes() -> None:
    assert violations(installed(), PAGE.read_text(encoding="utf-8")) == []
    assert {"torch", "tqdm"} <= {one.name for one in installed() if one.base}
