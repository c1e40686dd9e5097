"""Products with two digits for each activation and weights in bytes, beside exact ones and the table's."""

import pytest
import torch
from torch import Tensor

from engine.kernels.cpu import int8_digits
from engine.kernels.cpu.int8_digits import TOGETHER, Int8Digits, why_not
from engine.quant.int8 import Int8Table, Int8Weight, held, quantized
from engine.quant.registry import named

SHAPES = ((512, 256), (97, 33), (96, 4096))  # of a weight; the sums of the last one are the longest
ROWS = (1, 2, 3, 5, 8, 17, 31, 64, 100, TOGETHER, TOGETHER + 1)

pytestmark = pytest.mark.skipif(
    why_not(torch.bfloat16) is not None, reason="this CPU has no instructions for sums of bytes"
)


def made(outputs: int, inputs: int, bias: Tensor | None = None) -> tuple[Int8Digits, Tensor]:
    weight = torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(outputs))
    numbers, scale = quantized(weight.bfloat16())
    return Int8Digits(numbers, scale, bias), numbers.double() * scale.double()[:, None]


def rows_of(inputs: int, outlier: float = 1) -> Tensor:
    x = torch.randn(TOGETHER + 1, inputs, generator=torch.Generator().manual_seed(inputs))
    x[:, 3] *= outlier
    return x.bfloat16()


def error(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm())


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine without a C compiler."""
    monkeypatch.setattr("engine.kernels.cpu.compiled.product.why_not", lambda bits, dtype: "off")


@pytest.mark.parametrize("shape", SHAPES)
@torch.inference_mode()
def test_equals_the_exact_product(shape: tuple[int, int]) -> None:
    """As exactly as bfloat16 holds it, with numbers far below a row's largest one too."""
    module, weight = made(*shape)
    for outlier in (1, 30, 1000):
        x = rows_of(shape[1], outlier)
        exact = x.double() @ weight.T
        assert error(module(x), exact) < 2e-3
        rest = x[:, 3:4].double() * weight[:, 3]
        assert error(module(x).double() - rest, exact - rest) < 4e-3 * max(1, outlier)


@pytest.mark.parametrize("shape", SHAPES)
@torch.inference_mode()
def test_no_row_depends_on_another(shape: tuple[int, int]) -> None:
    module, _ = made(*shape)
    x = rows_of(shape[1], 30)
    x[1] = 0
    whole = module(x)
    assert not whole[1].any()
    for rows in ROWS:
        assert torch.equal(module(x[:rows]), whole[:rows]), rows
    broken = x[:3].clone()
    broken[0, 5], broken[1, 5] = torch.nan, torch.inf
    found = module(broken)
    assert not found[:2].isfinite().any() and torch.equal(found[2], whole[2])


@torch.inference_mode()
def test_the_digits_of_a_single_row_are_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four rows of digits are faster than two."""
    (module, _), seen, multiply = made(97, 33), list[int](), Int8Digits.integers

    def noted(self: Int8Digits, digits: Tensor, scale: Tensor) -> Tensor:
        seen.append(len(digits))
        return multiply(self, digits, scale)

    monkeypatch.setattr(Int8Digits, "integers", noted)
    for rows in (1, 2, 3):
        assert module(rows_of(33)[:rows]).shape == (rows, 97)
    assert seen == [4, 4, 6]


@torch.inference_mode()
def test_the_bias_is_added_and_the_weight_is_kept_exactly() -> None:
    bias = torch.randn(97).bfloat16()
    (plain, weight), (biased, _) = made(97, 33), made(97, 33, bias)
    x = rows_of(33)[:5]
    assert torch.equal(biased(x), plain(x) + bias)
    assert torch.equal(plain.dequantized(), weight.float())


def test_bfloat16_is_multiplied_like_that_and_other_types_by_the_table(uncompiled: None) -> None:
    weight = torch.randn(64, 32)
    kinds = {
        kind: type(named("int8").make(weight.to(kind), None)) for kind in (torch.bfloat16, torch.float16)
    }
    assert kinds == {torch.bfloat16: Int8Digits, torch.float16: Int8Table}
    stored = Int8Weight(*quantized(weight))
    assert isinstance(held(stored, None, torch.bfloat16), Int8Digits)
    assert isinstance(held(stored, None, torch.float32), Int8Table)


@torch.inference_mode()
def test_without_such_instructions_the_table_has_the_same_numbers(
    uncompiled: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight, x = torch.randn(700, 130).bfloat16(), rows_of(130)[:9]
    digits = named("int8").make(weight, None)
    with monkeypatch.context() as patched:
        patched.setattr(torch.cpu, "_is_vnni_supported", lambda: False)
        int8_digits.why_not.cache_clear()
        table = named("int8").make(weight, None)
    int8_digits.why_not.cache_clear()
    assert isinstance(table, Int8Table) and isinstance(digits, Int8Digits)
    assert torch.equal(table.dequantized(), digits.dequantized())
    assert error(table(x), digits(x).double()) < 5e-3


@torch.inference_mode()
def test_prompts_of_any_length_use_few_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """oneDNN keeps a kernel for every number of rows it has seen."""
    (module, _), x, seen = made(97, 33), rows_of(33).repeat(3, 1), set[int]()
    integers = module.integers

    def recorded(digits: Tensor, scale: Tensor) -> Tensor:
        seen.add(len(digits))
        return integers(digits, scale)

    monkeypatch.setattr(module, "integers", recorded)
    for count in range(65, len(x), 7):
        assert module(x[:count]).shape == (count, 97)
    assert len(seen) <= 16 + 4 * 8
