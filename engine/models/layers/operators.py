"""Custom products and norms. Each comes with an oracle, and is compared with it when registered.

A family names one for all its parts (families.py). The plain forward computes its oracle. Once a model is
loaded, the module that its `make` returns replaces the oracle, whatever the other weights' scheme.
"""

from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

import torch
from torch import Tensor, nn

from engine.api.errors import BadInput
from engine.api.plugins import missing_members
from engine.models.layers.norm import Norm, RmsNorm
from engine.quant.base import Scheme
from engine.quant.linear import Launcher, Linear

if TYPE_CHECKING:
    from engine.quant.product import Product

GROUP = "minichat.operators"  # entry points of packages that provide operators
ROWS, SHAPES = (1, 5, 33), ((64, 32), (96, 160))  # compared sizes: rows; inputs and outputs
ALLOWED = {torch.float32: 1e-4, torch.bfloat16: 2e-2}  # of the oracle's norm, on CPU and CUDA
EPS = 1e-6


class ProductOperator(Protocol):
    name: str
    kind: Literal["product"]

    def oracle(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """[rows, inputs] with [outputs, inputs] -> [rows, outputs], in plain torch."""

    def make(self, weight: Tensor, bias: Tensor | None) -> nn.Module:
        """Return a module that computes the same, on the weight's device."""


class NormOperator(Protocol):
    name: str
    kind: Literal["norm"]

    def oracle(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """[rows, width] with [width] -> [rows, width], in plain torch."""

    def make(self, weight: Tensor, eps: float) -> nn.Module: ...


Operator = ProductOperator | NormOperator
OPERATORS: dict[str, Operator] = {}


def register(operator: Operator) -> None:
    """Register an operator; raise, with figures, if it does not match its oracle."""
    compare(operator)
    OPERATORS[operator.name] = operator


def product(name: str) -> ProductOperator:
    return cast(ProductOperator, _named(name, "product"))


def norm(name: str) -> NormOperator:
    return cast(NormOperator, _named(name, "norm"))


def _named(name: str, kind: str) -> Operator:
    if name not in OPERATORS:
        _load(name)
    if (found := OPERATORS[name]).kind != kind:
        raise BadInput(f"operator {name!r} is a {found.kind}, not a {kind}")
    return found


def _load(name: str) -> None:
    for point in entry_points(group=GROUP, name=name):
        try:
            found = point.load()()
        except (ImportError, AttributeError) as error:
            raise BadInput(f"operator {name!r}: it cannot be imported ({error})") from error
        if (problem := missing_members(found, "name", "kind", "oracle", "make")) is not None:
            raise BadInput(f"operator {name!r}: {problem}")
        register(found)
    if name not in OPERATORS:
        known = {*OPERATORS, *(point.name for point in entry_points(group=GROUP))}
        raise BadInput(f"there is no operator {name!r}; there are {', '.join(sorted(known)) or 'none'}")


@torch.inference_mode()
def compare(operator: Operator) -> None:
    """Compare on the CPU in float32 and, with CUDA, on the GPU in bfloat16. Raise if they differ."""
    settings = [(torch.device("cpu"), torch.float32)]
    if torch.cuda.is_available():
        settings.append((torch.device("cuda"), torch.bfloat16))
    for device, dtype in settings:
        with device:  # may run inside a meta device context
            _compare_on(operator, device, dtype)


def _compare_on(operator: Operator, device: torch.device, dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(0)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, device="cpu").to(device, dtype)

    for inputs, outputs in SHAPES:
        x = numbers(max(ROWS), inputs)
        if operator.kind == "norm":
            _compare(operator, x, numbers(inputs), EPS, f"{inputs} numbers")
            continue
        weight = numbers(outputs, inputs) / inputs**0.5
        for bias in (None, numbers(outputs)):
            case = f"{inputs} inputs, {outputs} outputs and {'no' if bias is None else 'a'} bias"
            _compare(operator, x, weight, bias, case)


def _compare(operator: Operator, x: Tensor, weight: Tensor, rest: Any, case: str) -> None:
    """Compare at several row counts with one oracle call, so that a row must not depend on its batch."""
    about = f"operator {operator.name!r} on {x.device.type} in {str(x.dtype).removeprefix('torch.')}"
    try:
        expected, made = operator.oracle(x, weight, rest), operator.make(weight.clone(), rest)
        found = {rows: made(x[:rows].clone()) for rows in ROWS}
    except Exception as error:  # third-party code may raise anything
        raise BadInput(f"{about}: {case}: {type(error).__name__}: {error}") from error
    for rows, mine in found.items():
        if problem := _mismatch(mine, expected[:rows], x.dtype):
            raise BadInput(f"{about}: {rows} rows, {case}: {problem}")


def _mismatch(found: Tensor, expected: Tensor, dtype: torch.dtype) -> str:
    """Describe the mismatch, or return an empty string."""
    if found.shape != expected.shape or found.dtype is not dtype:
        kind = str(found.dtype).removeprefix("torch.")
        return f"it returns {kind} {list(found.shape)}, not {list(expected.shape)}"
    error = float((found.float() - expected.float()).norm() / expected.float().norm())
    if error <= ALLOWED[dtype]:  # false for NaN
        return ""
    return f"its relative error is {error:.1e}, at most {ALLOWED[dtype]:g} is allowed"


class OperatorLinear(Linear):
    """A custom product, which quantization does not replace."""

    def __init__(self, weight: nn.Parameter, bias: nn.Parameter | None, operator: ProductOperator) -> None:
        super().__init__(weight, bias)
        self.operator = operator

    @property
    def quantizes(self) -> bool:
        return False

    def forward(self, x: Tensor) -> Tensor:
        return self.operator.oracle(x, self.weight, self.bias)

    def finalized(self, scheme: Scheme) -> nn.Module:
        return self.operator.make(self.weight, self.bias)

    def gpu_product(self, gpu: Launcher) -> "Product":
        return gpu.called(self)


class OperatorNorm(Norm):
    """A custom norm."""

    def __init__(self, weight: nn.Parameter, eps: float, operator: NormOperator) -> None:
        super().__init__(len(weight), eps=eps, dtype=weight.dtype)
        self.weight, self.operator = weight, operator

    def forward(self, x: Tensor) -> Tensor:
        return self.operator.oracle(x, self.weight, self.eps)

    def finalized(self) -> nn.Module:
        return self.operator.make(self.weight, self.eps)

    def rms_norm(self) -> RmsNorm | None:
        return None
