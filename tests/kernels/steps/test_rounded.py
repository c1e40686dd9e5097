"""Rows in FP8: rounded by the kernel that computes them, with the numbers of a kernel that only rounds."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.api.config import DecoderConfig
from engine.models.source import finalize
from engine.quant.registry import named
from tests.kernels.steps.test_launches import LLAMA, Case, record_of
from tests.kernels.steps.test_parts import SeenAdapters, launched, run_changed
from tests.kernels.steps.test_ranked_steps import a_collective

pytest.importorskip("triton", reason="no Triton here")

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)


def numbers(*shape: int, seed: int = 0) -> Tensor:
    """Random numbers whose rows differ in size; the last row is zero."""
    made = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    made *= torch.logspace(-3, 2, shape[-2])[:, None]
    made[..., -1, :] = 0
    return made


def parts_of(count: int, rows: int, width: int, dtype: torch.dtype) -> Tensor:
    """A product's output; several parts are in float32."""
    return numbers(count, rows, width, seed=2).to(torch.float32 if count > 1 else dtype)


def check(found: Any, alone: Any, dtype: torch.dtype) -> None:
    assert found.dtype is dtype and found.squares is None
    assert torch.equal(found.values.view(torch.uint8), alone[0].view(torch.uint8))
    assert torch.equal(found.steps, alone[1])


def check_compiled(found: Any, alone: Any) -> None:
    """The compiler may add in another order, so that a few numbers round the other way."""
    (values, steps), (expected, scales) = (found.values.float(), found.steps), (alone[0].float(), alone[1])
    torch.testing.assert_close(steps, scales, rtol=1e-2, atol=0)  # a bfloat16 more or less
    same = values == expected
    assert same.double().mean() > 0.999
    assert ((values - expected).abs() <= expected.abs() / 8 + 2**-9)[~same].all()  # the next FP8 number


@DTYPES
@pytest.mark.parametrize(("width", "parts"), [(48, 0), (64, 1), (100, 3)])
def test_a_norm(call: Callable[..., Any], width: int, parts: int, dtype: torch.dtype) -> None:
    x, weight = numbers(4, width).to(dtype), 1 + torch.arange(width).div(width).to(dtype)
    added = parts_of(parts, 4, width, dtype) if parts else None
    found, (changed, *_) = call("norm.norm", "normed", x.clone(), added, weight, 1e-5, rounded=True)
    alone, (expected, *_) = call("norm.norm", "norm", x.clone(), added, weight, 1e-5)
    check(found, call("gemm.quantize_fp8", "quantize_fp8", alone, width)[0], dtype)
    assert torch.equal(changed, expected)


@DTYPES
@pytest.mark.parametrize(("width", "parts"), [(48, 1), (100, 3)])
def test_an_activation(call: Callable[..., Any], width: int, parts: int, dtype: torch.dtype) -> None:
    both = parts_of(parts, 4, 2 * width, dtype)
    found, _ = call("norm.swiglu", "rounded_swiglu", both, dtype)
    act, _ = call("norm.swiglu", "swiglu", both, dtype)
    check(found, call("gemm.quantize_fp8", "quantize_fp8", act, width)[0], dtype)


@pytest.mark.cuda
@pytest.mark.parametrize("rows", [2, 64, 65, 256, 300])
@torch.inference_mode()
def test_kernels_of_real_sizes(rows: int) -> None:
    """In bfloat16, with the widths of 8B."""
    from engine.kernels.triton.gemm.quantize_fp8 import quantize_fp8
    from engine.kernels.triton.norm.norm import norm, normed
    from engine.kernels.triton.norm.swiglu import rounded_swiglu, swiglu

    weight = torch.rand(4096, device="cuda").bfloat16() + 0.5
    for count in (1, 2, 8):
        x, added = numbers(rows, 4096).bfloat16().cuda(), parts_of(count, rows, 4096, torch.bfloat16).cuda()
        alone = norm(x.clone(), added, weight, 1e-5)
        found = normed(x, added, weight, 1e-5, rounded=True)
        check_compiled(found, quantize_fp8(alone, 4096))
        both = parts_of(count, rows, 2 * 14336, torch.bfloat16).cuda()
        act = swiglu(both, torch.bfloat16)
        check_compiled(rounded_swiglu(both, torch.bfloat16), quantize_fp8(act, 14336))


