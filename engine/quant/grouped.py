"""A weight in whole numbers with scales for groups of inputs: what `int4` makes and checkpoints hold."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class GroupedWeight:
    """A weight in whole numbers: (numbers - zero) * scale, each scale for `group` inputs of one output."""

    numbers: Tensor  # [outputs, inputs] uint8, 0 to 15
    scale: Tensor  # [outputs, groups] float32
    zero: Tensor  # the same; it need not be whole
    order: Tensor | None = None  # [inputs]: which of the model's each column is for; None: as they come

    @property
    def group(self) -> int:
        return self.numbers.shape[1] // self.scale.shape[1]

    def dequantized(self) -> Tensor:
        """[outputs, inputs] in float32; without an order, with what fills up the last group."""
        by_group = self.numbers.view(*self.scale.shape, self.group).float()
        return restore_order(
            ((by_group - self.zero[..., None]) * self.scale[..., None]).flatten(1), self.order
        )


def restore_order(weight: Tensor, order: Tensor | None) -> Tensor:
    """Columns where the model has them, without those that fill up the last group; [outputs, inputs]."""
    if order is None:
        return weight
    weight = weight[:, : len(order)]
    return torch.empty_like(weight).index_copy_(1, order, weight)
