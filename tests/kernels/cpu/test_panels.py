"""The compiled products of a CPU against exact ones, and the same row among different other rows."""

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor, nn

from engine.kernels.cpu.compiled import build, product
from engine.kernels.cpu.compiled.product import Int8Panels, bfloat16_panels
from engine.kernels.cpu.int8_digits import Int8Digits
from engine.kernels.cpu.packed import PackedLinear
from engine.quant import int4
from engine.quant.int4 import FEW, CompiledInt4, PackedInt4, grouped
from engine.quant.int8 import Int8Table, quantized
from engine.quant.registry import named

BITS = (4, 8, 16)
Made = tuple[nn.Module, Tensor]  # a product, and the weight it multiplies with


def weight_of(outputs: int, inputs: int) -> Tensor:
    generator = torch.Generator().manual_seed(outputs * inputs)
    return torch.randn(outputs, inputs, generator=generator)


def rows_of(rows: int, inputs: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, inputs, generator=torch.Generator().manual_seed(seed)).bfloat16()


def made(bits: int, outputs: int, inputs: int, bias: Tensor | None = None, group: int = 64) -> Made:
    if (problem := build.why_not(build.products(bits))) is not None:
        pytest.skip(problem)
    weight = weight_of(outputs, inputs)
    if bits == 16:
        return bfloat16_panels(weight.bfloat16(), bias), weight.bfloat16().float()
    if bits == 8:
        numbers, scale = quantized(weight)
        return Int8Panels(numbers, scale, bias), numbers.float() * scale[:, None]
    four = CompiledInt4(grouped(weight, group), bias, inputs)
    return four, four.dequantized()


def error(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm().clamp_(min=1e-30))


@given(
    bits=st.sampled_from(BITS),
    inputs=st.sampled_from([1, 8, 64, 65, 172, 300]),
    outputs=st.sampled_from([1, 7, 32, 33, 150]),
    group=st.sampled_from(int4.GROUPS),
    rows=st.integers(1, 40),
    biased=st.booleans(),
)
@example(bits=4, inputs=300, outputs=33, group=32, rows=200, biased=True)
@example(bits=8, inputs=300, outputs=33, group=64, rows=200, biased=True)
@example(bits=16, inputs=300, outputs=33, group=64, rows=200, biased=True)
@torch.inference_mode()
def test_equals_the_exact_product(
    bits: int, inputs: int, outputs: int, group: int, rows: int, biased: bool
) -> None:
    bias = torch.arange(outputs).bfloat16() if biased else None
    module, weight = made(bits, outputs, inputs, bias, group)
    x = rows_of(rows, inputs)
    found = module(x)
    assert (found.dtype, found.shape) == (torch.bfloat16, (rows, outputs))
    exact = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    assert error(found, exact) < 4e-3, "more than the result's own rounding"


@pytest.mark.parametrize("bits", BITS)
@torch.inference_mode()
def test_other_rows_and_threads_change_no_bit(bits: int) -> None:
    module, _ = made(bits, 75, 300)
    x, usual = rows_of(300, 300), torch.get_num_threads()
    whole = module(x)
    for rows in (*range(1, 40), 127, 128, 129, 257):
        assert torch.equal(module(x[:rows]), whole[:rows]), f"{rows} rows"
        assert torch.equal(module(x[-rows:]), whole[-rows:]), f"the last {rows} rows"
    try:
        torch.set_num_threads(2)
        assert torch.equal(module(x), whole) and torch.equal(module(x[:1]), whole[:1])
    finally:
        torch.set_num_threads(usual)


@pytest.mark.parametrize("bits", BITS)
@torch.inference_mode()
def test_what_is_not_finite_stays_in_its_row(bits: int) -> None:
    module, _ = made(bits, 40, 128)
    x = rows_of(6, 128)
    clean = module(x)
    for row, value in enumerate((torch.nan, torch.inf, -torch.inf)):
        x[row, 77] = value
    found = module(x)
    assert not found[:3].isfinite().any()
    assert torch.equal(found[3:], clean[3:])
    assert not module(torch.zeros(2, 128, dtype=torch.bfloat16)).any()


