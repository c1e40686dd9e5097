"""Products with quantized weights under Triton's interpreter, against the dequantized weight."""

import pytest
import torch
from torch import Tensor

from engine.quant.int4 import grouped
from engine.quant.int8 import quantized
from tests.kernels.interpreted import Interpreted

pytest.importorskip("triton", reason="no Triton here")

TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3}


def numbers(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("rows", "inputs"), [(1, 200), (3, 600)])
def test_bytes(kernels: Interpreted, rows: int, inputs: int, dtype: torch.dtype) -> None:
    x, (whole, scale) = numbers(rows, inputs, seed=0).to(dtype), quantized(numbers(21, inputs, seed=1))
    found, _ = kernels.call("quantized", "bytes_times", x, whole, scale)
    wanted = x.double() @ (whole.double() * scale[:, None]).T
    torch.testing.assert_close(found.double(), wanted, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] * 20)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("rows", "inputs", "group"), [(1, 192, 32), (3, 640, 64), (2, 128, 128)])
def test_nibbles(kernels: Interpreted, rows: int, inputs: int, group: int, dtype: torch.dtype) -> None:
    x, weight = numbers(rows, inputs, seed=0).to(dtype), grouped(numbers(21, inputs, seed=1), group)
    pairs = weight.numbers.view(21, -1, 2)
    packed = pairs[..., 0] | pairs[..., 1] << 4
    found, _ = kernels.call("quantized", "nibbles_times", x, packed, weight.scale, weight.zero)
    wanted = x.double() @ weight.dequantized().double().T
    torch.testing.assert_close(found.double(), wanted, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] * 20)
