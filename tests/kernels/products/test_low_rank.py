"""What adapters add to a product, by kernels, against torch; in Triton's interpreter and on a GPU."""

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.models.adapters.table import AdapterLayout, AdapterTable
from tests.kernels.adapted import (
    INPUTS,
    MODULES,
    OUTPUTS,
    TARGETS,
    WIDTH,
    Ranks,
    activated,
    added,
    expected,
    expected_activation,
    random_files,
    shrunk_beside,
)
from tests.kernels.interpreted import Interpreted

pytest.importorskip("triton", reason="no Triton here")

CPU = torch.device("cpu")
RANKS: dict[int, Ranks] = {1: (3, 0, 5), 2: (8, 8, 8), 5: (0, 16, 0)}
ROWS = {
    "one": [5],
    "one without": [0],
    "some": [1, 0, 2, 0, 0, 5, 1],
    "a tile without": [0] * 16 + [2, 1],
    "a prompt": [1] * 40 + [0] * 30 + [2] * 20,
}


def numbers(rows: int, *, dtype: torch.dtype, device: torch.device = CPU) -> tuple[Tensor, Tensor]:
    """Inputs and outputs of the product."""
    generator = torch.Generator().manual_seed(rows)
    made = (torch.randn(rows, width, generator=generator) for width in (INPUTS, OUTPUTS))
    x, out = (each.to(device, dtype) for each in made)
    return x, out


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float16, 1e-2)], ids=str)
@pytest.mark.parametrize("rows", ROWS)
def test_rows_get_what_their_adapters_add(
    kernels: Interpreted, rows: str, dtype: torch.dtype, tolerance: float
) -> None:
    x, out = numbers(len(ROWS[rows]), dtype=dtype)
    found = kernels.run(added, RANKS, ROWS[rows], x, out)
    wanted = expected(RANKS, ROWS[rows], x, out)
    torch.testing.assert_close(found.float(), wanted, rtol=tolerance, atol=tolerance)
    without = np.array(ROWS[rows]) == 0
    assert torch.equal(found[without], out[without])


def beside(kind: torch.dtype, device: torch.device = CPU) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x, weight = (torch.randn(rows, INPUTS, generator=generator) for rows in (7, 100))
    return x.to(device, kind), (weight / INPUTS**0.5).to(device, kind)


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("ranks", [RANKS, {1: (70, 3, 0), 2: (0, 0, 8), 5: (1, 1, 1)}])
def test_a_product_of_few_rows_is_in_one_launch_with_shrink(
    kernels: Interpreted, ranks: dict[int, Ranks], parts: int
) -> None:
    out, narrow, *alone = kernels.run(shrunk_beside, ranks, ROWS["some"], *beside(torch.float16), parts)
    assert torch.equal(out, alone[0]) and torch.equal(narrow, alone[1])


@pytest.mark.cuda
@pytest.mark.parametrize("parts", [1, 2])
def test_a_product_in_one_launch_with_shrink_on_a_gpu(parts: int) -> None:
    given = beside(torch.bfloat16, torch.device("cuda"))
    out, narrow, *alone = shrunk_beside(RANKS, ROWS["some"], *given, parts)
    assert torch.equal(out, alone[0]) and torch.equal(narrow, alone[1])


GATED: dict[int, tuple[int, int]] = {1: (8, 8), 2: (0, 5), 4: (70, 3)}


def gated(parts: int, dtype: torch.dtype, device: torch.device = CPU) -> tuple[Tensor, Tensor]:
    """Inputs of five rows, and the parts of their product."""
    generator = torch.Generator().manual_seed(0)
    x, made = (torch.randn(*shape, generator=generator) for shape in ((5, INPUTS), (parts, 5, 2 * WIDTH)))
    return x.to(device, dtype), made.to(device, torch.float32 if parts > 1 else dtype)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float16, 1e-2)], ids=str)
@pytest.mark.parametrize("parts", [1, 3])
def test_an_activation_includes_what_adapters_add(
    kernels: Interpreted, parts: int, dtype: torch.dtype, tolerance: float
) -> None:
    given = GATED, [1, 0, 4, 2, 4], *gated(parts, dtype)
    found = kernels.run(activated, *given)
    assert found.dtype == dtype
    torch.testing.assert_close(found.float(), expected_activation(*given), rtol=tolerance, atol=tolerance)


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_an_activation_on_a_gpu(dtype: torch.dtype) -> None:
    tolerance = 4e-2 if dtype is torch.bfloat16 else 1e-4
    given = GATED, [1, 0, 4, 2, 4], *gated(1, dtype, torch.device("cuda"))
    found = activated(*given).float().cpu()
    torch.testing.assert_close(found, expected_activation(*given), rtol=tolerance, atol=tolerance)


def test_ranks_of_several_slices(kernels: Interpreted) -> None:
    ranks: dict[int, Ranks] = {1: (70, 0, 2), 2: (0, 100, 128)}
    x, out = numbers(3, dtype=torch.float32)
    found = kernels.run(added, ranks, [2, 0, 1], x, out)
    torch.testing.assert_close(found, expected(ranks, [2, 0, 1], x, out), rtol=1e-5, atol=1e-5)


