"""The activations of feed-forwards, by their names in engine/models/kinds/."""

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor

ACTIVATE: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
}


def sigmoid(x: Tensor) -> Tensor:
    """Return the sigmoid; its bits do not depend on other rows, as torch's do in the end of a tensor."""
    return 1 / (1 + (-x).exp())
