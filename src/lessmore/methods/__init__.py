"""Methods: how a stream of images becomes predictions. TCA and every baseline, one file each.

A method holds its state as named tensors, states its `Facts`, and counts its own cost. Whatever two methods share
goes into a file of its own, such as `views.py`. Tables, runs and files of results stay out; they are the business of
`lab`.
Read `zeroshot.py` first, then `tca.py`; `registry.py` has the contract.
"""

from lessmore.methods import (  # noqa: F401  (registers them)
    bca,
    cocoop,
    coop,
    ctpt,
    difftpt,
    dota,
    ecalp,
    lsa,
    mta,
    neo,
    oga,
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
