"""Triton kernels of the CUDA engines, each tested against the plain torch functions it stands for."""
