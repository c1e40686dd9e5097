"""Sums and gathers over gloo, and the board on which ranks meet. The ranks are threads here."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
import torch
from torch import Tensor

from engine.distributed.collective import Interrupted
from engine.distributed.groups.board import Board
from engine.distributed.groups.group import GroupCollective, outcome
from tests.distributed.test_collective import check_interruption, together
from tests.waiting import LIMIT

CPU = torch.device("cpu")


@contextmanager
def boards(ranks: int) -> Iterator[list[Board]]:
    pairs = [socket.socketpair() for _ in range(1, ranks)]
    made = [Board([ours for ours, _ in pairs]), *(Board([theirs]) for _, theirs in pairs)]
    try:
        yield made
    finally:
        for each in made:
            each.close()


@contextmanager
def team(ranks: int) -> Iterator[list[GroupCollective]]:
    with boards(ranks) as found:
        members = [GroupCollective(rank, ranks, each, "sums", CPU, LIMIT) for rank, each in enumerate(found)]
        together(members, lambda each: each.connect())
        try:
            yield members
        finally:
            for each in members:
                each.close()


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_sum_adds_in_rank_order_to_the_bit(ranks: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    terms = [(torch.randn(7, 33, generator=generator) * 10**rank).to(dtype) for rank in range(ranks)]
    expected = terms[0]
    for term in terms[1:]:
        expected = expected + term
    with team(ranks) as members:
        for _ in range(3):
            for found in together(members, lambda each: each.sum(terms[each.rank])):
                assert torch.equal(found, expected)
        assert all(each.exchanged.sent == 3 * terms[0].nbytes * (ranks - 1) for each in members)
        assert all(each.exchanged.seconds > 0 for each in members)


def test_a_gather_joins_the_last_dimension() -> None:
    parts = [torch.arange(6).view(2, 3) + 10 * rank for rank in range(3)]
    with team(3) as members:
        for found in together(members, lambda each: each.gather(parts[each.rank])):
            assert torch.equal(found, torch.cat(parts, 1))


def test_the_views_of_a_model_are_summed() -> None:
    def work(each: GroupCollective) -> Tensor:
        with torch.inference_mode():
            return each.sum(torch.arange(12.0).view(3, 4).T[1:])

    with team(2) as members:
        for found in together(members, work):
            assert torch.equal(found, 2 * torch.arange(12.0).view(3, 4).T[1:])


def test_an_interruption_ends_every_wait_until_the_reset() -> None:
    with team(3) as members:
        check_interruption(members)


def test_ranks_that_still_meet_are_interrupted() -> None:
    """One of them is lost before the others have found it."""
    with boards(2) as (one, other):
        member, ended = GroupCollective(0, 2, one, "sums", CPU), list[str]()

        def meet() -> None:
            try:
                member.connect()
            except Interrupted as error:
                ended.append(str(error))

        thread = threading.Thread(target=meet, daemon=True)
        thread.start()
        other.read("sums/0/0/0", 10)  # where it is reached
        member.interrupt()
        thread.join(10)
        assert ended == ["another rank has stopped"]


def test_a_wait_for_a_rank_is_bounded() -> None:
    with team(2) as members:
        members[0]._limit = 0.01
        with pytest.raises(Interrupted, match=r"within 0\.01 seconds"):
            members[0].sum(torch.ones(1))
        members[1].close()


def test_a_rank_that_leaves_ends_the_waits_of_others() -> None:
    with team(2) as members:
        members[1].close()
        with pytest.raises(Interrupted, match="another rank is lost: "):
            members[0].sum(torch.ones(1))


def test_notes_reach_every_board() -> None:
    seen: dict[int, threading.Event] = {rank: threading.Event() for rank in range(3)}
    with boards(3) as found:
        watch: Callable[[int], Callable[[str], None]] = lambda rank: lambda key: seen[rank].set()  # noqa: E731
        for rank, each in enumerate(found):
            each.watch(watch(rank))
        found[2].post("key", b"\x00\xff")
        for rank, each in enumerate(found):
            assert each.read("key", 10) == b"\x00\xff"
            assert seen[rank].wait(10)
        with pytest.raises(TimeoutError, match="no rank has posted another"):
            found[1].read("another", 0.01)


class _Work:
    """A call that ends just after a wait for it has given up."""

    def __init__(self, error: str = "") -> None:
        self._error, self._ended = error, False

    def wait(self, timeout: timedelta | None = None) -> bool:
        if not self._ended:
            self._ended = True
            raise RuntimeError("Operation timed out!")
        if self._error:
            raise RuntimeError(self._error)
        return True

    def is_completed(self) -> bool:
        return self._ended


@pytest.mark.parametrize("error", ["", "a connection was closed"])
def test_a_call_that_ends_after_the_wait_for_it_has_not_failed(error: str) -> None:
    assert outcome(_Work(error)) == error
