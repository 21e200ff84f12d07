"""Methods: how a stream of images becomes predictions. TCA and every baseline, one file each.

A method holds its state as named tensors, states its `Facts`, and counts its own cost. What two methods share has a
file of its own, such as `views.py`. Tables, runs and result files belong to `lab`.
Read `zeroshot.py` first, then `tca.py`; `registry.py` has the contract.
"""

from lessmore.methods import (  # noqa: F401  (registers them)
    batclip,
    bca,
    cocoop,
    coop,
    ctpt,
    deyo,
    difftpt,
    dota,
    ecalp,
    lsa,
    mta,
    neo,
    oga,
    onzeta,
    sar,
    stata,
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
    KeepsOut,
    Method,
    MethodName,
    Outcome,
    Replayable,
    Setup,
    list_methods,
    make_method,
    method_options,
    register_method,
    split_options,
)

__all__ = [
    "Facts",
    "FollowsStream",
    "FromEncoded",
    "FromViews",
    "KeepsOut",
    "Method",
    "MethodName",
    "Outcome",
    "Replayable",
    "Setup",
    "list_methods",
    "make_method",
    "method_options",
    "register_method",
    "split_options",
]
