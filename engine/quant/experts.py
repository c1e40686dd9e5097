"""Products with a weight per expert: each row is multiplied with the weight of its expert.

Rows are sorted by expert. On a GPU, nothing waits for the number of rows that each expert has: a grouped
product reads it there, and where there is none, each expert multiplies all rows.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.kernels.cpu.many_rows import linear
from engine.quant.base import Scheme, make_product
from engine.quant.linear import Linear, parameter
from engine.quant.plain import plain

if TYPE_CHECKING:  # it needs Triton, which may be missing without a GPU
    from engine.kernels.triton.experts.stacked import StackedExperts

_T = TypeVar("_T")


class ExactLinear(Linear):
    """A product in float32 that no scheme replaces, such as a router's."""

    @classmethod
    def wide(cls, inputs: int, outputs: int, *, bias: bool = False) -> "ExactLinear":
        weight = parameter(outputs, inputs, dtype=torch.float32)
        return cls(weight, parameter(outputs, dtype=torch.float32) if bias else None)

    @property
    def quantizes(self) -> bool:
        return False

    def finalized(self, scheme: Scheme) -> nn.Module:
        return plain(self.weight, self.bias)


class ExpertsLinear(Linear):
    """Unquantized weights of all experts, as the rows of one."""

    def __init__(self, weight: nn.Parameter, bias: nn.Parameter | None, experts: int) -> None:
        super().__init__(weight, bias)
        self.experts = experts

    @classmethod
    def of(
        cls, experts: int, inputs: int, outputs: int, *, bias: bool, dtype: torch.dtype
    ) -> "ExpertsLinear":
        made = Linear.empty(inputs, experts * outputs, bias=bias, dtype=dtype)
        return cls(made.weight, made.bias, experts)

    def grouped(self, x: Tensor, counts: Tensor) -> Tensor:
        """[rows, inputs], sorted by expert, and the rows of each -> [rows, outputs]."""
        weights = self.weight.unflatten(0, (self.experts, -1))
        aligned = not any(side % 8 for side in weights.shape[1:])
        if x.is_cuda and x.dtype is torch.bfloat16 and self.bias is None and aligned:
            return F.grouped_mm(x, weights.transpose(1, 2), offs=counts.cumsum(0, dtype=torch.int32))
        pairs = zip(weights, self._biases(), strict=True)
        return apply(x, counts, [partial(linear, weight=weight, bias=bias) for weight, bias in pairs])

    def gpu_experts(self) -> "StackedExperts":
        from engine.kernels.triton.experts.stacked import PlainExperts

        weight, bias = (
            None if each is None else each.unflatten(0, (self.experts, -1))
            for each in (self.weight, self.bias)
        )
        assert weight is not None
        return PlainExperts(weight, bias)

    def finalized(self, scheme: Scheme) -> nn.Module:
        packed: Callable[[ExpertsLinear], nn.Module | None] | None = getattr(scheme, "experts", None)
        if packed is not None and (made := packed(self)) is not None:
            return made
        if self.weight.device.type != "cpu" and scheme.name == "none":
            return self
        weights = self.weight.unflatten(0, (self.experts, -1))
        return ExpertsProduct(
            make_product(scheme, weight, bias) for weight, bias in zip(weights, self._biases(), strict=True)
        )

    def replaced(
        self, parts: Sequence[_T], make: Callable[[Sequence[_T], Tensor | None], nn.Module]
    ) -> nn.Module:
        size = len(parts) // self.experts
        return ExpertsProduct(
            make(parts[at * size : (at + 1) * size], bias) for at, bias in enumerate(self._biases())
        )

    def _biases(self) -> Sequence[Tensor | None]:
        return [None] * self.experts if self.bias is None else self.bias.chunk(self.experts)


class ExpertsProduct(nn.Module):
    """Products of each expert in a scheme's format."""

    def __init__(self, products: Iterable[nn.Module]) -> None:
        super().__init__()
        self.products = nn.ModuleList(products)
        kinds = {type(each) for each in self.products}
        stacked = getattr(next(iter(kinds)), "stacked", None) if len(kinds) == 1 else None
        self._stacked: StackedExperts | None = None if stacked is None else stacked(self.products)

    def gpu_experts(self) -> "StackedExperts | None":
        """Return all experts for a kernel that reads those of its rows. None: there is no such kernel."""
        return self._stacked

    def grouped(self, x: Tensor, counts: Tensor) -> Tensor:
        return apply(x, counts, list(self.products))


def apply(x: Tensor, counts: Tensor, products: Sequence[Callable[[Tensor], Tensor]]) -> Tensor:
    return own_rows(x, counts, products) if x.device.type == "cpu" else all_rows(x, counts, products)


def own_rows(x: Tensor, counts: Tensor, products: Sequence[Callable[[Tensor], Tensor]]) -> Tensor:
    """Multiply each expert's rows. This waits for the device."""
    pairs = zip(products, x.split(counts.tolist()), strict=True)
    return torch.cat([product(rows) for product, rows in pairs if len(rows)])


def all_rows(x: Tensor, counts: Tensor, products: Sequence[Callable[[Tensor], Tensor]]) -> Tensor:
    """Multiply all rows with each expert, and keep its own. This waits for nothing."""
    owner = torch.arange(len(products), device=x.device).repeat_interleave(counts, output_size=len(x))
    out = products[0](x)
    for index, product in enumerate(products[1:], 1):
        out = torch.where((owner == index)[:, None], product(x), out)
    return out
