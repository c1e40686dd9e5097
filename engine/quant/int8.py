"""`int8`: 8-bit integers and a scale per output. Activations are not rounded."""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn

from engine.kernels.cpu import int8_digits
from engine.kernels.cpu.compiled import product as compiled
from engine.kernels.cpu.int8_digits import Int8Digits
from engine.kernels.cpu.many_rows import needs_float32
from engine.kernels.cpu.row_buckets import pad_to_bucket
from engine.quant.registry import register
from engine.quant.shapes import numbers_at_once, rounded_up, side_by_side

FEW = 8  # up to this many rows a CPU sums the table's rows; for more, dequantizing is faster
WIDTH = 256  # most outputs of a table block: their sums fit in a CPU's registers
TOGETHER = 128  # blocks summed per call, so that the index list for a head is not needed as a whole
_TAIL = (1.0, -128.0)  # the end of a table row: the scale and the offset of its numbers
TAIL = 8  # bytes of it

_ops = torch.ops.quantized


def quantized(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return [outputs, inputs] as int8 in -127 to 127, and the scales [outputs] in float32."""
    numbers = torch.empty_like(weight, dtype=torch.int8)
    scale = torch.empty(len(weight), device=weight.device)
    rows = max(1, numbers_at_once(weight.device) // weight.shape[1])
    for part, into, step in zip(weight.split(rows), numbers.split(rows), scale.split(rows), strict=True):
        step.copy_(part.abs().amax(1)).div_(127).clamp_(min=1e-20)
        into.copy_(torch.round(part.float() / step[:, None]))
    return numbers, scale


def table_blocks(outputs: int) -> tuple[int, int]:
    """How many blocks a table with a byte per number has, and their width."""
    blocks = -(-outputs // WIDTH)
    return blocks, rounded_up(-(-outputs // blocks), 32)


def table_bytes(outputs: int, inputs: int) -> int:
    blocks, width = table_blocks(outputs)
    return blocks * inputs * (width + TAIL)


@dataclass(frozen=True, slots=True)
class Int8Weight:
    """A weight that is already stored as 8-bit integers: numbers * scale, with a scale per output."""

    numbers: Tensor  # [outputs, inputs] int8
    scale: Tensor  # [outputs] float32

    @property
    def shape(self) -> torch.Size:
        return self.numbers.shape

    def part(self, rows: slice) -> tuple[Tensor, Tensor]:
        return self.numbers[rows], self.scale[rows]

    def cut(self, rows: slice, columns: slice = slice(None)) -> "Int8Weight":
        """Return these outputs and inputs."""
        return Int8Weight(self.numbers[rows, columns].contiguous(), self.scale[rows])

    def dequantized(self) -> Tensor:
        """[outputs, inputs] in float32."""
        return self.numbers.float() * self.scale[:, None]


def held(weight: Int8Weight, bias: Tensor | None, dtype: torch.dtype) -> nn.Module:
    """Return a product with this weight. `dtype`: of the activations."""
    if weight.numbers.device.type == "cpu":
        if compiled.why_not(8, dtype) is None:
            return compiled.Int8Panels(weight.numbers, weight.scale, bias)
        digits = int8_digits.why_not(dtype) is None
        return Int8Digits(weight.numbers, weight.scale, bias) if digits else Int8Table(weight, bias)
    # Imported here: it needs Triton, which may be missing without a GPU.
    from engine.quant.gpu_products import Int8Product

    return Int8Product(weight.numbers, weight.scale, bias)


class Int8Table(nn.Module):
    """On a CPU, where Int8Panels and Int8Digits cannot run. Inputs are rows of a table, in blocks of outputs;
    a product is a weighted sum of rows.

    Recommendation models do the same with embeddings, and torch's kernel for it (from FBGEMM) reads one byte
    per number at memory speed. Sums are in float32. For many rows, one block at a time is converted to the
    activations' dtype, which holds 8-bit integers exactly.
    """

    table: Tensor
    scale: Tensor

    def __init__(self, weight: Tensor | Int8Weight, bias: Tensor | None) -> None:
        super().__init__()
        outputs, inputs = weight.shape
        self.outputs, self.inputs = outputs, inputs
        self.blocks, self.width = table_blocks(outputs)
        table = torch.full((self.blocks, inputs, self.width + TAIL), 128, dtype=torch.uint8)
        table[..., self.width :] = torch.tensor(_TAIL).view(torch.uint8)
        scale = torch.empty(outputs)
        for at in range(self.blocks):
            here = slice(at * self.width, (at + 1) * self.width)
            rounded = weight.part(here) if isinstance(weight, Int8Weight) else quantized(weight[here])
            numbers, scale[here] = rounded
            table[at, :, : len(numbers)] = (numbers.view(torch.uint8) ^ 128).T  # offset by 128
        self.register_buffer("table", table, persistent=False)
        self.register_buffer("scale", scale, persistent=False)
        self.bias = bias

    def forward(self, x: Tensor) -> Tensor:
        sums = self._few(x) if len(x) <= FEW else self._many(x)
        out = (sums[: len(x), : self.outputs] * self.scale).to(x.dtype)
        return out if self.bias is None else out.add_(self.bias)

    def _few(self, x: Tensor) -> Tensor:
        return side_by_side([self._summed(x, tables) for tables in self.table.split(TOGETHER)])

    def _summed(self, x: Tensor, tables: Tensor) -> Tensor:
        """[rows, outputs] of these blocks, before scaling."""
        (blocks, inputs), rows = tables.shape[:2], len(x)
        indices, borders = walk(blocks, rows, inputs, inputs)
        weights = x.float().expand(blocks, rows, inputs).reshape(-1)
        sums: Tensor = _ops.embedding_bag_byte_rowwise_offsets(
            tables.view(blocks * inputs, -1), indices, borders, False, 0, False, weights, None, True
        )
        return sums.view(blocks, rows, self.width).transpose(0, 1).reshape(rows, -1)

    def _many(self, x: Tensor) -> Tensor:
        """Like `_few`, with additional rows for the padding."""
        if x.dtype is torch.float16 or needs_float32(x):
            x = x.float()  # unscaled sums could overflow float16
        x = pad_to_bucket(x)
        out = x.new_empty(len(x), self.blocks * self.width)
        numbers = torch.empty(self.inputs, self.width, dtype=torch.uint8)
        block = torch.empty(self.inputs, self.width, dtype=x.dtype)
        for at, part in enumerate(out.split(self.width, 1)):
            # Flipping the highest bit removes the offset of 128.
            torch.bitwise_xor(self.table[at, :, : self.width], 128, out=numbers)
            part.copy_(x @ block.copy_(numbers.view(torch.int8)))
        return out

    def dequantized(self) -> Tensor:
        """Return the weight it multiplies with, [outputs, inputs] in float32."""
        numbers = self.table[..., : self.width].transpose(1, 2).reshape(-1, self.inputs)[: self.outputs]
        return (numbers.float() - 128) * self.scale[:, None]


@lru_cache(maxsize=64)
def walk(blocks: int, rows: int, inputs: int, together: int) -> tuple[Tensor, Tensor]:
    """Return the table rows to sum, block by block, once per row of x, and where each sum begins.

    `together`: the number of table rows per sum.
    """
    table = torch.arange(blocks * inputs, dtype=torch.int32).view(blocks, 1, inputs)
    indices = table.expand(blocks, rows, inputs).reshape(-1)
    return indices, torch.arange(0, len(indices) + 1, together, dtype=torch.int32)


@dataclass(frozen=True, slots=True)
class Int8:
    name: str = "int8"
    rounds_activations: bool = False
    graphs: bool = True
    head: str = "int8"
    kernels: str = "a compiled or integer product or byte table sums on a CPU, Triton on CUDA"

    def why_not(self, device: torch.device, dtype: torch.dtype) -> str | None:
        return None

    def nbytes(self, outputs: int, inputs: int, dtype: torch.dtype, device: torch.device) -> int:
        if device.type == "cpu":
            if compiled.why_not(8, dtype) is None:
                return compiled.nbytes(8, outputs, inputs, compiled.GROUP)
            if int8_digits.why_not(dtype) is not None:
                return table_bytes(outputs, inputs) + 4 * outputs
        return outputs * inputs + 4 * outputs

    def make(self, weight: Tensor, bias: Tensor | None) -> nn.Module:
        if weight.device.type == "cpu" and int8_digits.why_not(weight.dtype) is not None:
            return Int8Table(weight, bias)  # which rounds a block at a time
        return held(Int8Weight(*quantized(weight)), bias, weight.dtype)


register(Int8())
