"""A record of what a step launches: its kernels in order, with their grids, flags and arguments.

Nothing runs and no GPU is needed: tensors hold no data, and launches are only recorded. Tensors are numbered
in the order in which their memory is first seen, so two records are equal only if the data flows the same
way.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from engine.kv.store import KVLayer

# The computations of torch between kernels. Its other calls make views or allocate memory.
COMPUTED = {
    "linear", "matmul", "__matmul__", "_scaled_mm", "silu", "mul", "mul_", "add", "add_", "__add__",
    "__iadd__", "sum", "cat", "rms_norm", "layer_norm", "embedding", "copy_", "index_copy_", "contiguous",
    "to",
}  # fmt: skip


class Record:
    """One line for each launch."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._memory: list[Any] = []  # kept alive, so that no address is reused

    def launched(self, kernel: Any, given: tuple[Any, ...], grid: Any, named: dict[str, Any]) -> None:
        arguments = dict(zip(kernel.arg_names, given, strict=False)) | named
        words = " ".join(f"{name}={self._described(each)}" for name, each in sorted(arguments.items()))
        self.lines.append(f"{kernel.fn.__name__}{tuple(int(each) for each in grid)} {words}")

    def computed(self, name: str, given: tuple[Any, ...], found: Any) -> None:
        words = " ".join(self._described(each) for each in given if each is not None)
        self.lines.append(f"{name} {words} -> {self._described(found)}")

    def _described(self, each: Any) -> str:
        if isinstance(each, Tensor):
            strides = "" if each.is_contiguous() else f"/{','.join(map(str, each.stride()))}"
            at = f"+{each.storage_offset()}" if each.storage_offset() else ""
            kind = str(each.dtype).removeprefix("torch.")
            return f"#{self._number(each)}:{kind}{list(each.shape)}{strides}{at}".replace(" ", "")
        if hasattr(each, "base") and hasattr(each, "block_shape"):  # a tensor descriptor with tiles
            return f"{self._described(each.base)}:{each.shape}:{each.strides}:{each.block_shape}".replace(
                " ", ""
            )
        if isinstance(each, tuple | list):
            return "(" + ",".join(map(self._described, each)) + ")"
        return str(each).removeprefix("torch.").replace(" ", "")

    def _number(self, tensor: Tensor) -> int:
        memory = tensor.untyped_storage()
        for number, seen in enumerate(self._memory):
            if seen._cdata == memory._cdata:
                return number
        self._memory.append(memory)
        return len(self._memory) - 1


class _Torch(TorchFunctionMode):
    def __init__(self, record: Record) -> None:
        super().__init__()
        self._record = record

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        name = getattr(function, "__name__", "")
        gathers = name == "__getitem__" and any(isinstance(each, Tensor) for each in _flat(args[1:]))
        nothing = name in ("to", "contiguous") and found is args[0]
        if gathers or (name in COMPUTED and not nothing):
            self._record.computed(name, (*args, *(kwargs or {}).values()), found)
        return found


def _flat(given: Any) -> Iterator[Any]:
    for each in given:
        yield from _flat(each) if isinstance(each, tuple | list) else (each,)


@contextmanager
def recorded() -> Iterator[Record]:
    """Record the launches in this block without running them. Attention is one line, whatever it launches."""
    from triton.runtime.jit import JITFunction

    from engine.attention.triton_backend import TritonAttention
    from engine.kernels.triton.padding import padded_rows

    record = Record()

    def mix(self: Any, q: Tensor, layer: KVLayer, metadata: Any) -> Tensor:
        out = padded_rows(len(q), layer.spec.heads, layer.spec.value_dim, like=q)
        record.computed("attention", (q, *layer.tensors(), layer.spec.window), out)
        return out

    def run(kernel: Any, *given: Any, grid: Any, warmup: bool, **named: Any) -> None:
        record.launched(kernel, given, grid, named)

    with (
        patch.object(JITFunction, "run", run),
        patch.object(TritonAttention, "mix", mix),
        _Torch(record),
        torch.inference_mode(),
    ):
        yield record
