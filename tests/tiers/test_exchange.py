"""Engines on the ledger, which knows the token of each cell, send blocks through memory that they share."""

from collections.abc import Callable
from itertools import cycle
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api.errors import BadInput
from engine.api.events import Admitted, Event, Transferred
from engine.api.params import SamplingParams
from engine.api.request import Finish, Request
from engine.distributed.memory import anonymous, mapped
from engine.kv.host_memory import Pairs
from engine.kv.tiers.exchange import ExchangeTier
from engine.kv.tiers.segment import Peers
from engine.kv.tiers.tier import Transfer
from engine.serving.engine import Engine
from tests.engine.byte_tier import DelayedTransfer
from tests.engine.ledger import LedgerBlocks, alone, drain, ledger_engine
from tests.examples import examples
from tests.outputs import Output

BLOCK = 16
_PAGE = 4096


class LedgerForm:
    """The cells of a ledger, as a tier of shared memory sees them."""

    block_nbytes = _PAGE - 40  # with its entry in the table, a page
    cells: np.ndarray

    def slab_over(self, memory: np.ndarray, blocks: int) -> np.ndarray:
        return memory.reshape(blocks, self.block_nbytes)[:, : BLOCK * 8].view(np.int64)

    def copy_out(self, slab: np.ndarray, pairs: Pairs) -> None:
        for block, place in pairs:
            slab[place] = self.cells[block]

    def copy_in(self, slab: np.ndarray, pairs: Pairs) -> None:
        for place, block in pairs:
            self.cells[block] = slab[place]


class Shared:
    """The memory of `senders` engines with `slots` blocks each, and engines over it."""

    def __init__(self, slots: int, senders: int = 1) -> None:
        self.memory, self.senders = np.zeros(senders * (3 + slots) * _PAGE, np.uint8), senders

    def in_file(self) -> int:
        """The file that has the memory from now on."""
        file = anonymous(len(self.memory))
        self.memory = np.frombuffer(mapped(file, len(self.memory)), np.uint8)
        return file

    def engine(
        self, own: int | None, peers: Peers | None = None, **config: object
    ) -> tuple[Engine, ExchangeTier]:
        form = LedgerForm()
        tier = ExchangeTier(self.memory, self.senders, own, form, peers=peers)
        engine = ledger_engine(below=[tier], **({"preemption": "swap"} | config))
        form.cells = engine.runner.cells
        engine.scheduler.kv.identify(b"ledger", "none")
        return engine, tier


def compute(engine: Engine, prompt: list[int], first: int = 0) -> list[int]:
    """Compute a prompt and send its blocks from `first` on. Returns what is reported: how many were sent."""
    reports: list[int] = []
    begin(engine, prompt, first, reports.append)
    drain(engine)
    return reports


def begin(engine: Engine, prompt: list[int], first: int, report: Callable[[int], None]) -> Request:
    id = engine.submit(prompt, SamplingParams(max_tokens=1, seed=0), Output())
    request: Request = engine.scheduler.requests[id]
    engine.scheduler.transfers.sending.add(request, first, report)
    return request


def reply(engine: Engine, prompt: list[int], tokens: int = 4) -> tuple[list[int], int]:
    """The reply, and how many of the prompt's tokens its engine did not compute."""
    output, seen = Output(), list[Event]()
    stop = engine.bus.subscribe(seen.append)
    engine.submit(prompt, SamplingParams(max_tokens=tokens, seed=0), output)
    drain(engine)
    stop()
    assert output.finish is Finish.LENGTH
    return output.tokens, next(each.cached for each in seen if isinstance(each, Admitted))


def prompt(first: int, length: int) -> list[int]:
    return [first, *(n % 10 for n in range(1, length))]


def test_the_other_engine_computes_only_what_follows_the_whole_blocks() -> None:
    shared = Shared(64)
    (sender, tier), (receiver, other) = shared.engine(0), shared.engine(None)
    text = prompt(0, 100)
    assert compute(sender, text) == [6]
    assert reply(receiver, text) == (alone(text, 4), 96)
    assert (tier.used, other.size, other.room()) == (6, tier.size, 0)
    assert sum(step.tokens for step in receiver.runner.steps) == 4 + 3, "the prompt was computed here, too"
    assert sender.scheduler.pool.in_use == receiver.scheduler.pool.in_use == 0


