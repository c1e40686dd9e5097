"""The exchanges of ranks, in Triton's interpreter: what a rank sends, and what it makes of what arrives.

Nothing can run beside the interpreter, so the other ranks' words are in the inbox before a rank begins. Words
of older turns are in all other places.
"""

import pytest
import torch
from torch import Tensor

from engine.quant.fp8_linear import quantized
from tests.cases import soak
from tests.kernels.exchanges import Places, exchanged, exchanged_bulk
from tests.kernels.interpreted import Interpreted

pytest.importorskip("triton", reason="no Triton here")


def wrapped(turn: int) -> int:
    return (turn + 2**31) % 2**32 - 2**31


def by_tile(tensor: Tensor, turns: int) -> Places:
    words = tensor.contiguous().view(-1).view(torch.int32)
    tiles = words.split(2048)
    return {(at % 128, wrapped(turns + 1 + at // 128)): each.clone() for at, each in enumerate(tiles)}


def by_row(tensor: Tensor, turns: int) -> Places:
    return {(at % 128, turns + 1 + at // 128): row.view(torch.int32).clone() for at, row in enumerate(tensor)}


def terms(ranks: int, *shape: int, dtype: torch.dtype = torch.bfloat16) -> list[Tensor]:
    torch.manual_seed(sum(shape))
    return [torch.randn(*shape).to(dtype) for _ in range(ranks)]


def total(each: list[Tensor]) -> Tensor:
    """In rank order, in float32."""
    found = each[0].float()
    for term in each[1:]:
        found = found + term.float()
    return found.to(each[0].dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, *soak(torch.float32)], ids=str)
@pytest.mark.parametrize(
    ("ranks", "rank", "rows", "turns"), [(2, 0, 3, 0), (2, 1, 200, 7), (3, 2, 1, 2**31 - 1), (3, 0, 5, -1)]
)
def test_a_sum(
    kernels: Interpreted, dtype: torch.dtype, ranks: int, rank: int, rows: int, turns: int
) -> None:
    given = terms(ranks, rows, 1000, dtype=dtype)
    parts = [by_tile(each, turns) for each in given]
    found, _, sent, counts = kernels.run(exchanged, rank, turns, "exchange_sum", (given[rank],), parts)
    assert torch.equal(found, total(given))
    assert sent
    latest = dict(sorted(parts[0], key=lambda each: (each[0], each[1] - turns)))  # by program
    *turned, nanoseconds, nbytes = counts.tolist()
    assert turned == [latest.get(each, turns) for each in range(128)]
    assert nanoseconds > 0 and nbytes == 2 * given[0].nbytes * (ranks - 1), "a word has its turn"


@pytest.mark.parametrize(("ranks", "rank", "rows"), [(2, 0, 1), (2, 1, 130), (3, 1, 4)])
def test_a_gather(kernels: Interpreted, ranks: int, rank: int, rows: int) -> None:
    given = terms(ranks, rows, 90)
    parts = [by_tile(each, 5) for each in given]
    found, _, sent, counts = kernels.run(exchanged, rank, 5, "exchange_gather", (given[rank],), parts)
    assert torch.equal(found, torch.cat(given, 1))
    assert sent and counts[-1] == 2 * given[0].nbytes * (ranks - 1)


@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize(("ranks", "rank", "rows"), [(2, 1, 1), (3, 2, 2), *soak((2, 0, 131))])
def test_a_sum_and_the_norm_after_it(
    kernels: Interpreted, ranks: int, rank: int, rows: int, pieces: int
) -> None:
    width, eps = 200, 1e-5
    given = terms(ranks, pieces, rows, width, dtype=torch.float32 if pieces > 1 else torch.bfloat16)
    whole = [total([*each]).bfloat16() for each in given]
    x, weight = terms(2, rows, width)
    expected = x + total(whole)
    shrink = torch.rsqrt(expected.float().square().mean(1, keepdim=True) + eps)
    normed = (expected.float() * shrink).bfloat16() * weight[0]
    parts = [by_row(each, 9) for each in whole]
    found, stream, sent, counts = kernels.run(
        exchanged, rank, 9, "exchange_sum_norm", (x, given[rank], weight[0], eps), parts, False
    )
    assert torch.equal(stream, expected)
    torch.testing.assert_close(found.values, normed, rtol=0.01, atol=0.01)
    assert sent and counts[-1] == 2 * x.nbytes * (ranks - 1)


def test_the_norm_after_a_sum_is_rounded(kernels: Interpreted) -> None:
    """With the numbers of a kernel that only rounds."""
    given, (x, weight) = terms(2, 1, 3, 200), terms(2, 3, 200)
    parts = [by_row(each[0], 9) for each in given]
    (plain, stream, *_), (found, same, sent, _) = (
        kernels.run(
            exchanged, 1, 9, "exchange_sum_norm", (x.clone(), given[1], weight[0], 1e-5), parts, rounded
        )
        for rounded in (False, True)
    )
    numbers, steps = quantized(plain.values)
    assert torch.equal(found.values.float(), numbers.float())
    assert torch.equal(found.steps, steps[:, 0]) and found.dtype is torch.bfloat16
    assert torch.equal(same, stream) and sent


@pytest.mark.parametrize("dtype", [torch.bfloat16, *soak(torch.float32)], ids=str)
@pytest.mark.parametrize(("ranks", "rank", "size"), [(2, 0, 50), (3, 1, 70_002), *soak((3, 1, 300_000))])
def test_a_sum_of_a_long_tensor(
    kernels: Interpreted, dtype: torch.dtype, ranks: int, rank: int, size: int
) -> None:
    given = terms(ranks, size, dtype=dtype)
    found, sent, nbytes = kernels.run(exchanged_bulk, rank, 3, given, 0)
    assert torch.equal(found, total(given))
    assert sent and nbytes == given[0].nbytes * (ranks - 1)


def test_a_rank_that_is_a_turn_ahead_has_sent(kernels: Interpreted) -> None:
    """It has this rank's pieces, so it may signal its next turn before this rank has seen the last."""
    given = terms(2, 3000)
    found, sent, _ = kernels.run(exchanged_bulk, 0, 3, given, 1)
    assert torch.equal(found, total(given))
    assert sent
