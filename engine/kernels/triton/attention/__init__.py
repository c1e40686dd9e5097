"""Attention over a paged cache on a GPU: work plans, tile sizes and the Triton kernels."""
