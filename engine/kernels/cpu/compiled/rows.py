"""Norms, gates and rotations of bfloat16 by compiled kernels. A row has the same bits in any batch."""

import ctypes
from functools import cache
from math import prod

import torch
from torch import Tensor

from engine.kernels.cpu.compiled import build

_P, _N, _I, _F = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_float
_ARGUMENTS = {
    "norm": (_P, _N, _N, _N, _N, _P, _I, _F, _P, _I),
    "gated": (_P, _N, _N, _P, _I),
    "rotate": (_P, _N, _N, _N, _N, _P, _P, _N, _N, _I),
}


def takes(x: Tensor) -> bool:
    """Whether the kernels can read this tensor here."""
    return x.dtype is torch.bfloat16 and x.is_cpu and _run_here()


@cache
def _run_here() -> bool:
    return build.why_not(build.rows()) is None


@cache
def _kernels() -> ctypes.CDLL:
    found = build.kernels(build.rows())
    for name, arguments in _ARGUMENTS.items():
        getattr(found, name).argtypes = arguments
        getattr(found, name).restype = None
    return found


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The RMS norm of [tokens, width] or [tokens, heads, width].

    `weight`: in float32, of all heads or [heads, width].
    """
    if x.stride(-1) != 1 or (x.dim() == 3 and x.stride(1) != x.shape[2]):
        x = x.contiguous()
    tokens, heads, width = x.shape if x.dim() == 3 else (x.shape[0], 1, x.shape[1])
    out = x.new_empty(x.shape)
    where = x.data_ptr(), x.stride(0), tokens, heads, width
    _kernels().norm(
        *where, weight.data_ptr(), weight.dim() == 2, eps, out.data_ptr(), torch.get_num_threads()
    )
    return out


def gated(x: Tensor) -> Tensor:
    """silu(gate) * up of [..., gates and then as many others]."""
    x, (*rows, both) = x.contiguous(), x.shape
    out = x.new_empty(*rows, both // 2)
    where = x.data_ptr(), prod(rows), both // 2, out.data_ptr()
    _kernels().gated(*where, torch.get_num_threads())
    return out


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Rotate pairs (x[i], x[i + n/2]) of the first n numbers of [tokens, heads, dim], in place.

    Cosines and signed sines: [tokens, 1, n] in bfloat16, with the same strides.
    """
    assert x.stride(2) == 1 and cos.stride() == sin.stride(), "as attention lays them out"
    (tokens, heads, _), (apart, following, _) = x.shape, x.stride()
    angles = cos.data_ptr(), sin.data_ptr(), cos.stride(0), cos.shape[2] // 2
    _kernels().rotate(x.data_ptr(), apart, following, tokens, heads, *angles, torch.get_num_threads())
