"""Products of many rows on a CPU without instructions for bfloat16, which every CPU here pretends to be."""

import pytest
import torch
from torch import Tensor

from engine.kernels.cpu import int8_digits, many_rows
from engine.models.adapters.products import LowRank
from engine.quant.linear import Linear
from engine.quant.plain import parameter_of
from engine.quant.registry import named

BF16 = torch.bfloat16


@pytest.fixture(autouse=True)
def used(monkeypatch: pytest.MonkeyPatch) -> list[torch.dtype]:
    """The dtypes of the products that are computed."""
    found = list[torch.dtype]()

    def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        assert x.dtype is weight.dtype
        found.append(x.dtype)
        return x @ weight.T if bias is None else x @ weight.T + bias

    monkeypatch.setattr(many_rows, "multiplies_bfloat16", lambda: False)
    monkeypatch.setattr(many_rows.F, "linear", product)
    return found


def error(found: Tensor, expected: Tensor) -> float:
    assert found.dtype is BF16
    return float((found.double() - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("rows", [1, 63, 64, 100])
def test_many_rows_are_multiplied_in_float32_and_few_as_before(
    used: list[torch.dtype], monkeypatch: pytest.MonkeyPatch, rows: int, with_bias: bool
) -> None:
    monkeypatch.setattr(many_rows, "PIECE", 100 * 33)  # two pieces of 33 outputs, and one of 4
    torch.manual_seed(rows)
    x, weight, bias = torch.randn(rows, 100).to(BF16), torch.randn(70, 100).to(BF16), torch.randn(70).to(BF16)
    module = Linear(parameter_of(weight), parameter_of(bias) if with_bias else None)
    expected = x.double() @ weight.double().T + (bias.double() if with_bias else 0)
    assert error(module(x), expected) < (2**-8 if rows >= 64 else 2**-7)  # the fake product rounds twice
    assert used == ([torch.float32] * 3 if rows >= 64 else [BF16])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_other_dtypes_are_multiplied_as_they_are(used: list[torch.dtype], dtype: torch.dtype) -> None:
    module = Linear(parameter_of(torch.randn(20, 30).to(dtype)))
    assert module(torch.randn(80, 30).to(dtype)).dtype is dtype
    assert used == [dtype]


def test_a_cpu_with_the_instructions_multiplies_bfloat16(
    used: list[torch.dtype], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(many_rows, "multiplies_bfloat16", lambda: True)
    Linear(parameter_of(torch.randn(20, 30).to(BF16)))(torch.randn(80, 30).to(BF16))
    assert used == [BF16]


@pytest.mark.parametrize("scheme", ["int8", "int4", "int4-32"])
def test_quantized_weights_are_dequantized_to_float32(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(int8_digits, "why_not", lambda dtype: "as on a CPU without sums of bytes")
    monkeypatch.setattr("engine.kernels.cpu.compiled.product.why_not", lambda bits, dtype: "off")
    torch.manual_seed(1)
    x, weight = torch.randn(100, 192).to(BF16), torch.randn(300, 192).to(BF16)
    module = named(scheme).make(weight, None)
    kinds = set[torch.dtype]()
    matmul = Tensor.__matmul__
    monkeypatch.setattr(Tensor, "__matmul__", lambda x, y: kinds.add(x.dtype) or matmul(x, y))
    found = module(x)
    assert kinds == {torch.float32}
    assert error(found, x.double() @ module.dequantized().double().T) < 2**-8


def test_an_adapter_is_added_in_float32() -> None:
    torch.manual_seed(2)
    x, down, up = (torch.randn(*shape).to(BF16) for shape in ((40, 64), (8, 64), (8, 96)))
    out = torch.zeros(40, 96, dtype=BF16)
    LowRank(down, up).add(x, out)
    assert error(out, (x.double() @ down.double().T).to(BF16).double() @ up.double()) < 2**-7
