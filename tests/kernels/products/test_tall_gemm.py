"""Products in FP8 of more than 128 rows with tall tiles, in Triton's interpreter and on a GPU."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.kernels.products.test_skinny_gemm import numbers

Call = Callable[..., Any]

pytest.importorskip("triton", reason="no Triton here")


@pytest.mark.parametrize("rest", [16, 32])
@pytest.mark.parametrize("parts", [1, 2])
def test_products(call: Call, rest: int, parts: int) -> None:
    """The last tiles of rows and of outputs are not full."""
    from engine.kernels.triton.gemm.quantize_fp8 import KIND
    from engine.kernels.triton.gemm.tall_gemm import Tall
    from engine.kernels.triton.norm.norm import Normed

    rows, outputs, inputs = 29 + rest, 440, 512
    x, weight = (
        numbers(each, inputs, seed=at, dtype=torch.float32).to(KIND)
        for at, each in enumerate((rows, outputs))
    )
    steps, scale = (numbers(each, seed=2, dtype=torch.float32).abs() for each in (rows, outputs))
    given = Normed(x, steps=steps, unrounded=torch.float16)
    how = Tall(32, rest, 64, 128, warps=4, stages=2, parts=parts)
    found, _ = call("gemm.tall_gemm", "tall_gemm", given, weight, how, scale)
    assert found.shape == (parts, rows, outputs)
    assert found.dtype == (torch.float32 if parts > 1 else torch.float16)
    reference = F.linear(x.float(), weight.float()) * steps[:, None] * scale
    torch.testing.assert_close(
        found.float().sum(0), reference, rtol=4e-3, atol=4e-3 * float(reference.abs().max())
    )


@pytest.mark.parametrize("rows", [128, 129, 144, 160, 192, 193, 256, 257])
@pytest.mark.parametrize(
    "shape", [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (2048, 1024), (4096, 4160)], ids=str
)
def test_tiles_fit(shape: tuple[int, int], rows: int) -> None:
    from engine.kernels.triton.gemm.tall_gemm import tall_tiling
    from engine.kernels.triton.gemm.tma_gemm import RESERVED, ROOM

    how = tall_tiling(rows, torch.empty(shape, dtype=torch.uint8, device="meta"))
    assert (how is not None) == (128 < rows <= 192 and shape not in ((2048, 1024), (4096, 4160)))
    if how is not None:
        assert rows <= how.rows + how.rest
        assert shape[1] % (how.parts * how.inputs) == 0
        assert (how.rows + how.rest + how.outputs) * how.inputs * how.stages <= ROOM + RESERVED


@pytest.mark.cuda
@pytest.mark.parametrize("rows", [129, 150, 192])
@pytest.mark.parametrize("shape", [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)], ids=str)
def test_in_a_graph(shape: tuple[int, int], rows: int) -> None:
    """As a step launches it: again and again, each launch while the one before it ends."""
    from engine.kernels.triton.gemm.quantize_fp8 import quantize_fp8
    from engine.kernels.triton.gemm.tall_gemm import tall_gemm, tall_tiling
    from engine.kernels.triton.norm.norm import Normed

    draw = torch.Generator("cuda").manual_seed(0)
    pairs = [
        quantize_fp8(torch.randn(*shape, generator=draw, device="cuda").bfloat16(), shape[1])
        for _ in range(2)
    ]
    x, steps = quantize_fp8(torch.randn(rows, shape[1], generator=draw, device="cuda").bfloat16(), shape[1])
    given = Normed(x, steps=steps, unrounded=torch.bfloat16)
    how = tall_tiling(rows, pairs[0][0])
    assert how is not None

    def launched() -> list[torch.Tensor]:
        found = [tall_gemm(given, weight, how, scale, pdl=True) for _ in range(3) for weight, scale in pairs]
        return [each.float().sum(0) for each in found]

    with torch.inference_mode():
        launched()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = launched()
        for _ in range(3):
            for each in found:
                each.zero_()
            graph.replay()
            for nth, each in enumerate(found):
                weight, scale = pairs[nth % 2]
                reference = F.linear(x.float() * steps[:, None], weight.float() * scale[:, None])
                assert float((each - reference).norm() / reference.norm()) < 1e-2