@pytest.mark.cuda
@pytest.mark.parametrize("rows", [1, 3, 200])
@torch.inference_mode()
def test_the_norm_after_a_sum_over_ranks_in_bfloat16(rows: int) -> None:
    """With a single rank, so there is no exchange. A ptxas bug once corrupted every fourth number here."""
    from engine.kernels.triton.collective.exchange import PROGRAMS, Inbox, exchange_sum_norm, inbox_words
    from engine.kernels.triton.gemm.quantize_fp8 import quantize_fp8

    words, control = (torch.zeros(size, dtype=torch.int64, device="cuda") for size in (inbox_words(1), 5))
    counts = torch.zeros(PROGRAMS, dtype=torch.int32, device="cuda")
    inbox = Inbox(0, 1, words, torch.tensor([words.data_ptr()], device="cuda"), counts, control)
    x, term, weight = (numbers(count, 4096).bfloat16().cuda() for count in (rows, rows, 1))
    plain, found = (
        exchange_sum_norm(x.clone(), term[None], weight[0], 1e-5, inbox, rounded=rounded)
        for rounded in (False, True)
    )
    check_compiled(found, quantize_fp8(plain.values, 4096))


@pytest.mark.parametrize(("rows", "product"), [(8, "_tma_gemm"), (128, "_tma_gemm"), (300, "_scaled_mm")])
def test_only_the_output_of_attention_is_rounded_alone(rows: int, product: str) -> None:
    layer = "_norm {0} _rope_and_cache attention _quantize_fp8 {0} _norm {0} _rounded_swiglu {0}"
    names = [line.split("(")[0].split(" ")[0] for line in record_of(Case("llama", rows, "fp8")).lines]
    assert names[1:31] == 3 * layer.format(product).split()


def in_fp8(*parts: str) -> Any:
    """A change of a block: all of it, or only some of its products."""

    def change(block: Any, config: DecoderConfig) -> None:
        plain = dict(block.feed_forward.named_children())
        finalize(block, named("fp8"))
        for name in {*plain} - {*parts} if parts else ():
            setattr(block.feed_forward, name, plain[name])

    return change


def test_an_activation_in_the_kernel_of_its_product_is_rounded_alone() -> None:
    """Gate and up are plain, and 40 rows of them have a kernel that includes the activation."""
    names = run_changed(40, in_fp8("down"), LLAMA).names
    assert names.count("_quantize_fp8") == 2 and "_rounded_swiglu" not in names
    names = run_changed(300, in_fp8("down"), LLAMA).names
    assert names.count("_quantize_fp8") == names.count("_rounded_swiglu") == 1


@pytest.mark.parametrize("rows", [8, 128])
def test_the_norm_of_a_sum_over_ranks_is_rounded(rows: int) -> None:
    found = run_changed(rows, in_fp8(), LLAMA, collective=a_collective())
    assert found.names.count("_rounded_swiglu") == found.names.count("_quantize_fp8") == 1
    sums = [line for line in found.record.lines if line.startswith("_sum_norm")]
    assert ["ROUNDED=True" in line for line in sums[1:4]] == [True, True, False]


def test_adapters_get_rows_that_are_not_rounded() -> None:
    names = run_changed(128, in_fp8(), LLAMA, SeenAdapters()).names
    assert names.count("_quantize_fp8") == 4 and "_rounded_swiglu" not in names


def test_adapters_by_kernels_get_rows_that_are_not_rounded() -> None:
    found = run_changed(128, in_fp8(), LLAMA, launched(128, 4, LLAMA))
    shrinks = [line for line in found.record.lines if line.startswith("_shrink")]
    assert len(shrinks) == 4 * len(LLAMA.layers) and not any("float8" in line for line in shrinks)
    assert found.names.count("_quantize_fp8") == 4 and "_rounded_swiglu" not in found.names


def test_a_rounded_term_is_scaled_by_its_scales() -> None:
    from engine.kernels.triton.norm.norm import Normed
    from engine.models.layers.gpu import GpuStep, Residual
    from engine.quant.product import Product

    class Doubled(Product):
        def parts(self, x: Tensor, *, pdl: bool = False) -> Tensor:
            raise AssertionError("the rows are rounded")

        def parts_of(self, x: Normed, *, pdl: bool = False) -> Tensor:
            assert x.steps is not None
            return (2 * x.values.to(x.dtype) * x.steps[:, None]).unsqueeze(0)

    none: Any = None
    step = GpuStep(none, none, none, none, (), none, none, none, single=False, pdl=False)
    values, steps = torch.full((2, 4), 3.0).to(torch.float8_e4m3fn), torch.tensor([1.0, 2.0])
    given = Normed(values, steps=steps, unrounded=torch.float32)
    found = Residual(torch.ones(2, 4), scale=0.5).plus_rounded(Doubled(), given, step).total()
    assert torch.equal(found, torch.tensor([[4.0], [7.0]]).expand(2, 4))
