"""Methods: how a stream of images becomes predictions."""

from lessmore.methods import tca, zeroshot  # noqa: F401  (registers them)
from lessmore.methods.registry import Facts, FromEncoded, Method, Outcome, Setup, list_methods, make, register

__all__ = ["Facts", "FromEncoded", "Method", "Outcome", "Setup", "list_methods", "make", "register"]
