"""Kernels that write, move and fetch cache cells and block tables."""
