"""`int4` on a CPU in float32 and float16, for which torch's packed product has no fast kernel."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.quant.grouped import GroupedWeight, restore_order
from engine.quant.int8 import WIDTH, walk
from engine.quant.shapes import rounded_up, trimmed

FEW = 16  # up to this many rows the table's rows are summed; for more, dequantizing is faster
_TAIL = (1.0, -8.0)  # the end of a table row: the scale and the offset of its numbers


class Int4Table(nn.Module):
    """Like Int8Table (int8.py), with one sum per group of inputs, scaled before they are added.

    A byte holds one output and the output half a block later, so that they are adjacent once unpacked.
    """

    table: Tensor
    scale: Tensor
    offset: Tensor
    order: Tensor | None

    def __init__(self, weight: GroupedWeight, bias: Tensor | None, inputs: int) -> None:
        super().__init__()
        self.outputs, self.inputs = len(weight.numbers), inputs
        self.group, self.columns = weight.group, weight.numbers.shape[1]
        self.width = min(WIDTH, rounded_up(self.outputs, 32))
        blocks = -(-self.outputs // self.width)
        more = (0, 0, 0, blocks * self.width - self.outputs)
        low, high = self._halves(F.pad(weight.numbers, more)).unbind(1)
        tail = torch.tensor(_TAIL, dtype=torch.float16).view(torch.uint8).expand(blocks, self.columns, 4)
        table = torch.cat(((low | high << 4).transpose(1, 2), tail), 2)
        self.register_buffer("table", table.contiguous(), persistent=False)
        # Of (number - 8) * scale + offset, [blocks, groups, outputs], in the order of the sums.
        for name, each in (("scale", weight.scale), ("offset", (8 - weight.zero) * weight.scale)):
            laid = self._halves(F.pad(each.float(), more)).permute(0, 3, 2, 1).flatten(2)
            self.register_buffer(name, laid.contiguous(), persistent=False)
        self.register_buffer("order", weight.order, persistent=False)
        self.bias = bias

    @staticmethod
    def bytes_of(outputs: int, columns: int, group: int) -> int:
        width = min(WIDTH, rounded_up(outputs, 32))
        return -(-outputs // width) * columns * (width // 2 + 4 + 8 * width // group)

    def _halves(self, rows: Tensor) -> Tensor:
        """[outputs, n] as [blocks, halves, outputs of a half, n]."""
        return rows.view(-1, 2, self.width // 2, rows.shape[1])

    def forward(self, x: Tensor) -> Tensor:
        kind = x.dtype
        x = x.contiguous() if self.order is None else x[:, self.order]
        if self.columns > x.shape[1]:
            x = F.pad(x, (0, self.columns - x.shape[1]))
        out = trimmed(self._few(x.float()) if len(x) <= FEW else self._many(x), self.outputs).to(kind)
        return out if self.bias is None else out + self.bias

    def _few(self, x: Tensor) -> Tensor:
        rows, blocks = len(x), len(self.table)
        indices, borders = walk(blocks, rows, self.columns, self.group)
        weights = x.expand(blocks, rows, self.columns).reshape(-1)
        sums: Tensor = torch.ops.quantized.embedding_bag_4bit_rowwise_offsets(
            self.table.view(blocks * self.columns, -1), indices, borders, False, 0, False, weights, None, True
        )
        scaled = sums.view(blocks, rows, -1, self.width).mul_(self.scale[:, None]).sum(2)
        by_group = x.view(rows, -1, self.group).sum(2)
        return self._in_order(scaled.add_(by_group @ self.offset))

    def _in_order(self, laid: Tensor) -> Tensor:
        """[blocks, rows, outputs in the order of the sums] -> [rows, outputs]."""
        blocks, rows, width = laid.shape
        return laid.view(blocks, rows, width // 2, 2).permute(1, 0, 3, 2).reshape(rows, -1)

    def _many(self, x: Tensor) -> Tensor:
        return torch.cat([x @ self._block(at, x.dtype) for at in range(len(self.table))], 1)

    def _block(self, at: int, dtype: torch.dtype) -> Tensor:
        """[inputs, outputs] of one block."""
        pairs = self.table[at, :, : self.width // 2]
        numbers = torch.cat((pairs & 15, pairs >> 4), 1).to(dtype).sub_(8)
        by, more = (self._in_order(each[at][None]).to(dtype)[:, None] for each in (self.scale, self.offset))
        return torch.addcmul(more, numbers.view(-1, self.group, self.width), by).flatten(0, 1)

    def dequantized(self) -> Tensor:
        """Return the weight it multiplies with, [outputs, inputs] in float32."""
        weight = torch.cat([self._block(at, torch.float32) for at in range(len(self.table))], 1)
        return restore_order(weight.T[: self.outputs], self.order)[:, : self.inputs]
