"""How callers use the library, for the type checker; `make lint` reads this file and nothing runs it."""

from __future__ import annotations

import lessmore


def labels(adapter: lessmore.Adapter, paths: list[str]) -> list[str]:
    """Without on_error every element is a prediction; with it, an error may stand in its place."""
    found = [prediction.label for prediction in adapter.stream(paths)]
    found += [one.label for one in adapter.stream("photos/", on_error="yield") if isinstance(one, lessmore.Prediction)]
    return found


def settings() -> lessmore.Adapter:
    """Names are completed by editors, and names of installed packages are allowed."""
    lessmore.adapt("tiny", ["cat"], method="of-another-package", preset="released/eurosat")
    return lessmore.adapt("tiny", ["cat"], method="tda", reducer="tome", engine="cpu", device="auto", dtype="bfloat16")
