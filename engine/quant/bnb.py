"""`bnb-int8`, `bnb-nf4`, `bnb-fp4`: schemes of the library bitsandbytes, if it is installed."""

import importlib
import importlib.util
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.api.errors import BadInput
from engine.kernels.cpu.compiled.build import instructions
from engine.kernels.cpu.many_rows import linear
from engine.kernels.cpu.row_buckets import pad_to_bucket
from engine.quant.registry import register
from engine.quant.shapes import rounded_up, trimmed

# Weights per scale. Rows must be whole blocks, or the library's 4-bit products are silently wrong.
BLOCK = 64
OUTLIER = 6.0  # activations with at least this magnitude are not quantized
FEW = 64  # up to this many rows the CPU's 4-bit product is faster than a dequantized weight
_COLUMNS = 32  # outputs per step of the CPU's 4-bit product


@cache
def library() -> Any:
    """Return bitsandbytes.functional, imported without downloads and without torch's compiler.

    If the package `kernels` is installed, the library downloads kernels from a hub; here it does not find the
    package and logs a warning. It also calls torch.compile for what it has no kernels for, and disables the
    compiler for its own kernels. Both would import the compiler, which takes 6 seconds with a GPU.
    """
    logger = logging.getLogger("bitsandbytes")
    level = logger.level
    logger.setLevel(logging.ERROR)
    for name in ("bitsandbytes.backends.cpu.ops", "bitsandbytes.nn.modules"):
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        with (
            _changed(sys.modules, kernels=None),
            _changed(vars(torch), compile=_unchanged, _disable_dynamo=_unchanged),
        ):
            return importlib.import_module("bitsandbytes.functional")
    except Exception as error:  # its libraries can be incompatible with this machine in many ways
        problem = f"{type(error).__name__}: {error}"
        raise BadInput(f"the library bitsandbytes cannot be used here: {problem}") from error
    finally:
        logger.setLevel(level)


@contextmanager
def _changed(names: dict[str, Any], **changes: Any) -> Iterator[None]:
    before = {name: names[name] for name in changes if name in names}
    names.update(changes)
    try:
        yield
    finally:
        for name in changes:
            names.pop(name, None)
        names.update(before)


def _unchanged(function: Any = None, **_: Any) -> Any:
    """A decorator that does nothing, used with or without options."""
    return _unchanged if function is None else function


def missing() -> str | None:
    """Look for the library without importing it, which takes seconds: listing the schemes must be fast."""
    if importlib.util.find_spec("bitsandbytes") is None:
        return "the library bitsandbytes is not installed; run `pip install bitsandbytes`"
    return None


class OutlierInt8(nn.Module):
    """LLM.int8: a row's regular numbers in 8 bits, scaled by the row's maximum, and unquantized outliers.

    The library treats a whole column of the batch as an outlier if any row has one, so a row's result would
    depend on the other rows. Here each number is classified separately; columns only determine what is
    computed.
    """

    weight: Tensor
    scale: Tensor

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        numbers, scale, _ = library().int8_vectorwise_quant(weight.to(torch.float16))
        self.register_buffer("weight", numbers, persistent=False)
        self.register_buffer("scale", scale.float(), persistent=False)
        self.bias = bias

    def forward(self, x: Tensor) -> Tensor:
        beyond = x.abs() >= OUTLIER
        ordinary = x.masked_fill(beyond, 0).to(torch.float16)
        numbers, scale, _ = library().int8_vectorwise_quant(ordinary)
        products = library().int8_linear_matmul(numbers, self.weight)
        out = (products * (scale.float()[:, None] / 127)).mul_(self.scale / 127)
        columns = beyond.any(0).nonzero()[:, 0]
        if len(columns):
            few = torch.where(beyond[:, columns], x[:, columns], 0).float()
            out += few @ (self.weight[:, columns].float() * (self.scale / 127)[:, None]).T
        out = out.to(x.dtype)
        return out if self.bias is None else out.add_(self.bias)

    def dequantized(self) -> Tensor:
        """Return the weight it multiplies with, [outputs, inputs] in float32."""
        return self.weight.float() * (self.scale / 127)[:, None]


def _packs(dtype: torch.dtype) -> bool:
    """Whether this CPU can run the kernel for packed numbers. Their scales are in bfloat16."""
    return dtype is torch.bfloat16 and "avx512_bf16" in instructions()


