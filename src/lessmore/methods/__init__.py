"""Methods: how a stream of images becomes predictions."""

from lessmore.methods import (  # noqa: F401  (registers them)
    cocoop,
    coop,
    ctpt,
    difftpt,
    dota,
    lsa,
    mta,
    neo,
    onzeta,
    sar,
    tca,
    tda,
    tent,
    tpt,
    zero,
    zeroshot,
)
from lessmore.methods.registry import (
    Facts,
    FollowsStream,
    FromEncoded,
    FromViews,
    Method,
    Outcome,
    Setup,
    list_methods,
    make,
    method_options,
    register_method,
    split_options,
)

__all__ = [
    "Facts",
    "FollowsStream",
    "FromEncoded",
    "FromViews",
    "Method",
    "Outcome",
    "Setup",
    "list_methods",
    "make",
    "method_options",
    "register_method",
    "split_options",
]
