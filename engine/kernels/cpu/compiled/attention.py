"""Attention in bfloat16, by a compiled kernel. Measured in docs/attention-cpu.md."""

import ctypes
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.api.cache_spec import LayerSpec
from engine.kernels.cpu.compiled import build
from engine.kv.store import KVLayer

_MOST = 2**15  # numbers of a token's queries and results, which are on the stack
_P, _N = ctypes.c_void_p, ctypes.c_int64
_ARGUMENTS = (*(_P,) * 5, *(_N,) * 3, *(_P,) * 4, ctypes.c_int)


def why_not(spec: LayerSpec, dtype: torch.dtype) -> str | None:
    """Return None if the kernel attends in such a layer here, else the reason."""
    if dtype is not torch.bfloat16:
        return f"the kernel reads bfloat16, not {dtype}"
    if spec.latent or spec.chunk or spec.kept or spec.slopes or spec.softcap is not None:
        return "the kernel only knows windows and sinks"
    widest = spec.heads * max(spec.key_dim, spec.value_dim)
    if spec.key_dim % 2 or spec.value_dim % 16 or widest > _MOST:
        return f"the kernel has no heads of {spec.key_dim} and {spec.value_dim} numbers"
    return build.why_not(build.attention())


class _Layer(ctypes.Structure):
    """As in attention.c."""

    _fields_ = [
        *((name, _N) for name in ("heads", "kv_heads", "key_dim", "value_dim", "window")),
        ("scale", ctypes.c_float),
    ]


class _Step(ctypes.Structure):
    """As in attention.c."""

    _fields_ = [
        *((name, _P) for name in ("places", "rows", "contexts", "tables")),
        *((name, _N) for name in ("tokens", "width", "block", "total")),
    ]


# What the kernel reads of a layer, or None, by the identity of its spec: hashing one takes as long as a call.
_known: dict[int, tuple[LayerSpec, _Layer | None]] = {}


def takes(layer: KVLayer, q: Tensor) -> bool:
    """Whether the kernel reads and writes this layer's cache as it is."""
    plain = layer.key_scales is None and layer.keys.dtype is torch.bfloat16 is q.dtype
    return plain and q.is_cpu and _layer(layer.spec) is not None and layer.keys.is_contiguous()


def _layer(spec: LayerSpec) -> _Layer | None:
    if (found := _known.get(id(spec))) is None:
        sizes = spec.heads, spec.kv_heads, spec.key_dim, spec.value_dim, spec.window or 0
        made = None if why_not(spec, torch.bfloat16) else _Layer(*sizes, spec.scale)
        found = _known[id(spec)] = spec, made
    return found[1]


@cache
def _kernel() -> Any:
    found = build.kernels(build.attention()).attend
    found.argtypes, found.restype = _ARGUMENTS, ctypes.c_int
    return found


class StepTokens:
    """The tokens of a step, each with its row and its context."""

    def __init__(
        self, places: Tensor, tables: np.ndarray, starts: np.ndarray, contexts: np.ndarray, block: int
    ):
        """`places`: where the keys of all tokens are written. The others are of the rows."""
        counts = np.diff(starts)
        rows = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        # The last token of a row sees all of its context, the one before that one less.
        seen = contexts[rows] - (starts[1:][rows] - 1 - np.arange(len(rows)))
        self._kept = (
            places.contiguous(),
            rows,
            np.ascontiguousarray(seen, np.int32),
            np.ascontiguousarray(tables, np.int32),
        )
        addresses = self._kept[0].data_ptr(), *(each.ctypes.data for each in self._kept[1:])
        self._step = _Step(*addresses, len(places), tables.shape[1], block, int(seen.sum()))
        self._address = ctypes.addressof(self._step)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layer: KVLayer) -> Tensor:
        """Write the keys and values of all tokens, and return [tokens, heads, value_dim]."""
        spec, sinks = layer.spec, layer.sinks
        sizes = _layer(spec)
        assert sizes is not None and q.shape[0] == k.shape[0] == v.shape[0] == self._step.tokens
        out = q.new_empty(len(q), spec.heads, spec.value_dim)
        q, k, v = by_token(q), by_token(k), by_token(v)
        given = q.data_ptr(), k.data_ptr(), v.data_ptr(), q.stride(0), k.stride(0), v.stride(0)
        cells = layer.keys.data_ptr(), layer.values.data_ptr(), None if sinks is None else sinks.data_ptr()
        if _kernel()(
            self._address, ctypes.addressof(sizes), *given, *cells, out.data_ptr(), torch.get_num_threads()
        ):
            raise MemoryError("there is no memory for a step of attention")
        return out


def by_token(x: Tensor) -> Tensor:
    """The same [tokens, heads, dim], with no gaps between the numbers of a token."""
    _, apart, next_one = x.stride()
    return x if next_one == 1 and apart == x.shape[2] else x.contiguous()
