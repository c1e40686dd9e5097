"""Products by tiles under Triton's interpreter and on a GPU, against plain torch."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.kernels import oracles
from tests.kernels.test_products import numbers

Call = Callable[..., Any]

pytest.importorskip("triton", reason="no Triton here")


@pytest.mark.parametrize(("rows", "parts"), [(17, 1), (40, 3), (70, 2)])
def test_products(call: Call, rows: int, parts: int) -> None:
    """The last tile of rows and the last one of outputs are not full."""
    from engine.kernels.tiled import Tiling

    x = numbers(rows, 384, seed=0, dtype=torch.float16)
    weight = numbers(72, 384, seed=1, dtype=torch.float16)
    how = Tiling(32, 64, 64, warps=4, stages=2, parts=parts)
    found, _ = call("tiled", "tiled", x, weight, how)
    assert found.shape == (parts, rows, 72)
    assert found.dtype == (torch.float32 if parts > 1 else torch.float16)
    wanted = F.linear(x.float(), weight.float())
    torch.testing.assert_close(found.float().sum(0), wanted, rtol=2e-3, atol=2e-3)


def test_the_activation_follows(call: Call) -> None:
    """The last tile of the gates reaches into what belongs to up; that is not kept."""
    from engine.kernels.tiled import Tiling

    x = numbers(20, 256, seed=0, dtype=torch.float16)
    weight = numbers(2 * 72, 256, seed=1, dtype=torch.float16)
    found, _ = call("tiled", "tiled", x, weight, Tiling(16, 64, 128, warps=4, stages=2), gated=True)
    wanted = oracles.swiglu(F.linear(x.float(), weight.float()).unsqueeze(0), torch.float16)
    torch.testing.assert_close(found[0].float(), wanted.float(), rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize("inputs", [128, 1024, 2048, 3072, 4096, 14336])
@pytest.mark.parametrize("outputs", [64, 1024, 4096, 28672, 151936])
def test_any_shape_is_cut_so_that_nothing_is_left_over(inputs: int, outputs: int) -> None:
    from engine.kernels.tiled import ROOM, for_tiled

    weight = torch.empty(outputs, inputs, dtype=torch.bfloat16, device="meta")
    for rows in range(1, 300):
        for gated in (False, True):
            how = for_tiled(rows, weight, gated=gated)
            assert how is not None or not 33 <= rows <= (64 if gated else 128)
            if how is not None:
                assert inputs % (how.parts * how.inputs) == 0
                weights = (1 + gated) * how.outputs
                assert (weights + how.rows) * how.inputs * 2 * how.stages <= ROOM
                assert weights * how.rows <= how.warps * 32 * 128  # sums in registers
    assert for_tiled(64, weight.float()) is None
