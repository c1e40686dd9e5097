"""Kernels that add what adapters add to the product they read, interpreted and on a GPU."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.kernels.interpreted import Interpreted
from tests.kernels.products.read_terms import ROWS, Tensors, normed_sums, rotated_sums

pytest.importorskip("triton", reason="no Triton here")
WITHOUT = torch.tensor(ROWS) == 0
TOLERANCES = {torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 6e-2}
Run = Callable[..., Any]
INTERPRETED = ("interpreted", torch.float32), ("interpreted", torch.float16)
ON_A_GPU = [
    pytest.param(("cuda", dtype), marks=pytest.mark.cuda) for dtype in (torch.float16, torch.bfloat16)
]


@pytest.fixture(params=[*INTERPRETED, *ON_A_GPU], ids=str)
def place(request: pytest.FixtureRequest) -> tuple[Run, torch.dtype, str]:
    """What runs a function, and on which device."""
    where, dtype = request.param
    if where == "cuda":
        return lambda function, *given: function(*given), dtype, "cuda"
    kernels: Interpreted = request.getfixturevalue("kernels")
    return kernels.run, dtype, "cpu"


def check(both: tuple[Tensors, Tensors], dtype: torch.dtype) -> None:
    close = {"rtol": TOLERANCES[dtype], "atol": TOLERANCES[dtype]}
    for found, expected in zip(*both, strict=False):
        torch.testing.assert_close(found.float(), expected.float(), **close)


@pytest.mark.parametrize(
    ("rank", "width", "parts", "between"), [(16, 120, 2, False), (32, 256, 1, False), (16, 120, 2, True)]
)
def test_a_norm(
    place: tuple[Run, torch.dtype, str], rank: int, width: int, parts: int, between: bool
) -> None:
    run, dtype, device = place
    both = run(normed_sums, dtype, rank, width, parts, between, device)
    check(both, dtype)
    found, plain = (each.cpu() for each in both[0][1:])
    assert torch.equal(found[WITHOUT], plain[WITHOUT]), "rows without an adapter keep their bits"
    assert not torch.equal(found[~WITHOUT], plain[~WITHOUT])


@pytest.mark.parametrize(
    ("rank", "heads", "dim", "share", "normed"),
    [
        (16, (8, 4), 32, 1.0, True), (32, (3, 1), 20, 1.0, False),
        (16, (8, 4), 16, 0.5, True), (16, (4, 4), 16, 0.0, False),
    ],
)  # fmt: skip
def test_queries_keys_and_values(
    place: tuple[Run, torch.dtype, str],
    rank: int,
    heads: tuple[int, int],
    dim: int,
    share: float,
    normed: bool,
) -> None:
    """One adapter has none for the keys. A head's columns may begin anywhere in a row of `up`."""
    run, dtype, device = place
    both = run(rotated_sums, dtype, rank, heads, dim, share, normed, device)
    check(both, dtype)
    found, plain = both[0][0].cpu(), both[0][-1].cpu()
    assert torch.equal(found[WITHOUT], plain[WITHOUT]), "rows without an adapter keep their bits"
    assert not torch.equal(found[~WITHOUT], plain[~WITHOUT])


def test_the_programs_of_a_product_read_all_of_its_adapters_ahead(kernels: Interpreted) -> None:
    from tests.kernels.products.lines import lines_ahead

    found, expected, table = kernels.run(lines_ahead, 520, 9)
    assert expected <= found
    assert all(each in table for each in found - expected), "threads without a line ask for the table"