@pytest.mark.parametrize("bits", [4, 8])
@torch.inference_mode()
def test_an_outlier_costs_only_its_group_bits(bits: int) -> None:
    """Some activations of language models are a thousand times as large as all others."""
    module, weight = made(bits, 96, 1024)
    x = rows_of(4, 1024)
    x[:, 3] = 2000
    weight[:, 3] = 0
    [four] = [module.product] if isinstance(module, CompiledInt4) else [module]
    quiet = x.clone()
    quiet[:, 3] = 0
    without = torch.zeros_like(x)
    without[:, 3] = 2000
    rest = four(x).double() - four(without).double()
    assert error(rest, quiet.double() @ weight.double().T) < 0.3, "its bfloat16 has 8 bits for both"
    assert error(four(quiet), quiet.double() @ weight.double().T) < 4e-3


@torch.inference_mode()
def test_the_numbers_of_a_weight_are_kept() -> None:
    eight, weight = made(8, 75, 100)
    assert isinstance(eight, Int8Panels) and torch.equal(eight.dequantized(), weight)
    if build.why_not(build.PRODUCTS[4]) is None:
        four = grouped(weight_of(75, 100), 32)
        assert torch.equal(
            CompiledInt4(four, None, 100).dequantized(), PackedInt4(four, None, 100).dequantized()
        )


@pytest.mark.parametrize("bias", [None, torch.arange(300).bfloat16()])
@torch.inference_mode()
def test_with_amx_many_rows_of_four_bits_are_multiplied_in_bfloat16(
    bias: Tensor | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, weight = made(4, 300, 96, bias)
    x, seen = rows_of(FEW + 1, 96), list[int]()
    monkeypatch.setattr(int4, "has_amx", lambda: True)
    multiply = product.PanelProduct.forward

    def noted(self: product.PanelProduct, x: Tensor) -> Tensor:
        seen.append(len(x))
        return multiply(self, x)

    monkeypatch.setattr(product.PanelProduct, "__call__", noted)
    exact = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    assert error(module(x), exact) < 6e-3 and not seen
    assert error(module(x[:FEW]), exact[:FEW]) < 4e-3 and seen == [FEW]


def test_activations_of_another_type_or_width_are_refused() -> None:
    module, _ = made(16, 40, 64)
    for x in (torch.ones(1, 64), torch.ones(1, 62, dtype=torch.bfloat16)):
        with pytest.raises(TypeError, match=r"expected \[rows, 64\] in bfloat16"):
            module(x)


def test_where_they_run_they_are_used_and_elsewhere_torch_multiplies(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = weight_of(64, 32).bfloat16()

    def kinds() -> list[type[nn.Module]]:
        return [type(named(name).make(weight, None)) for name in ("none", "int8", "int4")]

    monkeypatch.setattr(product, "has_amx", lambda: False)
    monkeypatch.setattr(build, "why_not", lambda source: None)
    product.why_not.cache_clear()
    if not any(map(build._missing, build.PRODUCTS.values())):
        assert kinds() == [product.PanelProduct, Int8Panels, CompiledInt4]
        monkeypatch.setattr(product, "has_amx", lambda: True)
        product.why_not.cache_clear()
        assert kinds()[2] is CompiledInt4 and Int8Panels not in kinds()
    monkeypatch.setattr(build, "why_not", lambda source: "no compiler")
    product.why_not.cache_clear()
    try:
        usual = kinds()
    finally:
        product.why_not.cache_clear()
    assert usual[1] in (Int8Digits, Int8Table) and usual[2] is PackedInt4
    assert product.why_not(16, torch.float32) == "the kernels take bfloat16, not torch.float32"


def test_plain_weights_are_packed_by_torch_where_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product, "why_not", lambda bits, dtype: "off")
    weight = weight_of(64, 32)
    assert isinstance(named("none").make(weight, None), PackedLinear)
