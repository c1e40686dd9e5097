"""Launches that are off until they have been timed on a GPU, and their CUDA tests pass (docs/gpu-steps.md).

tests/kernels/steps/recorded has what is launched: after a change, write it again (test_launches.py).
"""

ONE_ROW = False  # one row of a mixture of experts in three kernels
WITH_BIAS = False  # one row's product with a bias in a kernel of ours
NORMED_TERMS = False  # blocks that norm their parts' terms as a chain of the parts' launches
GELU = False  # gated feed-forwards with gelu by tanh
FETCH = False  # contexts of few rows are read into the L2 cache before attention waits for their last token
