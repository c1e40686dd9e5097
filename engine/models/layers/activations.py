"""The activations of feed-forwards, by their names in engine/models/kinds/.

On a CPU the bits of a row must not depend on other rows. Torch computes the end of a tensor, or of a thread's
part of it, with other instructions, and some of its functions then round differently. `exp`, `erf` and `tanh`
in float32 do not, so the others are made of these.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.kernels.cpu.compiled import rows


def sigmoid(x: Tensor) -> Tensor:
    if x.is_cuda:
        return torch.sigmoid(x)
    return ((-x.float()).exp_().add_(1)).reciprocal_().to(x.dtype)


def silu(x: Tensor) -> Tensor:
    if x.is_cuda or x.dtype is not torch.float32:  # in 16 bits, the difference is rounded off
        return F.silu(x)
    return x / (-x).exp_().add_(1)


def gelu(x: Tensor) -> Tensor:
    if x.is_cuda:
        return F.gelu(x)
    wide = x.float()
    return (wide * math.sqrt(0.5)).erf_().add_(1).mul_(wide).mul_(0.5).to(x.dtype)


def gelu_tanh(x: Tensor) -> Tensor:
    if x.is_cuda:
        return F.gelu(x, approximate="tanh")
    wide = x.float()
    inner = (wide * wide).mul_(0.044715).add_(1).mul_(wide).mul_(math.sqrt(2 / math.pi))
    return inner.tanh_().add_(1).mul_(wide).mul_(0.5).to(x.dtype)


ACTIVATE: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": silu,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
}


def gated(activate: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """activate(gate) * up of [..., gates and then as many others]."""
    if activate is silu and rows.takes(x):
        return rows.gated(x)
    gate, up = x.chunk(2, dim=-1)
    return activate(gate).mul_(up)
