"""Blocks in the memory of their sender's device, which the other engines open: a stand-in for GPUs."""

import gc
import itertools
import logging
import os
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from itertools import cycle, product
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api.events import log
from engine.api.params import SamplingParams
from engine.kv.tiers.lender import Lender
from engine.kv.tiers.segment import Lent, clear
from engine.kv.tiers.tier import Transfer
from tests.cases import one_row_of
from tests.engine.byte_tier import DelayedTransfer
from tests.engine.ledger import LedgerBlocks, alone
from tests.examples import examples
from tests.outputs import Output
from tests.tiers.lending import end, lending
from tests.tiers.test_exchange import LedgerForm, Shared, begin, compute, prompt, reply

HANDLE = bytes(63) + b"1"


class Devices:
    """The memory that all devices lend, by handle."""

    def __init__(self) -> None:
        self.lent: dict[bytes, np.ndarray] = {}
        self.opened: list[weakref.ref[Opening]] = []
        self.failing, self.late = False, 0  # how many looks it takes to open memory

    def sender(self, blocks: int = 64, pid: int = 0, handle: bytes = b"") -> "Device":
        """A device that lends memory for so many blocks. `pid`: of its process, if not this one."""
        handle = handle or f"{len(self.lent):064}".encode()
        memory = np.zeros(blocks * LedgerForm.block_nbytes, np.uint8)
        self.lent[handle] = memory
        return Device(self, Lent(memory, memory.nbytes, handle, Lender.of(pid or os.getpid())))

    def reader(self) -> "Device":
        return Device(self, None)

    def taken(self) -> None:
        """Other processes write to all of it."""
        for memory in self.lent.values():
            memory[:] = 99

    def kept(self) -> int:
        """How many openings have not been given back."""
        gc.collect()
        return sum(each() is not None for each in self.opened)


class Device:
    def __init__(self, devices: Devices, lent: Lent | None) -> None:
        self.lent, self._devices, self.looks = lent, devices, 0

    def opened(self, handle: bytes, nbytes: int, lender: Lender) -> np.ndarray | None:
        if self._devices.failing:
            raise OSError("simulated failure")
        self.looks += 1
        if self.looks <= self._devices.late:
            return None
        opening = Opening(self._devices.lent[handle][:nbytes])
        self._devices.opened.append(weakref.ref(opening))
        return np.asarray(opening)


class Opening:
    """Lives as long as any array over the memory does."""

    def __init__(self, memory: np.ndarray) -> None:
        self.__array_interface__ = memory.__array_interface__
        self._memory = memory


def test_blocks_travel_in_the_memory_of_a_device() -> None:
    shared, devices = Shared(64), Devices()
    (sender, tier), (receiver, other) = (
        shared.engine(0, devices.sender()),
        shared.engine(None, devices.reader()),
    )
    text = prompt(0, 100)
    before = np.count_nonzero(shared.memory[3 * 4096 :])
    assert compute(sender, text) == [6]
    assert reply(receiver, text) == (alone(text, 4), 96)
    assert (tier.way, other.used, devices.kept()) == ("gpu", 6, 1)
    assert np.count_nonzero(shared.memory[3 * 4096 :]) == before, "only the table is in host memory"


def test_a_device_lends_less_than_the_table_has_room_for() -> None:
    shared, devices = Shared(64), Devices()
    (sender, tier), (receiver, _) = (
        shared.engine(0, devices.sender(12)),
        shared.engine(None, devices.reader()),
    )
    text = prompt(0, 200)
    assert compute(sender, text) == [6], "half of it"
    assert tier.size == 12
    assert reply(receiver, text) == (alone(text, 4), 96)


def test_memory_that_cannot_be_opened_is_replaced_by_host_memory(caplog: pytest.LogCaptureFixture) -> None:
    shared, devices = Shared(64), Devices()
    (sender, tier), (receiver, _) = shared.engine(0, devices.sender()), shared.engine(None, devices.reader())
    devices.failing = True
    assert compute(sender, prompt(0, 100)) == [6]
    assert reply(receiver, prompt(0, 100)) == (alone(prompt(0, 100), 4), 0), "it computes the prompt itself"
    assert reply(receiver, prompt(2, 100)) == (alone(prompt(2, 100), 4), 0)
    assert compute(sender, prompt(1, 100)) == [6]
    assert tier.way == "host"
    assert reply(receiver, prompt(1, 100)) == (alone(prompt(1, 100), 4), 96)
    assert [each.message.split(":")[0] for each in caplog.records] == [
        "the GPU memory of an engine that sends blocks cannot be opened",
        "blocks are sent through host memory",
    ]


def test_an_engine_without_a_device_refuses_its_memory() -> None:
    shared, devices = Shared(64), Devices()
    (sender, tier), (receiver, _) = shared.engine(0, devices.sender()), shared.engine(None)
    _, other = shared.engine(None, devices.reader())
    assert (other.holds([b"any"]), devices.kept()) == (0, 1)
    for first, found in ((0, 0), (1, 96)):
        compute(sender, prompt(first, 100))
        assert reply(receiver, prompt(first, 100)) == (alone(prompt(first, 100), 4), found)
    assert (tier.way, other.holds([b"any"]), devices.kept()) == ("host", 0, 0)


