"""Sums and gathers of several ranks, which are threads here: the pipes and the memory are the same."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor

from engine.distributed.collective import Interrupted, SharedMemoryCollective
from engine.distributed.crews.wires import PLACE, memory_size, wires
from engine.distributed.memory import anonymous

C = TypeVar("C")
T = TypeVar("T")


def team(ranks: int, limit: float = 30.0) -> list[SharedMemoryCollective]:
    ends = wires(ranks, anonymous(memory_size(ranks)))
    return [SharedMemoryCollective(rank, each, limit) for rank, each in enumerate(ends)]


def together(members: Sequence[C], work: Callable[[C], T]) -> list[T]:
    with ThreadPoolExecutor(len(members)) as pool:
        return list(pool.map(work, members))


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_sum_adds_in_rank_order_to_the_bit(ranks: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    terms = [(torch.randn(7, 33, generator=generator) * 10**rank).to(dtype) for rank in range(ranks)]
    expected = terms[0]
    for term in terms[1:]:
        expected = expected + term
    for _ in range(3):
        for found in together(members := team(ranks), lambda each: each.sum(terms[each.rank])):
            assert torch.equal(found, expected)
    assert all(each.ranks == ranks for each in members)


def test_time_and_bytes_are_added_up() -> None:
    members = team(2)
    together(members, lambda each: [each.sum(torch.ones(PLACE // 4 + 3)), each.gather(torch.ones(2, 5))])
    assert [each.exchanged.sent for each in members] == [PLACE + 12 + 40] * 2
    assert all(each.exchanged.seconds > 0 for each in members)


def test_many_sums_in_a_row_do_not_mix() -> None:
    def work(each: SharedMemoryCollective) -> Tensor:
        return torch.stack([each.sum(torch.full((5,), float(n + each.rank))) for n in range(200)])

    for found in together(team(3), work):
        assert torch.equal(found, (3 * torch.arange(200.0) + 3)[:, None].expand(-1, 5))


def test_a_tensor_larger_than_a_place_takes_several_exchanges() -> None:
    size = PLACE // 4 * 2 + 17
    terms = [torch.arange(size, dtype=torch.float32) * (rank + 1) for rank in range(2)]
    for found in together(team(2), lambda each: each.sum(terms[each.rank])):
        assert torch.equal(found, terms[0] + terms[1])


def test_a_gather_joins_the_last_dimension() -> None:
    parts = [torch.arange(6).view(2, 3) + 10 * rank for rank in range(3)]
    for found in together(team(3), lambda each: each.gather(parts[each.rank])):
        assert torch.equal(found, torch.cat(parts, 1))


def test_the_views_of_a_model_are_summed() -> None:
    """Terms that are transposed or parts of others, in inference mode."""

    def work(each: SharedMemoryCollective) -> Tensor:
        with torch.inference_mode():
            return each.sum(torch.arange(12.0).view(3, 4).T[1:])

    for found in together(team(2), work):
        assert torch.equal(found, 2 * torch.arange(12.0).view(3, 4).T[1:])


def check_interruption(members: Sequence[Any]) -> None:
    """An interruption of three ranks' collectives ends every wait, until they are reset."""
    started, errors = threading.Barrier(3), []

    def work(each: Any) -> None:
        started.wait(10)
        try:
            each.sum(torch.ones(2))
        except Interrupted as error:
            errors.append(str(error))

    threads = [threading.Thread(target=work, args=(each,), daemon=True) for each in members[:2]]
    for thread in threads:
        thread.start()
    started.wait(10)
    members[2].interrupt()
    for thread in threads:
        thread.join(10)
    assert errors == ["another rank has stopped"] * 2
    with pytest.raises(Interrupted):
        members[0].sum(torch.ones(2))
    members[1].clear()
    for each in members:
        each.reset()
    for found in together(members, lambda each: each.sum(torch.full((2,), float(each.rank)))):
        assert found.tolist() == [3.0, 3.0]


def test_an_interruption_ends_every_wait_until_the_reset() -> None:
    check_interruption(team(3))


def test_a_wait_for_a_rank_is_bounded() -> None:
    with pytest.raises(Interrupted, match=r"rank 1 did not answer within 0\.05 seconds"):
        team(2, limit=0.05)[0].sum(torch.ones(1))


def test_memory_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="are needed"):
        SharedMemoryCollective(0, wires(2, anonymous(64))[0])
