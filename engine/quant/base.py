"""The interface of a quantization scheme.

docs/quantization.md lists the built-in ones; docs/extending.md shows how to add one.
"""

from typing import Protocol

import torch
from torch import Tensor, nn

from engine.api.errors import EngineError, place


class Scheme(Protocol):
    """How the weights of a model's products are stored and multiplied."""

    @property
    def name(self) -> str: ...

    @property
    def kernels(self) -> str:
        """A short description of the kernels."""

    @property
    def rounds_activations(self) -> bool:
        """Whether activations are rounded too.

        All kernels of a scheme must agree, since the row count determines which one runs.
        """

    @property
    def graphs(self) -> bool:
        """Whether CUDA graphs can capture its kernels: none of them synchronizes with the device."""

    @property
    def head(self) -> str:
        """The scheme for the head. Default if missing: `none`.

        A head that is tied to the embedding has it only if it is `int8`, on a CPU.
        """

    def why_not(self, device: torch.device, dtype: torch.dtype) -> str | None:
        """Return None if the scheme runs on this device for models in `dtype`, else the reason."""

    def nbytes(self, outputs: int, inputs: int, dtype: torch.dtype, device: torch.device) -> int:
        """Return the size of a weight of that shape on this device."""

    def make(self, weight: Tensor, bias: Tensor | None) -> nn.Module:
        """Return a Linear's replacement on the weight's device: [rows, inputs] -> [rows, outputs]."""


def make_product(scheme: Scheme, weight: Tensor, bias: Tensor | None) -> nn.Module:
    """Return a Linear's replacement. An error in the scheme's code names the scheme, its file and line."""
    try:
        return scheme.make(weight, bias)
    except (EngineError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        what = f"{type(error).__name__}: {error} ({place(error)})"
        raise EngineError(f"quantization {scheme.name!r} failed: {what}") from error