def test_more_adapters_than_one_product_takes(kernels: Interpreted) -> None:
    ranks: dict[int, Ranks] = {1: (20, 0, 2), 2: (0, 32, 5), 5: (17, 3, 0)}
    x, out = numbers(5, dtype=torch.float32)
    found = kernels.run(added, ranks, [2, 0, 1, 5, 1], x, out)
    torch.testing.assert_close(found, expected(ranks, [2, 0, 1, 5, 1], x, out), rtol=1e-5, atol=1e-5)
    given = {1: (20, 20), 2: (0, 5), 4: (17, 3)}, [1, 0, 4, 2, 4], *gated(3, torch.float32)
    found = kernels.run(activated, *given)
    torch.testing.assert_close(found, expected_activation(*given), rtol=1e-5, atol=1e-5)


def test_a_row_that_is_not_a_number_stays_alone(kernels: Interpreted) -> None:
    x, out = numbers(3, dtype=torch.float32)
    x[1] = torch.nan
    found = kernels.run(added, RANKS, [1, 2, 2], x, out)
    assert found[[0, 2]].isfinite().all() and not found[1].isfinite().any()


@pytest.mark.cuda
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.bfloat16, 4e-2), (torch.float16, 1e-2), (torch.float32, 1e-4)],
    ids=str,
)
@pytest.mark.parametrize("rows", ROWS)
def test_rows_on_a_gpu(rows: str, dtype: torch.dtype, tolerance: float) -> None:
    x, out = numbers(len(ROWS[rows]), dtype=dtype, device=torch.device("cuda"))
    wanted = expected(RANKS, ROWS[rows], x, out)
    found = added(RANKS, ROWS[rows], x, out).float().cpu()
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)


# The table


def table_of(*given: tuple[int, Ranks]) -> AdapterTable:
    table = AdapterTable(TARGETS, torch.float32, CPU)
    for number, ranks in given:
        table.put(number, random_files(ranks, number, torch.float32))
    return table


def test_a_place_is_used_again_and_the_table_stays_where_it_is() -> None:
    """So graphs that read it stay valid."""
    table = table_of((1, (4, 0, 4)), (2, (8, 8, 8)))
    layout, address = table.layout, table.numbers.data_ptr()
    assert table.places(np.array([2, 0, 1, 2])).tolist() == [2, 0, 1, 2]
    table.drop(1)
    assert 1 not in table and 2 in table
    table.put(7, random_files((16, 1, 0), 7, torch.float32))
    assert table.places(np.array([7, 2])).tolist() == [1, 2]
    assert table.numbers[1, 3:6, 2].tolist() == [16, 1, 0]
    assert (table.layout, table.numbers.data_ptr()) == (layout, address)


def test_a_table_that_a_step_has_made_can_be_changed_between_steps() -> None:
    """Steps run in torch's inference mode, whose tensors cannot be changed outside of it."""
    with torch.inference_mode():
        table = table_of((1, (4, 0, 4)))
    for number in range(2, 20):
        table.put(number, random_files((1, 1, 1), number, torch.float32))
    with torch.inference_mode():
        table.put(20, random_files((2, 2, 2), 20, torch.float32))
    assert table.numbers[table.places(np.array([20])), 3:6, 2].tolist() == [[2, 2, 2]]


def test_a_table_knows_where_the_modules_of_each_product_are() -> None:
    table = table_of()
    assert table.numbers[:, 3:, 3:5].tolist() == [[[*module] for module in MODULES]] * len(table.numbers)
    assert table.modules[1, "qkv"].columns == slice(3, 6) and table.modules[1, "qkv"].outputs == (150, 24, 24)
    assert table.nbytes == 0


def test_the_layout_changes_for_a_larger_rank_and_for_more_adapters() -> None:
    table = table_of((1, (4, 0, 4)))
    assert table.layout == AdapterLayout(17, 16, frozenset({"qkv"}))
    table.put(2, random_files((40, 0, 0), 2, torch.float32))
    assert table.layout.rank == 64
    for number in range(3, 18):
        table.put(number, random_files((1, 1, 1), number, torch.float32))
    assert table.layout == AdapterLayout(34, 64, frozenset({"qkv"})) and len(table.numbers) == 34
    assert table.numbers[17, 3:6, 2].tolist() == [1, 1, 1]
    for number in range(1, 18):
        table.drop(number)
    assert table.nbytes == 0
    table.put(18, random_files((4, 4, 4), 18, torch.float32))
    assert table.layout.rank == 16, "the first of an empty table decides again"


def test_a_larger_table_counts_from_zero() -> None:
    """It may be copied while a launch counts in the one before (gemm_with_terms.py)."""
    table = table_of((1, (1, 1, 1)))
    table.numbers[0, :, 5:7] = 3
    for number in range(2, 18):
        table.put(number, random_files((1, 1, 1), number, torch.float32))
    assert len(table.numbers) == 34 and (table.numbers[0, :, 5:] == 0).all()
    assert torch.equal(table.numbers[0], table_of().numbers[0])
