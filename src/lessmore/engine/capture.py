"""CUDA graphs of functions that work on fixed tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

WARM_UP = 3
"""Runs before the capture, in which kernels are compiled and libraries make their plans."""


@torch.no_grad()
def capture(body: Callable[[], object], state: Iterable[Tensor]) -> torch.cuda.CUDAGraph:
    """Record `body`, which may change the tensors of `state` in place; they are left as they were."""
    tensors = list(state)
    before = [tensor.clone() for tensor in tensors]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP):
            body()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        body()
    for tensor, old in zip(tensors, before, strict=True):
        tensor.copy_(old)
    return graph