def test_while_memory_is_being_opened_prompts_are_computed() -> None:
    shared, devices = Shared(64), Devices()
    (sender, _), (receiver, tier) = shared.engine(0, devices.sender()), shared.engine(None, devices.reader())
    devices.late = 10
    text = prompt(0, 100)
    compute(sender, text)
    assert reply(receiver, text)[1] == 0
    devices.late = 0
    assert tier.holds([]) == 0
    assert tier.used == 6


def test_a_store_during_the_change_to_host_memory_is_not_found() -> None:
    shared, devices = Shared(64), Devices()
    (sender, _), (receiver, other) = shared.engine(0, devices.sender()), shared.engine(None)
    text, reports = prompt(0, 100), list[int]()
    with patch.object(LedgerBlocks, "move", lambda blocks, work: DelayedTransfer(work, 3)):
        begin(sender, text, 0, reports.append)
        for _ in range(2):
            sender.step()
        assert other.holds([b"any"]) == 0, "it refuses"
        assert compute(sender, prompt(1, 40)) == [2]
    assert reply(receiver, text) == (alone(text, 4), 0)
    assert reply(receiver, prompt(1, 40)) == (alone(prompt(1, 40), 4), 32)


def test_a_dead_senders_memory_is_given_back(caplog: pytest.LogCaptureFixture) -> None:
    """The fleet clears its segment. A copy that runs keeps the memory until its end."""
    caplog.set_level(logging.ERROR, log.name)  # a traceback that is kept would keep the copy
    shared, devices = Shared(64), Devices()
    file = shared.in_file()
    (sender, _), (receiver, tier) = shared.engine(0, devices.sender()), shared.engine(None, devices.reader())
    text, output = prompt(0, 100), Output()
    compute(sender, text)
    with patch.object(LedgerBlocks, "move", lambda blocks, work: DelayedTransfer(work, 1)):
        receiver.submit(text, SamplingParams(max_tokens=4, seed=0), output)
        receiver.step()
    assert receiver.scheduler.transfers.loading
    clear(file, 0, len(shared.memory))
    os.close(file)
    assert tier.holds([b"any"]) == 0
    assert devices.kept() == 1, "it is being copied"
    while receiver.busy:
        receiver.step()
    assert output.tokens == alone(text, 4)
    assert (devices.kept(), tier.size) == (0, 0)
    later, _ = shared.engine(0, devices.sender())
    assert compute(later, prompt(1, 60)) == [3]
    assert reply(receiver, prompt(1, 60)) == (alone(prompt(1, 60), 4), 48)


