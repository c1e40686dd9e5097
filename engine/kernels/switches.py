"""New launches, each of which can be turned off (docs/gpu-steps.md).

tests/kernels/steps/recorded has what is launched: after a change, write it again (test_launches.py).
"""

SHORT_PARTS = True  # norms, rotations and xIELU of transformers' models in one launch each
SHORT_PRODUCTS = True  # their products of one row in our kernel
SHORT_EARLY = True  # these launches of a few rows before the previous kernel ends
ONE_ROW = True  # one row of a mixture of experts in three kernels
IN_TURNS = False  # one row's product with a large FP8 weight in one wave of programs
WITH_BIAS = True  # one row's product with a bias in a kernel of ours
NORMED_TERMS = True  # blocks that norm their parts' terms as a chain of the parts' launches
GELU = True  # gated feed-forwards with gelu by tanh
# What the L2 cache reads ahead
FETCH = True  # short contexts of one row, before attention waits for their last token
FETCH_UP = True  # what adapters multiply by in the kernel that reads a product, as the product ends
FETCH_SHARED = True  # one row: an expert of all rows, before the kernel that also has chosen ones waits
