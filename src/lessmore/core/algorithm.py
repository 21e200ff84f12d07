"""One version per kind of result. Raise it whenever the same input gives another result than before.

Every cache key, run key and state file holds the versions it depends on. So an older result may be recomputed, but is
never mistaken for a current one. A test of golden answers fails if results change and the version does not.
"""

from __future__ import annotations

ENCODING = 1
"""From pixels to an encoding: vision tower and reducers."""
CLASS_EMBEDDING = 1
"""From a class list to its embeddings: text tower and prompt ensemble."""
ANSWER = 1
"""From an encoding to an answer: debiasing, reservoir, correction, and every other method."""
CONFIDENCE = 1
"""Of how sure an answer is said to be."""

UNKNOWN = 1
"""Of which images are called unknown; only results of runs that ask for it depend on it."""


def algorithm() -> dict[str, int]:
    """The versions that an answer depends on."""
    return {"encoding": ENCODING, "class_embedding": CLASS_EMBEDDING, "answer": ANSWER, "confidence": CONFIDENCE}
