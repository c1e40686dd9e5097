"""What parts are built with."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from engine.api.errors import BadInput
from engine.models.layers import operators
from engine.models.layers.norm import Norm
from engine.models.layers.operators import OperatorLinear, OperatorNorm
from engine.quant.linear import Linear, parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """The dtype, names and operators of a model. `ranks`: the number of ranks that share it."""

    dtype: torch.dtype
    eps: float
    names: Mapping[str, str]
    norm_operator: str = ""  # empty: the built-in norm
    product_operator: str = ""
    ranks: int = 1

    def linear(self, inputs: int, outputs: int, *, bias: bool = False) -> Linear:
        made = Linear.empty(inputs, outputs, bias=bias, dtype=self.dtype)
        if not self.product_operator:
            return made
        return OperatorLinear(made.weight, made.bias, operators.product(self.product_operator))

    def norm(self, width: int) -> Norm:
        if not self.norm_operator:
            return Norm(width, eps=self.eps, dtype=self.dtype)
        weight = parameter(width, dtype=self.dtype)
        return OperatorNorm(weight, self.eps, operators.norm(self.norm_operator))

    def share(self, number: int, what: str) -> int:
        """Return one rank's equal share of `number`."""
        if number % self.ranks:
            raise BadInput(f"{number} {what} cannot be split into {self.ranks} equal shares")
        return number // self.ranks
