"""What a quantization scheme is: docs/quantization.md has those there are, docs/extending.md one of yours."""

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Scheme(Protocol):
    """How the weights of a model's products are kept, and multiplied."""

    @property
    def name(self) -> str: ...

    @property
    def kernels(self) -> str:
        """In words, what multiplies."""

    @property
    def rounds_activations(self) -> bool:
        """Whether what a weight is multiplied with is rounded too. All kernels of a scheme do, or none."""

    @property
    def graphs(self) -> bool:
        """Whether its kernels can be recorded into a CUDA graph: none of them asks the device anything."""

    @property
    def head(self) -> str:
        """The name of the scheme that keeps the head, where that is not the embedding's table. A scheme that
        lacks this leaves it to `none`.
        """

    def why_not(self, device: torch.device, dtype: torch.dtype) -> str | None:
        """None: it runs there, for a model that computes in `dtype`; else the sentence that says why not."""

    def nbytes(self, outputs: int, inputs: int, dtype: torch.dtype) -> int:
        """What a weight of that shape takes, nearly."""

    def make(self, weight: Tensor, bias: Tensor | None) -> nn.Module:
        """What stands in a Linear's place, on the weight's device: [rows, inputs] -> [rows, outputs]."""


def trimmed(out: Tensor, outputs: int) -> Tensor:
    """The first columns, which others will want to see as heads."""
    return out if out.shape[1] == outputs else out[:, :outputs].contiguous()


def side_by_side(outs: list[Tensor]) -> Tensor:
    """Of products that were taken piece by piece: [rows, outputs]. A single one is not copied."""
    return outs[0] if len(outs) == 1 else torch.cat(outs, 1)


def rounded_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def padded(grid: Tensor, right: int, below: int) -> Tensor:
    """With zeros behind its columns and its rows. As it is where there are none: F.pad would copy it."""
    return F.pad(grid, (0, right, 0, below)) if right or below else grid


def rung(rows: int) -> int:
    """The least of eight numbers an octave that is not below it.

    oneDNN makes a kernel for each number of rows that it meets, which takes as long as a product, and keeps
    half a megabyte and more for each; prompts are of any length.
    """
    return rounded_up(rows, max(1, 2 ** (rows - 1).bit_length() // 16))


def on_a_rung(x: Tensor) -> Tensor:
    """With rows of zeros below, where oneDNN multiplies: bfloat16 on a CPU."""
    if x.dtype is not torch.bfloat16 or x.device.type != "cpu":
        return x
    return padded(x, 0, rung(len(x)) - len(x))
