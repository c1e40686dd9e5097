"""What parts are built with."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from engine.api.errors import BadInput
from engine.models.layers import operators
from engine.models.layers.collective import Collective
from engine.models.layers.norm import LayerNorm, Norm, OffsetNorm
from engine.models.layers.operators import OperatorLinear, OperatorNorm
from engine.quant.experts import ExpertsLinear
from engine.quant.linear import Linear, parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """The dtype, names and operators of a model. `ranks`: the number of ranks that share it.

    `collective`: joins them. Only shapes are needed of a part that is built without it for several ranks.
    """

    dtype: torch.dtype
    eps: float
    names: Mapping[str, str]
    norms: str = "rms"  # the kind of norms, see families.py
    norm_bias: bool = False
    norms_input: bool = True  # whether a part norms what it reads, instead of its block
    norm_operator: str = ""  # empty: the built-in norm
    product_operator: str = ""
    ranks: int = 1
    collective: Collective | None = None

    def linear(self, inputs: int, outputs: int, *, bias: bool = False) -> Linear:
        made = Linear.empty(inputs, outputs, bias=bias, dtype=self.dtype)
        if not self.product_operator:
            return made
        return OperatorLinear(made.weight, made.bias, operators.product(self.product_operator))

    def experts(self, count: int, inputs: int, outputs: int, *, bias: bool) -> ExpertsLinear:
        return ExpertsLinear.of(count, inputs, outputs, bias=bias, dtype=self.dtype)

    def norm(self, *shape: int) -> Norm:
        if self.norm_operator and len(shape) == 1:
            weight = parameter(*shape, dtype=self.dtype)
            return OperatorNorm(weight, self.eps, operators.norm(self.norm_operator))
        match self.norms:
            case "offset":
                return OffsetNorm(*shape, eps=self.eps, dtype=self.dtype)
            case "layer":
                return LayerNorm(*shape, eps=self.eps, dtype=self.dtype, bias=self.norm_bias)
        return Norm(*shape, eps=self.eps, dtype=self.dtype)

    def input_norm(self, width: int) -> nn.Module:
        """The norm of what a part reads; it has no tensors if the block's arrangement has none there."""
        return self.norm(width) if self.norms_input else nn.Identity()

    def share(self, number: int, what: str) -> int:
        """Return one rank's equal share of `number`."""
        if number % self.ranks:
            raise BadInput(f"{number} {what} cannot be split into {self.ranks} equal shares")
        return number // self.ranks
