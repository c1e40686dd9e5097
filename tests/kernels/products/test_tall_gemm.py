"""Products of more than 128 rows with tall tiles, in Triton's interpreter and on a GPU."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.kernels import oracles
from tests.kernels.products.test_skinny_gemm import numbers

Call = Callable[..., Any]

pytest.importorskip("triton", reason="no Triton here")


@pytest.mark.parametrize("rest", [0, 16])
@pytest.mark.parametrize("parts", [1, 2])
def test_products(call: Call, rest: int, parts: int) -> None:
    """The last tiles of rows and of outputs are not full."""
    from engine.kernels.triton.gemm.tall_gemm import Tall
    from engine.kernels.triton.norm.norm import Normed

    rows, outputs, inputs = 29 + rest, 440, 256
    x, weight = (numbers(each, inputs, seed=rest, dtype=torch.float16) for each in (rows, outputs))
    how = Tall(32, rest, 64, 64, warps=4, stages=2, parts=parts)
    found, _ = call("gemm.tall_gemm", "tall_gemm", Normed(x), weight, how)
    assert found.shape == (parts, rows, outputs)
    assert found.dtype == (torch.float32 if parts > 1 else torch.float16)
    reference = F.linear(x.float(), weight.float())
    torch.testing.assert_close(found.float().sum(0), reference, rtol=2e-3, atol=2e-3 * reference.abs().max())


@pytest.mark.parametrize("rest", [0, 16])
def test_with_the_activation(call: Call, rest: int) -> None:
    from engine.kernels.triton.gemm.tall_gemm import Tall
    from engine.kernels.triton.norm.norm import Normed

    rows, width, inputs = 29 + rest, 440, 256
    x, weight = (
        numbers(rows, inputs, seed=0, dtype=torch.float16),
        numbers(2 * width, inputs, seed=1, dtype=torch.float32),
    )
    weight = (weight / inputs**0.5).half()
    how = Tall(32, rest, 128, 64, warps=4, stages=2)
    found, _ = call("gemm.tall_gemm", "tall_gemm", Normed(x), weight, how, gated=True)
    reference = oracles.swiglu(F.linear(x.float(), weight.float()).unsqueeze(0), torch.float16)
    torch.testing.assert_close(found[0].float(), reference.float(), rtol=4e-3, atol=4e-3)


def test_products_in_fp8(call: Call) -> None:
    from engine.kernels.triton.gemm.quantize_fp8 import KIND
    from engine.kernels.triton.gemm.tall_gemm import Tall
    from engine.kernels.triton.norm.norm import Normed

    x, weight = (
        numbers(each, 512, seed=at, dtype=torch.float32).to(KIND) for at, each in enumerate((45, 440))
    )
    steps, scale = (numbers(each, seed=2, dtype=torch.float32).abs() for each in (45, 440))
    given = Normed(x, steps=steps, unrounded=torch.float16)
    reference = F.linear(x.float(), weight.float()) * steps[:, None] * scale
    found, _ = call(
        "gemm.tall_gemm", "tall_gemm", given, weight, Tall(32, 16, 64, 128, warps=4, stages=2), scale
    )
    torch.testing.assert_close(
        found[0].float(), reference, rtol=4e-3, atol=4e-3 * float(reference.abs().max())
    )


@pytest.mark.parametrize("rows", [128, 129, 144, 160, 192, 193, 256, 257])
@pytest.mark.parametrize("kind", [torch.uint8, torch.bfloat16], ids=str)
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(
    "shape", [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (2048, 1024), (4096, 4160)], ids=str
)
def test_tiles_fit(
    shape: tuple[int, int], gated: bool, kind: torch.dtype, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from engine.kernels.triton.gemm import tall_gemm
    from engine.kernels.triton.gemm.tma_gemm import RESERVED, ROOM

    weight = torch.empty(shape, dtype=kind, device="meta")
    assert tall_gemm.tall_tiling(rows, weight, gated=gated) is None
    monkeypatch.setattr(tall_gemm, "IN_HALF", True)
    monkeypatch.setattr(tall_gemm, "IN_FP8", True)
    how = tall_gemm.tall_tiling(rows, weight, gated=gated)
    inside = 128 < rows <= (256 if kind is torch.bfloat16 and gated else 192)
    if not inside or shape in ((2048, 1024), (4096, 4160)):
        assert how is None
    if how is not None:
        assert rows <= how.rows + how.rest
        assert shape[1] % (how.parts * how.inputs) == 0
        taken = (how.rows + how.rest + how.outputs) * how.inputs * kind.itemsize * how.stages
        assert taken <= ROOM + RESERVED


@pytest.mark.cuda
@pytest.mark.parametrize("rows", [129, 150, 192, 200, 256])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("shape", [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)], ids=str)
def test_in_a_graph(shape: tuple[int, int], gated: bool, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a step launches it: again and again, each launch while the one before it ends."""
    from engine.kernels.triton.gemm import tall_gemm
    from engine.kernels.triton.norm.norm import Normed
    from engine.kernels.triton.padding import padded_rows

    monkeypatch.setattr(tall_gemm, "IN_HALF", True)
    draw = torch.Generator("cuda").manual_seed(0)
    weights = torch.randn(2, *shape, generator=draw, device="cuda").bfloat16().mul_(shape[1] ** -0.5)
    if (how := tall_gemm.tall_tiling(rows, weights[0], gated=gated)) is None:
        return
    x = padded_rows(rows, shape[1], like=weights)
    x.copy_(torch.randn(rows, shape[1], generator=draw, device="cuda"))

    def launched() -> list[torch.Tensor]:
        found = [
            tall_gemm.tall_gemm(Normed(x), weight, how, gated=gated, pdl=True)
            for _ in range(3)
            for weight in weights
        ]
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
                reference = F.linear(x.float(), weights[nth % 2].float())
                if gated:
                    reference = oracles.swiglu(reference.unsqueeze(0), torch.bfloat16).float()
                assert float((each - reference).norm() / reference.norm()) < 1e-2
