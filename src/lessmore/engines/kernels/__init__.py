"""Triton kernels of the CUDA engines, each tested against the plain torch functions it stands for.

A kernel may repeat mathematics that `core` states, and nothing else. Its module says which function it stands for,
what runs in parallel, and why. Every module imports without a GPU; tests then run the kernels interpreted.
Read `nearest_anchor.py` first.
"""
