"""Kernels of linear attention."""
