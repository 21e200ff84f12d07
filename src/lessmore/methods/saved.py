"""What a saved state of a method looks like, and whether its numbers make sense.

A method says nothing of this if its state has fixed shapes and finite numbers. Else it has one or both of

    state_forms()         the forms of its tensors, where their lengths change or some come later
    state_problem(state)  a static method: why tensors of these forms cannot be a state, or None
"""

from __future__ import annotations

from lessmore.methods.registry import Method, find_method
from lessmore.storage.state import Form, Problem, finite_problem, state_forms


def forms_of(method: Method) -> dict[str, Form]:
    """The forms of a method's state."""
    own = getattr(method, "state_forms", None)
    forms: dict[str, Form] = own() if own else state_forms(method.state())
    return forms


def problem_of(name: str) -> Problem:
    """What says why a state of the named method makes no sense."""
    found: Problem = getattr(find_method(name).maker, "state_problem", finite_problem)
    return found
