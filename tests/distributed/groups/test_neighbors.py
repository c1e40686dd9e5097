"""Streams between stages over gloo. The stages are threads here."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from engine.distributed.groups.neighbors import Neighbors
from tests.distributed.groups.test_group import boards
from tests.distributed.test_collective import together
from tests.waiting import LIMIT


@contextmanager
def stages(count: int) -> Iterator[list[Neighbors]]:
    """From the first to the last one."""
    with boards(count) as found:
        ranks = range(count - 1, -1, -1)

        def join(rank: int) -> Neighbors:
            before = rank + 1 if rank + 1 < count else None
            after = rank - 1 if rank else None
            return Neighbors(rank, before, after, found[rank], limit=LIMIT)

        made = together(ranks, join)
        try:
            yield made
        finally:
            for each in made:
                each.abort()


def test_streams_pass_all_stages_in_their_order() -> None:
    with stages(3) as (first, middle, last):
        sends = [first.send([torch.full((2, 3), float(n))], 1, 0) for n in range(5)]
        for _ in range(5):
            stream = torch.empty(2, 3)
            middle.recv([stream], 2, 0).wait()
            sends.append(middle.send([stream + 10], 0, 0))
        found = [torch.empty(2, 3) for _ in range(5)]
        for each in found:
            last.recv([each], 1, 0).wait()
        assert [each[1, 2].item() for each in found] == [10, 11, 12, 13, 14]
        for each in sends:
            each.wait()


def test_a_receive_ends_if_its_stage_is_told_that_a_rank_is_lost() -> None:
    with stages(2) as (_, last):
        work = last.recv([torch.empty(1)], 1, 0)
        timer = threading.Timer(0.1, last.abort)
        timer.start()
        with pytest.raises(RuntimeError, match="a rank is lost"):
            work.wait()
        with pytest.raises(RuntimeError, match="a rank is lost"):
            last.recv([torch.empty(1)], 1, 0)
        timer.join()


def test_no_receive_begins_once_others_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    with stages(2) as (_, last):
        end = last._stopped.set

        def ended() -> None:
            with pytest.raises(RuntimeError, match="a rank is lost"):
                last.recv([torch.empty(1)], 1, 0)
            end()

        monkeypatch.setattr(last._stopped, "set", ended)
        last.abort()


def test_a_receive_ends_if_the_stage_before_leaves() -> None:
    with stages(2) as (first, last):
        first.abort()
        with pytest.raises(RuntimeError):
            last.recv([torch.empty(1)], 1, 0).wait()


def test_a_wait_is_bounded() -> None:
    with stages(2) as (_, last):
        last._limit = 0.01
        with pytest.raises(RuntimeError, match=r"within 0\.01 seconds"):
            last.recv([torch.empty(1)], 1, 0).wait()


def test_stages_that_still_meet_are_given_up() -> None:
    """One of them is lost before the others have found it."""
    with boards(2) as (one, other):
        lost, ended = threading.Event(), list[Exception]()

        def meet() -> None:
            try:
                Neighbors(0, 1, None, one, lost.is_set)
            except (RuntimeError, TimeoutError) as error:
                ended.append(error)

        thread = threading.Thread(target=meet, daemon=True)
        thread.start()
        other.read("streams of 1/0/1", 10)  # where it is reached
        lost.set()
        one.post("sums 0/0/stop", b"")
        thread.join(10)
        assert len(ended) == 1
