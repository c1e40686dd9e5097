"""An integer weight with a scale per group of inputs: the format of `int4` and of quantized checkpoints."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from engine.api.errors import BadCheckpoint


@dataclass(frozen=True, slots=True)
class GroupedWeight:
    """An integer weight: (numbers - zero) * scale, with a scale per `group` inputs of an output."""

    numbers: Tensor  # [outputs, inputs] uint8, 0 to 15
    scale: Tensor  # [outputs, groups] float32
    zero: Tensor  # same shape; not necessarily whole numbers
    order: Tensor | None = None  # [inputs]: the model's input of each column; None: unchanged

    @property
    def group(self) -> int:
        return self.numbers.shape[1] // self.scale.shape[1]

    def cut(self, rows: slice, columns: slice = slice(None)) -> "GroupedWeight":
        """Return these outputs and inputs. Raises if a group of inputs would be cut."""
        numbers, scale, zero = self.numbers[rows], self.scale[rows], self.zero[rows]
        if columns == slice(None):
            return replace(self, numbers=numbers, scale=scale, zero=zero)
        if self.order is not None:
            raise BadCheckpoint("its inputs are reordered (desc_act), so they cannot be split over ranks")
        if columns.start % self.group or columns.stop % self.group:
            raise BadCheckpoint(
                f"the inputs {columns.start} to {columns.stop} of a rank are not whole groups of {self.group}"
            )
        groups = slice(columns.start // self.group, columns.stop // self.group)
        return GroupedWeight(numbers[:, columns].contiguous(), scale[:, groups], zero[:, groups])

    def dequantized(self) -> Tensor:
        """Return [outputs, inputs] in float32; includes the last group's padding if there is no order."""
        by_group = self.numbers.view(*self.scale.shape, self.group).float()
        return restore_order(
            ((by_group - self.zero[..., None]) * self.scale[..., None]).flatten(1), self.order
        )


def restore_order(weight: Tensor, order: Tensor | None) -> Tensor:
    """Return [outputs, inputs] with the columns in the model's order and without padding."""
    if order is None:
        return weight
    weight = weight[:, : len(order)]
    return torch.empty_like(weight).index_copy_(1, order, weight)