class FourBits(nn.Module):
    """4 bits per weight and a scale per BLOCK. Widths are padded to whole blocks."""

    numbers: Tensor
    scale: Tensor

    def __init__(self, weight: Tensor, bias: Tensor | None, kind: str) -> None:
        super().__init__()
        self.outputs, self.inputs = weight.shape
        self.width = rounded_up(self.inputs, BLOCK)
        self.bias = bias
        self.packed = weight.device.type == "cpu" and _packs(weight.dtype) and library().has_avx512bf16()
        below = rounded_up(self.outputs, _COLUMNS) - self.outputs if self.packed else 0
        padded = F.pad(weight, (0, self.width - self.inputs, 0, below))
        numbers, self.state = library().quantize_4bit(padded, blocksize=BLOCK, quant_type=kind)
        if self.packed:
            numbers, self.state = library()._convert_weight_packed_for_cpu(numbers, self.state)
        self.register_buffer("numbers", numbers, persistent=False)
        self.register_buffer("scale", self.state.absmax, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.width > self.inputs:
            x = F.pad(x, (0, self.width - self.inputs))
        if len(x) <= FEW and self.packed:
            out = library().gemv_4bit(x.contiguous(), self.numbers, state=self.state)
        elif len(x) <= FEW and x.device.type == "cuda":
            out = self._on_gpu(x)
        else:
            out = linear(pad_to_bucket(x), self._plain(x.dtype))[: len(x)]
        out = trimmed(out, self.outputs)
        return out if self.bias is None else out + self.bias

    def _on_gpu(self, x: Tensor) -> Tensor:
        out: Tensor = sys.modules["bitsandbytes"].matmul_4bit(x, self.numbers, self.state)
        return out

    def _plain(self, dtype: torch.dtype) -> Tensor:
        """[outputs, inputs] with padding."""
        if not self.packed:
            whole: Tensor = library().dequantize_4bit(self.numbers, self.state)
            return whole.to(dtype)
        scale = self.scale.T.float().reshape(-1)
        shape, kind = self.state.shape, self.state.quant_type
        out: Tensor = torch.ops.bitsandbytes.dequantize_4bit(
            self._unpacked(), scale, BLOCK, kind, shape, dtype
        )
        return out

    def _unpacked(self) -> Tensor:
        """Return the numbers in the library's initial layout: two adjacent inputs of a row in a byte.

        The packed layout groups 32 outputs: for each input, 16 are in the low bits and 16 in the high bits.
        """
        pairs = self.numbers.view(-1, self.width // 2, _COLUMNS // 2, 2)
        first, second = pairs[..., 0], pairs[..., 1]
        halves = torch.stack(((first & 15) << 4 | second & 15, first & 240 | second >> 4), 2)
        return halves.flatten(2).transpose(1, 2).reshape(-1)

    def dequantized(self) -> Tensor:
        """Return the weight it multiplies with, [outputs, inputs] in float32."""
        return self._plain(torch.float32)[: self.outputs, : self.inputs]


@dataclass(frozen=True, slots=True)
class BnbInt8:
    name: str = "bnb-int8"
    rounds_activations: bool = True
    graphs: bool = False  # finding the outliers synchronizes with the device
    head: str = "none"  # as in the library
    kernels: str = "bitsandbytes: int8 products, and plain ones for outliers"

    def why_not(self, device: torch.device, dtype: torch.dtype) -> str | None:
        return missing()

    def nbytes(self, outputs: int, inputs: int, dtype: torch.dtype, device: torch.device) -> int:
        return outputs * inputs + 4 * outputs

    def make(self, weight: Tensor, bias: Tensor | None) -> nn.Module:
        return OutlierInt8(weight, bias)


@dataclass(frozen=True, slots=True)
class BnbFourBits:
    kind: str
    rounds_activations: bool = False
    graphs: bool = True
    head: str = "none"
    kernels: str = "bitsandbytes: 4-bit products for few rows, plain ones with a dequantized weight"

    @property
    def name(self) -> str:
        return f"bnb-{self.kind}"

    def why_not(self, device: torch.device, dtype: torch.dtype) -> str | None:
        return missing()

    def nbytes(self, outputs: int, inputs: int, dtype: torch.dtype, device: torch.device) -> int:
        packed = device.type == "cpu" and _packs(dtype) and library().has_avx512bf16()
        rows, scale = (rounded_up(outputs, _COLUMNS), 2) if packed else (outputs, 4)
        return rows * rounded_up(inputs, BLOCK) * (BLOCK // 2 + scale) // BLOCK

    def make(self, weight: Tensor, bias: Tensor | None) -> nn.Module:
        return FourBits(weight, bias, self.kind)


register(BnbInt8())
for _kind in ("nf4", "fp4"):
    register(BnbFourBits(_kind))
