"""Attention over a paged cache on a GPU: what to launch (work, tiles), and the Triton kernels themselves."""