def test_what_was_sent_is_loaded_although_computing_it_was_measured_to_be_quicker() -> None:
    shared = Shared(64)
    (sender, _), (receiver, tier) = shared.engine(0), shared.engine(None, preemption="auto")
    receiver.scheduler.costs.observe_step(64, 1e-6)
    tier.cost.observe(1, 60.0, load=True)
    text = prompt(0, 100)
    compute(sender, text)
    assert reply(receiver, text) == (alone(text, 4), 96)


def test_what_is_there_is_not_sent_again() -> None:
    sender, tier = Shared(64).engine(0)
    text = prompt(0, 100)
    assert compute(sender, text, first=2) == [4], "the first two are at the other side"
    assert compute(sender, text, first=2) == [0], "the others are in the memory"
    assert compute(sender, text) == [2]
    assert compute(sender, [*text[:50], *prompt(5, 46)]) == [3]
    assert tier.used == 9


def test_blocks_are_sent_while_the_prompt_is_computed() -> None:
    sender, tier = Shared(64).engine(0, step_tokens=32)
    begin(sender, prompt(0, 100), 0, lambda blocks: None)
    found = []
    while sender.busy:
        sender.step()
        found.append(tier.used)
    assert found[:4] == [0, 0, 2, 4], "a copy is ordered after its step, made with the next, and ends then"


