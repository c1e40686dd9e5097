"""New launches, each of which can be turned off; off are those that no GPU has timed (docs/gpu-steps.md).

tests/kernels/steps/recorded has what is launched: after a change, write it again (test_launches.py).
"""

SHORT_NORMS = True  # of transformers' models: in two launches instead of eight (models/bridge/norms.py)
ONE_ROW = True  # one row of a mixture of experts in three kernels
WITH_BIAS = True  # one row's product with a bias in a kernel of ours
NORMED_TERMS = True  # blocks that norm their parts' terms as a chain of the parts' launches
GELU = True  # gated feed-forwards with gelu by tanh
FETCH = False  # contexts of few rows are read into the L2 cache before attention waits for their last token
