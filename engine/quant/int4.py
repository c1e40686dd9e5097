"""`int4`: 4-bit integers, with a scale and a zero per group of inputs of an output."""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn

from engine.kernels.cpu.compiled import product as compiled
from engine.kernels.cpu.compiled.product import has_amx
from engine.kernels.cpu.many_rows import needs_float32
from engine.kernels.cpu.row_buckets import pad_to_bucket
from engine.quant.grouped import GroupedWeight, restore_order
from engine.quant.int4_table import Int4Table
from engine.quant.registry import register
from engine.quant.shapes import numbers_at_once, padded, rounded_up, trimmed

GROUPS = (32, 64, 128)  # group sizes, in inputs
FEW = 64  # up to this many rows torch's packed product is faster than dequantizing
TILE = 64  # outputs per tile of the packed layout
PIECE = 256  # outputs dequantized at a time

_pack = torch.ops.aten._convert_weight_to_int4pack_for_cpu
_product = torch.ops.aten._weight_int4pack_mm_for_cpu


def grouped(weight: Tensor, group: int) -> GroupedWeight:
    """Round to the nearest of 16 steps between the minimum and maximum of each group, including 0."""
    outputs, inputs = weight.shape
    width = rounded_up(inputs, group)
    numbers = weight.new_empty(outputs, width, dtype=torch.uint8)
    scale, zero = weight.new_empty(2, outputs, width // group, dtype=torch.float32)
    rows = max(1, numbers_at_once(weight.device) // width)
    for part, into, step, off in zip(
        *(each.split(rows) for each in (weight, numbers, scale, zero)), strict=True
    ):
        floats = padded(part.float(), width - inputs, 0).view(len(part), -1, group)
        low, high = floats.amin(2).clamp_(max=0), floats.amax(2).clamp_(min=0)
        step.copy_((high - low).div_(15).clamp_(min=1e-20))
        off.copy_(-low / step)
        whole = (floats / step[..., None]).add_(off[..., None]).round_().clamp_(0, 15)
        into.copy_(whole.flatten(1))
    return GroupedWeight(numbers, scale, zero)


class CompiledInt4(nn.Module):
    """On a CPU in bfloat16, by a compiled kernel. With AMX, many rows are faster in bfloat16."""

    order: Tensor | None

    def __init__(self, weight: GroupedWeight, bias: Tensor | None, inputs: int) -> None:
        super().__init__()
        self.outputs, self.width = weight.numbers.shape
        self.inputs = inputs
        parts = weight.group // next(each for each in reversed(GROUPS) if not weight.group % each)
        scale, zero = (each.repeat_interleave(parts, 1) for each in (weight.scale, weight.zero))
        self.product = compiled.Int4Panels(weight.numbers, scale, (8 - zero) * scale, bias)
        self.register_buffer("order", weight.order, persistent=False)
        self._as_given = weight.order is None and inputs == self.width

    def forward(self, x: Tensor) -> Tensor:
        if not self._as_given:
            x = x if self.order is None else x[:, self.order]
            x = padded(x, self.width - x.shape[1], 0)
        return self._many(x) if x.shape[0] > FEW and has_amx() else self.product(x)

    __call__ = forward  # as in PackedLinear

    def _many(self, x: Tensor) -> Tensor:
        rows, x = len(x), pad_to_bucket(x)
        pieces = (slice(at, at + PIECE) for at in range(0, self.outputs, PIECE))
        out = torch.cat([x @ self.product.dequantized(each).to(x.dtype).T for each in pieces], 1)[:rows]
        return out if self.product.bias is None else out + self.product.bias

    def dequantized(self) -> Tensor:
        """Return the weight it multiplies with, [outputs, inputs] in float32."""
        return restore_order(self.product.dequantized(), self.order)[:, : self.inputs]


class PackedInt4(nn.Module):
    """Where CompiledInt4 cannot run. Few rows use a product of torch; for more, pieces are dequantized."""

    packed: Tensor
    scale: Tensor
    offset: Tensor
    order: Tensor | None

    def __init__(self, weight: GroupedWeight, bias: Tensor | None, inputs: int) -> None:
        super().__init__()
        self.outputs, self.width = weight.numbers.shape
        self.inputs, self.group = inputs, weight.group
        more = rounded_up(self.outputs, TILE) - self.outputs
        numbers, scale, zero = (padded(each, 0, more) for each in (weight.numbers, weight.scale, weight.zero))
        self.register_buffer("packed", _packed(numbers), persistent=False)
        # The product computes (number - 8) * scale + offset.
        both = torch.stack((scale, (8 - zero) * scale), 2).transpose(0, 1).contiguous()
        self.register_buffer("scale", both.bfloat16(), persistent=False)  # [groups, outputs, 2]
        self.register_buffer("order", weight.order, persistent=False)
        self.bias = bias

    def forward(self, x: Tensor) -> Tensor:
        x = x.contiguous() if self.order is None else x[:, self.order]
        x = padded(x, self.width - x.shape[1], 0)
        if x.dtype is torch.bfloat16 and (len(x) <= FEW or outputs_per_tile() is None):
            out = _product(x, self.packed, self.group, self.scale)
        else:
            out = self._many(x)
        out = trimmed(out, self.outputs)
        return out if self.bias is None else out + self.bias

    __call__ = forward  # as in PackedLinear

    def _many(self, x: Tensor) -> Tensor:
        rows, kind = len(x), x.dtype
        x = x.float() if needs_float32(x) else pad_to_bucket(x)
        outs = [(x @ self._piece(at, x.dtype)).to(kind) for at in range(0, self.scale.shape[1], PIECE)]
        return torch.cat(outs, 1)[:rows]

    def _piece(self, at: int, dtype: torch.dtype) -> Tensor:
        """[inputs, outputs] of up to PIECE outputs, starting at `at`."""
        scale = self.scale[:, at : at + PIECE].to(dtype)
        outputs = scale.shape[1]
        by, more = scale.permute(2, 0, 1).contiguous()[:, :, None]
        numbers = self._numbers(at, outputs).sub_(8).to(dtype).view(len(scale), self.group, outputs)
        return torch.addcmul(more, numbers, by).flatten(0, 1)

    def _numbers(self, at: int, outputs: int) -> Tensor:
        """[inputs, outputs] int16."""
        tile = outputs_per_tile()
        if tile is None:  # unknown layout: multiply by the identity
            return self._unpacked_by_product(at, outputs)
        packed = self.packed[at : at + outputs].view(outputs // tile, self.width, tile // 2)
        numbers = torch.empty(self.width, outputs // tile, 2, tile // 2, dtype=torch.int16)
        # Keeps the packed order as long as possible: torch is fast when neighbors stay adjacent.
        for half, part in enumerate((packed & 15, packed >> 4)):
            numbers[:, :, half].copy_(part.to(torch.int16).transpose(0, 1))
        return numbers.view(self.width, outputs)

    def _unpacked_by_product(self, at: int, outputs: int) -> Tensor:
        whole = torch.zeros_like(self.scale)
        whole[..., 0], whole[..., 1] = 1, 8
        one = torch.eye(self.width, dtype=torch.bfloat16)
        return _product(one, self.packed, self.group, whole)[:, at : at + outputs].to(torch.int16)

    def dequantized(self) -> Tensor:
        """Return the weight it multiplies with, [outputs, inputs] in float32."""
        pieces = [self._piece(at, torch.float32) for at in range(0, self.scale.shape[1], PIECE)]
        return restore_order(torch.cat(pieces, 1).T[: self.outputs], self.order)[:, : self.inputs]


def _packed(numbers: Tensor) -> Tensor:
    """Pack the numbers for the product, whose packing takes int32, piece by piece to limit memory."""
    rows = max(1, numbers_at_once(numbers.device) // numbers.shape[1] // TILE) * TILE
    return torch.cat([_pack(part.to(torch.int32), 1) for part in numbers.split(rows)])


@cache
def outputs_per_tile() -> int | None:
    """Return the number of outputs packed together per input: half in the low bits, half in the high bits.

    It depends on the CPU's instructions, and is found by packing each number's own position.
    """
    column = torch.arange(TILE, dtype=torch.int32)[:, None].expand(TILE, 32)
    low, high = (_pack(each.contiguous(), 1).view(-1) for each in (column % 16, column // 16))
    halves = low % 16 + high % 16 * 16, (low >> 4) + (high >> 4) * 16
    found = torch.stack(halves)  # [low or high bits, bytes]
    for tile in (64, 32):
        columns = torch.arange(TILE, dtype=torch.uint8).view(TILE // tile, 1, 2, tile // 2)
        laid = columns.expand(-1, 32, -1, -1).permute(2, 0, 1, 3).reshape(2, -1)
        if torch.equal(found, laid):
            return tile
    return None


@dataclass(frozen=True, slots=True)
class Int4:
    name: str
    group: int
    rounds_activations: bool = False
    graphs: bool = True
    head: str = "int8"  # 4 bits would hurt quality most there
    plain: float = (
        0.0  # share of a checkpoint's weights that it stores in another form, kept as plain numbers
    )
    kernels: str = "a compiled or packed product or table sums on a CPU, Triton on CUDA"

    def why_not(self, device: torch.device, dtype: torch.dtype) -> str | None:
        return None

    def nbytes(self, outputs: int, inputs: int, dtype: torch.dtype, device: torch.device) -> int:
        kept = nbytes(outputs, inputs, self.group, dtype, device)
        return kept + int(self.plain * (outputs * inputs * dtype.itemsize - kept))

    def make(self, weight: Tensor, bias: Tensor | None) -> nn.Module:
        return held(grouped(weight, self.group), bias, weight.shape[1], weight.dtype)


def nbytes(outputs: int, inputs: int, group: int, dtype: torch.dtype, device: torch.device) -> int:
    """The size of the product that `held` returns."""
    width = rounded_up(inputs, group)
    if device.type != "cpu":
        # Imported here, as in `held`.
        from engine.quant.gpu_products import Int4Product

        return Int4Product.bytes_of(outputs, width, group)
    if dtype is not torch.bfloat16:
        return Int4Table.bytes_of(outputs, width, group)
    if compiled.why_not(4, dtype) is None:
        group //= group // next(each for each in reversed(GROUPS) if not group % each)
        return compiled.nbytes(4, outputs, width, group)
    return rounded_up(outputs, TILE) * (width // 2 + width // group * 4)


def held(weight: GroupedWeight, bias: Tensor | None, inputs: int, dtype: torch.dtype) -> nn.Module:
    """Return a product with this weight on its device. `dtype`: of the activations."""
    if weight.numbers.device.type == "cpu" and dtype is torch.bfloat16:
        made = CompiledInt4 if compiled.why_not(4, dtype) is None else PackedInt4
        return made(weight, bias, inputs)
    if weight.numbers.device.type == "cpu":
        return Int4Table(weight, bias, inputs)
    # Imported here: it needs Triton, which may be missing without a GPU.
    from engine.quant.gpu_products import Int4Product

    return Int4Product(weight, bias, inputs, dtype)


register(Int4("int4", 64))
for _group in GROUPS:
    register(Int4(f"int4-{_group}", _group))
