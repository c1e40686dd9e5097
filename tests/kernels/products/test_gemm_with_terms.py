"""A product in one launch with what adapters add, interpreted and on a GPU."""

import pytest
import torch
from torch import Tensor

from tests.kernels.interpreted import Interpreted
from tests.kernels.products.read_terms import ROWS, product_and_terms

pytest.importorskip("triton", reason="no Triton here")
WITHOUT = torch.tensor(ROWS) == 0


def check(made: dict[str, Tensor], tolerance: float) -> None:
    made = {name: each.cpu() for name, each in made.items()}
    parts, alone, terms = (made[name] for name in ("parts", "alone", "terms"))
    assert torch.equal(parts[:-1].to(alone.dtype), alone), "the product keeps its bits"
    torch.testing.assert_close(parts[-1], terms.float(), rtol=tolerance, atol=tolerance)
    assert (parts[-1][WITHOUT] == 0).all() and (parts[-1][~WITHOUT] != 0).any()
    assert (made["counters"] == 0).all(), "the next launch counts from 0"


@pytest.mark.parametrize(
    ("modules", "rank", "at_once"),
    [((120, 40, 40), 16, 40), ((260, 260), 32, 4)],  # the second: more programs than run at once
    ids=str,
)
def test_a_product_with_terms(
    kernels: Interpreted, modules: tuple[int, ...], rank: int, at_once: int
) -> None:
    made = kernels.run(product_and_terms, torch.float16, modules, rank, 128, "cpu", at_once)
    check(made, 1e-2)


def test_a_product_that_leaves_no_room_for_programs_of_terms(kernels: Interpreted) -> None:
    assert kernels.run(product_and_terms, torch.float16, (260, 260), 16, 128, "cpu", 12) is None


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("modules", "rank", "inputs"),
    [((4096, 1024, 1024), 16, 4096), ((12288, 12288), 32, 4096)],
    ids=str,
)
def test_a_product_with_terms_on_a_gpu(
    modules: tuple[int, ...], rank: int, inputs: int, dtype: torch.dtype
) -> None:
    made = product_and_terms(dtype, modules, rank, inputs, "cuda", None)
    assert made is not None
    check(made, 1e-2 if dtype is torch.float16 else 6e-2)
