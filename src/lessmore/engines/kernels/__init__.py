"""Triton kernels of the CUDA engines, each tested against the plain torch functions it stands for.

A kernel may repeat the mathematics of `core`, and says which function it stands for and what runs in parallel.
Nothing else may be stated here that is not stated there. Every module must import without a GPU; tests run them
interpreted.
Read `nearest_anchor.py` first.
"""
