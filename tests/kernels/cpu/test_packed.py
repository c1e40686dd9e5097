"""The packed product against the plain one, and the same row among different other rows."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from engine.kernels.cpu import packed
from engine.kernels.cpu.packed import PackedLinear, why_not

DTYPES = [torch.float32, torch.bfloat16]


def layer(inputs: int, outputs: int, dtype: torch.dtype, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(outputs, inputs, generator=generator).to(dtype)
    if (problem := why_not(weight)) is not None:
        pytest.skip(problem)
    return weight, torch.randn(40, inputs, generator=generator).to(dtype)


@given(
    inputs=st.sampled_from([1, 8, 64, 172, 300]),
    outputs=st.sampled_from([1, 7, 64, 500]),
    dtype=st.sampled_from(DTYPES),
    rows=st.integers(1, 40),
    biased=st.booleans(),
    seed=st.integers(0, 99),
)
def test_equals_the_plain_product(
    inputs: int, outputs: int, dtype: torch.dtype, rows: int, biased: bool, seed: int
) -> None:
    weight, x = layer(inputs, outputs, dtype, seed)
    bias = torch.arange(outputs).to(dtype) if biased else None
    with torch.inference_mode():
        out = PackedLinear(weight, bias)(x[:rows])
    exact = F.linear(x[:rows].double(), weight.double(), None if bias is None else bias.double())
    assert out.dtype is dtype
    assert out.shape == (rows, outputs)
    tolerance = 1e-5 if dtype is torch.float32 else 1e-2
    assert (out - exact).abs().max() <= tolerance * exact.abs().max() + tolerance


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("inputs", "outputs"), [(64, 172), (172, 64), (256, 1024), (2048, 96)])
def test_other_rows_change_no_bit(dtype: torch.dtype, inputs: int, outputs: int) -> None:
    weight, x = layer(inputs, outputs, dtype, 0)
    product = PackedLinear(weight, None)
    with torch.inference_mode():
        whole = product(x)
        for rows in range(1, 40):
            assert torch.equal(product(x[:rows]), whole[:rows]), f"{rows} rows"
            assert torch.equal(product(x[-rows:]), whole[-rows:]), f"the last {rows} rows"


@pytest.mark.parametrize("inputs", [256, 512, 1024, 3584])
def test_a_long_prompt_changes_no_bit(inputs: int) -> None:
    """Kernels for many rows may add in another order: 600 rows against the same rows in fours."""
    weight, _ = layer(inputs, 96, torch.bfloat16, 0)
    x = torch.randn(600, inputs, generator=torch.Generator().manual_seed(1)).bfloat16()
    product = PackedLinear(weight, None)
    with torch.inference_mode():
        fours = torch.cat([product(four) for four in x.split(4)])
        for rows in (33, 36, 37, 64, 129, 400, 600):
            assert torch.equal(product(x[:rows]), fours[:rows]), f"{rows} rows"
            assert torch.equal(product(x[-rows:]), fours[-rows:]), f"the last {rows} rows"


@pytest.mark.parametrize("dtype", DTYPES)
def test_prompts_of_any_length_use_few_shapes(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """oneDNN keeps half a megabyte or more for every number of rows it has seen."""
    weight, _ = layer(64, 96, dtype, 0)
    product, whole, sizes = PackedLinear(weight, None), packed.onednn_product, set[int]()

    def counted(x: torch.Tensor, *rest: object) -> torch.Tensor:
        sizes.add(len(x))
        return whole(x, *rest)

    monkeypatch.setattr(packed, "onednn_product", counted)
    x = torch.ones(512, 64, dtype=dtype)
    with torch.inference_mode():
        assert all(product(x[:rows]).shape == (rows, 96) for rows in range(1, 513))
    assert len(sizes) == 13 + 5 * 8


def test_the_reason_why_a_weight_cannot_be_packed() -> None:
    assert "meta" in (why_not(torch.empty(4, 4, device="meta")) or "")
    assert "float64" in (why_not(torch.empty(4, 4, dtype=torch.float64)) or "")
