"""All tests of cameras read or write real videos."""

from __future__ import annotations

import pytest

pytest.importorskip("av", reason="needs the extra camera")
