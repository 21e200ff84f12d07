"""What a saved state of a method looks like, whether its numbers make sense, and how it follows a class list.

A method says nothing of the first two if its state has fixed shapes and finite numbers. Else it has one or both of

    state_forms()         the forms of its tensors, where their lengths change or some come later
    state_problem(state)  a static method: why tensors of these forms cannot be a state, or None

A method whose stream can go on with other classes has

    follow_classes(state, fresh, change)  a static method, see `lessmore.core.class_list`
"""

from __future__ import annotations

from lessmore.core.class_list import FollowClasses
from lessmore.errors import ConfigError
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


def follower_of(name: str) -> FollowClasses:
    """What takes a state of the named method to another class list.

    Args:
        name: Name of the method.

    Raises:
        ConfigError: The method has no rule for that.
    """
    found: FollowClasses | None = getattr(find_method(name).maker, "follow_classes", None)
    if found is None:
        raise ConfigError(
            f"what method {name!r} has learned belongs to its class list; make another adapter with the new list"
        )
    return found
