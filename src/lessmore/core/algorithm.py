"""One version per kind of result. It is raised whenever the same input comes to give another result.

Every cache key, run key and state file holds the versions it depends on, so that a result of an older version can be
missed but never mistaken for one of this. A test of golden answers fails when results change and the version does not.
"""

from __future__ import annotations

ENCODING = 1
"""Of what the vision tower and the reducers make of pixels."""
CLASS_EMBEDDING = 1
"""Of what the text tower and the prompt ensemble make of a class list."""
ANSWER = 1
"""Of everything from an encoding to an answer: debiasing, reservoir, correction, and every other method."""


def algorithm() -> dict[str, int]:
    """The versions that an answer depends on."""
    return {"encoding": ENCODING, "class_embedding": CLASS_EMBEDDING, "answer": ANSWER}