def test_a_prompt_longer_than_half_of_the_memory_is_sent_in_part() -> None:
    shared = Shared(20)
    (sender, tier), (receiver, _) = shared.engine(0), shared.engine(None)
    text = prompt(0, 400)
    assert compute(sender, text) == [tier.size // 2]
    assert reply(receiver, text) == (alone(text, 4), BLOCK * (tier.size // 2))


def test_a_request_that_ends_early_reports_what_it_has_sent_and_holds_nothing() -> None:
    sender, tier = Shared(64).engine(0, step_tokens=32)
    reports: list[int] = []
    request = begin(sender, prompt(0, 100), 0, reports.append)
    for _ in range(2):
        sender.step()
    sender.abort(request.id)
    drain(sender)
    assert reports == [tier.used]
    assert 0 < tier.used < 6
    assert sender.scheduler.pool.in_use == 0


def test_a_request_that_fails_sends_no_more_and_its_blocks_are_not_found() -> None:
    shared = Shared(64)
    (sender, _), (receiver, _) = shared.engine(0, step_tokens=32), shared.engine(None)
    text, reports = prompt(0, 100), list[int]()
    begin(sender, text, 0, reports.append)
    sender.runner.fails = lambda step: step.number == 2
    drain(sender)
    assert not reports
    assert reply(receiver, text) == (alone(text, 4), 0)


def test_a_sender_that_starts_again_replaces_what_it_had_sent() -> None:
    shared = Shared(64)
    (sender, _), (receiver, tier) = shared.engine(0), shared.engine(None)
    request = begin(sender, prompt(0, 100), 0, lambda blocks: None)
    drain(sender)
    names = request.chain[:6]
    assert tier.holds(names) == 6
    later, _ = shared.engine(0)  # the process before it was killed
    assert tier.holds(names) == 0
    assert compute(later, prompt(7, 60)) == [3]
    assert reply(receiver, prompt(7, 60)) == (alone(prompt(7, 60), 4), 48)
    assert reply(receiver, prompt(0, 100)) == (alone(prompt(0, 100), 4), 0)


def test_a_block_that_is_replaced_while_it_is_copied_is_computed_instead() -> None:
    shared = Shared(12)
    (sender, tier), (receiver, _) = shared.engine(0), shared.engine(None)
    text = prompt(0, 60)
    compute(sender, text)

    def late(blocks: LedgerBlocks, work: Callable[[], None]) -> Transfer:
        return DelayedTransfer(work, 1)

    output, seen = Output(), list[Event]()
    receiver.bus.subscribe(seen.append)
    with patch.object(LedgerBlocks, "move", late):
        receiver.submit(text, SamplingParams(max_tokens=4, seed=0), output)
        receiver.step()
    assert receiver.scheduler.transfers.loading, "the copy has begun"
    for first in range(1, 9):  # 24 blocks
        assert compute(sender, prompt(first, 60)) == [3]
    assert tier.size == 12
    drain(receiver)
    assert output.tokens == alone(text, 4)
    assert any("replaced while" in each.error for each in seen if isinstance(each, Transferred))


def test_an_engine_without_shared_memory_refuses_to_send() -> None:
    with pytest.raises(BadInput, match="no memory to send"):
        ledger_engine().scheduler.transfers.sending.check()


def test_memory_that_is_not_ready_only_costs_time() -> None:
    shared, ready = Shared(64), False
    form = LedgerForm()
    tier = ExchangeTier(shared.memory, 1, 0, form, lambda: ready)
    sender = ledger_engine(below=[tier], preemption="swap")
    form.cells = sender.runner.cells
    assert compute(sender, prompt(0, 100)) == [0]
    ready = True
    assert compute(sender, prompt(0, 100)) == [6]


def test_blocks_behind_a_gap_are_not_sent() -> None:
    sender, tier = Shared(6).engine(0, step_tokens=16)
    reports: list[int] = []
    with patch.object(LedgerBlocks, "move", lambda blocks, work: DelayedTransfer(work, 4)):
        for first in (0, 1):
            begin(sender, prompt(first, 70), 0, reports.append)
        drain(sender)
    assert reports == [3, 0], "there was room for the other's last blocks, but not for its first"
    assert tier.used == 3


def test_copies_that_fail_do_not_count_as_sent() -> None:
    shared = Shared(64)
    (sender, _), (receiver, _) = shared.engine(0), shared.engine(None)
    with patch.object(LedgerBlocks, "move", lambda blocks, work: DelayedTransfer(_broken, 1)):
        assert compute(sender, prompt(0, 100)) == [0]
    assert reply(receiver, prompt(0, 100)) == (alone(prompt(0, 100), 4), 0)


def _broken() -> None:
    raise OSError("simulated failure")


JOBS = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.integers(0, 3),
        st.integers(1, 120),
        st.sampled_from([0, 0, 3]),
        st.integers(0, 12),
    ),
    min_size=1,
    max_size=8,
)


COPIES = st.lists(st.tuples(st.integers(0, 5), st.sampled_from([False] * 4 + [True])), min_size=1, max_size=6)


@examples(30)
@given(JOBS, COPIES, st.sampled_from([4, 12, 64]), st.sampled_from([8, 64]))
def test_replies_are_those_of_one_engine(
    jobs: list[tuple[int, int, int, int, int]], copies: list[tuple[int, bool]], slots: int, blocks: int
) -> None:
    """Two engines compute prompts, one replies, over little memory that is written again and again, by copies
    that take a while, overtake each other, or fail.
    """
    shared, coming = Shared(slots, senders=2), cycle(copies)
    senders = [shared.engine(own, blocks=blocks, step_tokens=32)[0] for own in (0, 1)]
    receiver, _ = shared.engine(None, blocks=blocks, depth=1)

    def moved(self: LedgerBlocks, work: Callable[[], None]) -> Transfer:
        looks, fails = next(coming)
        return DelayedTransfer(_broken if fails else work, looks)

    with patch.object(LedgerBlocks, "move", moved):
        for own, first, length, there, steps in jobs:
            text, output = prompt(first, length), Output()
            begin(senders[own], text, there, lambda blocks: None)
            for _ in range(steps):  # so some blocks may be found while others are being written
                senders[own].step()
            receiver.submit(text, SamplingParams(max_tokens=4, seed=0), output)
            while busy := [each for each in (*senders, receiver) if each.busy]:
                for each in busy:
                    each.step()
                    each.scheduler.check()
            assert output.tokens == alone(text, 4)
    for engine in (*senders, receiver):
        engine.scheduler.check()
        assert engine.scheduler.pool.in_use == 0
