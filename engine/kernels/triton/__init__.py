"""Triton kernels: what NVIDIA GPUs run."""
