"""What a quantization scheme is: docs/quantization.md has those there are, docs/extending.md one of yours."""

from typing import Protocol

import torch
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
        """Whether what a weight is multiplied with is rounded too. All kernels of a scheme do, or none, since
        which of them runs depends on the rows.
        """

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
