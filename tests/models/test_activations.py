"""Activations: as torch computes them, and each row independently."""

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from engine.models.layers.activations import ACTIVATE, sigmoid

OURS: dict[str, Callable[[Tensor], Tensor]] = {**ACTIVATE, "sigmoid": sigmoid}
THEIRS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "relu2": lambda x: F.relu(x) ** 2,
    "sigmoid": torch.sigmoid,
}


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", OURS)
def test_a_row_does_not_depend_on_others(name: str, dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(1)
    for rows, width in ((3, 1000), (33, 1000), (33, 1376), (100, 704)):
        both = torch.randn(rows, 2 * width, generator=draw).mul_(3).to(dtype)
        for x in (both[:, :width], both[:, width:].contiguous()):
            whole = OURS[name](x)
            assert all(torch.equal(whole[row], OURS[name](x[row : row + 1])[0]) for row in range(rows))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", OURS)
def test_it_is_torchs_function(name: str, dtype: torch.dtype) -> None:
    x = torch.cat((torch.linspace(-20, 20, 4001), torch.tensor([-1e4, 1e4, 0.0]))).to(dtype)
    found, expected = OURS[name](x), THEIRS[name](x.double()).to(dtype)
    assert found.dtype is dtype
    torch.testing.assert_close(found, expected, rtol=1e-5 if dtype is torch.float32 else 8e-3, atol=1e-6)