@pytest.mark.parametrize("reaped", [False, True])
@pytest.mark.parametrize("first", ["the end", "the copy"])
def test_only_blocks_of_a_process_that_is_alive_after_the_copy_count(
    first: str, reaped: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Its memory may have become another's before the copy has ended. Its segment is not cleared yet."""
    caplog.set_level(logging.ERROR, log.name)  # a traceback that is kept would keep the copy
    shared, devices, text = Shared(64), Devices(), prompt(0, 100)
    with lending() as process:
        sender, _ = shared.engine(0, devices.sender(pid=process.pid))
        receiver, _ = shared.engine(None, devices.reader())
        compute(sender, text)

        def kill() -> None:
            end(process, reaped=reaped)
            devices.taken()

        def moved(blocks: LedgerBlocks, work: Callable[[], None]) -> Transfer:
            works = [kill, work] if first == "the end" else [work, kill]
            return DelayedTransfer(lambda: [each() for each in works] and None, 1)

        with patch.object(LedgerBlocks, "move", moved):
            assert reply(receiver, text) == (alone(text, 4), 0), "it computes the prompt itself"
        assert devices.kept() == 0
        compute(sender, prompt(1, 100))
        assert reply(receiver, prompt(1, 100)) == (alone(prompt(1, 100), 4), 0)


@pytest.mark.parametrize(
    ("handle", "late", "seen"),
    one_row_of(5, product(("same", "other"), (0, 4), ("nothing", "the kill", "the end", "both"))),
)
def test_after_a_kill_nothing_is_found_until_the_restarted_sender_has_lent_its_memory(
    seen: str, late: int, handle: str, caplog: pytest.LogCaptureFixture
) -> None:
    """`seen`: when the receiver looks: before the fleet clears the segment, or after that."""
    caplog.set_level(logging.ERROR, log.name)  # a traceback that is kept would keep the copy
    shared, devices = Shared(64), Devices()
    file, reader = shared.in_file(), devices.reader()
    receiver, tier = shared.engine(None, reader)
    texts = [prompt(first, 100) for first in range(4)]
    with lending() as process:
        sender, _ = shared.engine(0, devices.sender(pid=process.pid, handle=HANDLE))
        for text in texts:
            compute(sender, text)
        assert reply(receiver, texts[0]) == (alone(texts[0], 4), 96)
        end(process)
        devices.taken()
    for text in texts[1:3] if seen in ("the kill", "both") else []:
        assert reply(receiver, text) == (alone(text, 4), 0)
        assert (tier.size, devices.kept()) == (0, 0)
    clear(file, 0, len(shared.memory))
    os.close(file)
    if seen in ("the end", "both"):
        assert reply(receiver, texts[3]) == (alone(texts[3], 4), 0)
        assert (tier.size, devices.kept()) == (0, 0)
    devices.late = reader.looks + late
    with lending() as process:
        lent = HANDLE if handle == "same" else b""
        sender, other = shared.engine(0, devices.sender(pid=process.pid, handle=lent))
        found = list[int]()
        for first in range(5, 5 + late + 1):
            text = prompt(first, 100)
            compute(sender, text)
            tokens, cached = reply(receiver, text)
            assert tokens == alone(text, 4)
            found.append(cached)
    assert (found[0], found[-1]) == (0 if late else 96, 96)
    assert (other.way, devices.kept()) == ("gpu", 1)


def test_closed_engines_keep_nothing_of_others() -> None:
    shared, devices = Shared(64), Devices()
    (sender, tier), (receiver, other) = (
        shared.engine(0, devices.sender()),
        shared.engine(None, devices.reader()),
    )
    compute(sender, prompt(0, 100))
    assert other.holds([b"any"]) == 0
    assert (other.used, devices.kept()) == (6, 1)
    tier.close()
    assert (other.holds([b"any"]), other.used, devices.kept()) == (0, 0, 0)
    assert reply(receiver, prompt(0, 100)) == (alone(prompt(0, 100), 4), 0)


JOBS = st.lists(
    st.tuples(
        st.integers(0, 1),  # the sender
        st.integers(0, 3),  # which prompt
        st.integers(1, 120),  # tokens of it
        st.integers(0, 12),  # steps of the sender before the receiver begins
        st.sampled_from([None, None, None, 0, 2, 5]),  # steps after which the sender is killed
        st.sampled_from([0, 1, 4]),  # steps until another one is started
    ),
    min_size=1,
    max_size=8,
)
COPIES = st.lists(st.tuples(st.integers(0, 5), st.sampled_from([False] * 4 + [True])), min_size=1, max_size=6)
OPENS = st.sampled_from(
    [(0, None), (3, None), (0, 2), (40, 4)]
)  # looks it takes, the job from which it fails


@examples(30)
@given(JOBS, COPIES, st.sampled_from([4, 12, 64]), OPENS)
def test_replies_are_those_of_one_engine(
    jobs: list[tuple[int, int, int, int, int | None, int]],
    copies: list[tuple[int, bool]],
    slots: int,
    opens: tuple[int, int | None],
) -> None:
    """Senders are killed in the middle, others take their memory, and they start again, with the same handle
    for other memory; copies take a while, overtake each other, or fail; memory is opened late, or never.
    """
    shared, devices, coming = Shared(64, senders=2), Devices(), cycle(copies)
    devices.late, breaks = opens
    receiver, _ = shared.engine(None, devices.reader(), depth=1)

    def moved(self: LedgerBlocks, work: Callable[[], None]) -> Transfer:
        looks, fails = next(coming)
        return DelayedTransfer(_broken if fails else work, looks)

    with ExitStack() as held, patch.object(LedgerBlocks, "move", moved):
        senders = [Sender(shared, devices, own, slots, held) for own in (0, 1)]
        for at, (own, first, length, steps, dies, pause) in enumerate(jobs):
            devices.failing = breaks is not None and at >= breaks
            sender, text, output = senders[own], prompt(first, length), Output()
            begin(sender.engine, text, 0, lambda blocks: None)
            for _ in range(steps):
                sender.engine.step()
            receiver.submit(text, SamplingParams(max_tokens=4, seed=0), output)
            for step in itertools.count():
                if step == dies:
                    sender.kill()
                if dies is not None and step == dies + pause:
                    sender.start()
                running = [receiver, *(each.engine for each in senders if each.alive)]
                if not (busy := [each for each in running if each.busy]):
                    break
                for each in busy:
                    each.step()
                    each.scheduler.check()
            assert output.tokens == alone(text, 4)
            if not sender.alive:
                sender.start()
        for engine in (receiver, *(each.engine for each in senders)):
            engine.scheduler.check()
            assert engine.scheduler.pool.in_use == 0


class Sender:
    """An engine that lends memory of a process that can be killed."""

    def __init__(self, shared: Shared, devices: Devices, own: int, slots: int, held: ExitStack) -> None:
        self._shared, self._devices, self._own, self._slots = shared, devices, own, slots
        self._held, self._handle = held, bytes(63) + bytes([own])
        self.start()

    def start(self) -> None:
        self._process = self._held.enter_context(lending())
        device = self._devices.sender(self._slots, self._process.pid, self._handle)
        self.engine, self.alive = self._shared.engine(self._own, device, step_tokens=32)[0], True

    def kill(self) -> None:
        end(self._process)
        self._devices.lent[self._handle][:] = 99
        self.alive = False


def _broken() -> None:
    raise OSError("simulated failure")
