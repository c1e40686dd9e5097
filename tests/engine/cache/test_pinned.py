"""Host memory that is pinned before torch is there. The driver is a fake, which notes what it should pin."""

import ctypes
import gc
import sys
from itertools import count
from types import FrameType
from typing import Any

import pytest
import torch

from engine.api.config import EngineConfig
from engine.kv import pinned
from engine.kv.pinned import MOST, PinnedAhead, blocks_ahead, bytes_ahead
from tests.waiting import becomes

SLAB = 2**16


class Driver:
    def __init__(self, slabs: int = 9, lost: bool = False, busy: bool = False) -> None:
        self.left, self.lost, self.busy = slabs, lost, busy
        self.memory = set[int]()

    def cuCtxSetCurrent(self, context: ctypes.c_void_p) -> int:
        return int(self.lost)

    def cuMemHostRegister_v2(self, address: ctypes.c_void_p, nbytes: ctypes.c_size_t, flags: int) -> int:
        assert address.value and address.value % 2**21 == 0 and nbytes.value == SLAB
        if not self.left:
            return 2
        self.left -= 1
        self.memory.add(address.value)
        return 0

    def cuMemHostUnregister(self, address: ctypes.c_void_p) -> int:
        assert address.value
        if not self.busy:
            self.memory.remove(address.value)
        return int(self.busy)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pinned, "SLAB", SLAB)
    monkeypatch.setattr(pinned, "free_host_memory", lambda: 2**30)


def begun(driver: Driver, nbytes: int = 2 * SLAB) -> PinnedAhead:
    made = PinnedAhead()
    made.begin(driver, ctypes.c_void_p(), nbytes)
    return made


def taken(ahead: PinnedAhead, nbytes: int = SLAB) -> torch.Tensor:
    found = ahead.take(nbytes)
    assert found is not None
    return torch.from_numpy(found)


def test_each_slab_is_taken_once_until_the_last_view_of_it_is_gone() -> None:
    driver = Driver()
    ahead = begun(driver)
    one, other = taken(ahead), taken(ahead, SLAB - 8)
    one.fill_(1)
    other.fill_(2)
    assert (len(one), len(other), ahead.nbytes) == (SLAB, SLAB - 8, 2 * SLAB)
    assert one.unique().tolist() == [1], "they share no memory"
    assert {one.data_ptr(), other.data_ptr()} == {*driver.memory}
    assert ahead.take(SLAB) is None
    address, view = one.data_ptr(), one.view(2, -1)[1].view(torch.int32)
    del one
    gc.collect()
    assert ahead.take(SLAB) is None, "a view is left"
    assert view.unique().tolist() == [0x01010101]
    del view
    assert taken(ahead).data_ptr() == address


def test_what_nothing_uses_is_given_back() -> None:
    driver = Driver()
    ahead = begun(driver, 5 * SLAB)
    used = taken(ahead)
    ahead.give_back()
    assert {*driver.memory} == {used.data_ptr()}
    assert ahead.nbytes == SLAB
    assert ahead.take(SLAB) is None
    ahead.give_back()
    assert len(driver.memory) == 1


def test_a_slab_is_not_lost_if_its_last_array_goes_while_others_are_given_back() -> None:
    """At any instruction: arrays also go on other threads, which cannot wait."""
    for at in count(1):
        driver = Driver()
        ahead = begun(driver)
        used = [taken(ahead)]
        clear_during_give_back(used, ahead, at)
        reached = not used
        used.clear()
        ahead.give_back()
        assert not driver.memory
        if not reached:  # there is no such instruction
            assert at > 9
            return


def clear_during_give_back(used: list[torch.Tensor], ahead: PinnedAhead, at: int) -> None:
    """Clear the list before the instruction of this number."""

    def trace(frame: FrameType, what: str, _: object) -> Any:
        nonlocal at
        if frame.f_code is not PinnedAhead.give_back.__code__:
            return None
        frame.f_trace_opcodes = True
        at -= what == "opcode"
        if not at:
            used.clear()
        return trace

    usual = sys.gettrace()
    sys.settrace(trace)
    try:
        ahead.give_back()
    finally:
        sys.settrace(usual)


def test_memory_that_cannot_be_unpinned_stays_mapped() -> None:
    driver = Driver(busy=True)
    ahead = begun(driver)
    ahead.give_back()
    assert ahead.nbytes == 2 * SLAB
    for address in driver.memory:
        assert ctypes.c_uint8.from_address(address).value == 0


@pytest.mark.parametrize(
    ("driver", "nbytes", "slabs"),
    [(Driver(1), 3 * SLAB, 1), (Driver(lost=True), SLAB, 0), (Driver(), SLAB - 1, 0), (Driver(), 2**40, 9)],
)
def test_as_much_is_pinned_as_can_be(driver: Driver, nbytes: int, slabs: int) -> None:
    ahead = begun(driver, nbytes)
    found = [ahead.take(SLAB) for _ in range(slabs)]
    assert all(each is not None for each in found)
    assert ahead.take(SLAB) is None
    assert ahead.nbytes == slabs * SLAB


def test_a_share_of_the_free_memory_is_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pinned, "free_host_memory", lambda: 15 * SLAB)
    ahead = begun(Driver(), 9 * SLAB)
    found = [ahead.take(1) for _ in range(4)]
    assert [each is None for each in found] == [False, False, False, True]


def test_there_is_none_before_it_begins_and_none_of_a_larger_size() -> None:
    ahead = PinnedAhead()
    assert ahead.take(1) is None
    ahead.give_back()
    ahead = begun(Driver())
    assert ahead.take(SLAB + 1) is None
    assert ahead.take(SLAB) is not None


@pytest.mark.parametrize(
    ("settings", "nbytes"),
    [
        ({}, MOST),
        ({"kv_host": 1.0}, 10**9),
        ({"kv_host": 9.0}, MOST),
        ({"host_blocks": 4}, 0),
        ({"kv_budget": 512}, 0),
        ({"tp": 2}, 0),
    ],
)
def test_the_configuration_says_how_much(settings: dict[str, Any], nbytes: int) -> None:
    assert bytes_ahead(EngineConfig(model="m", **settings)) == nbytes


@pytest.mark.parametrize(
    ("nbytes", "each", "blocks"),
    [
        (3 * SLAB, SLAB // 4, 12),
        (3 * SLAB, SLAB // 4 + 1, 9),  # 11 would fit
        (2 * SLAB - 1, SLAB // 4, 4),
        (SLAB - 1, SLAB // 4, 3),
        (3 * SLAB, 2 * SLAB, 1),
        (0, 8, 0),
    ],
)
def test_blocks_fill_whole_slabs(nbytes: int, each: int, blocks: int) -> None:
    """The driver would pin the rest of one beside a start. Without a whole one there is no other way."""
    assert blocks_ahead(nbytes, each) == blocks


@pytest.mark.cuda
def test_blocks_go_through_memory_that_was_pinned_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    from engine import early
    from engine.api.cache_spec import LayerSpec
    from engine.kv.store import KVStore

    monkeypatch.setattr(pinned, "SLAB", 2**24)
    gpu, ahead = torch.device("cuda", 0), PinnedAhead()
    torch.zeros(1, device=gpu)
    retained = early._retained(0)
    assert retained is not None
    ahead.begin(*retained, 3 * 2**24)
    monkeypatch.setattr(pinned, "pinned_ahead", ahead)
    spec = LayerSpec(heads=2, kv_heads=1, key_dim=64, value_dim=64, scale=1.0)
    kv = KVStore([spec], blocks=8, block_size=16, host_blocks=8, dtype=torch.bfloat16, device=gpu)
    assert kv.host_ready(least=8) == 8
    (slab,) = kv.host.slabs
    assert slab[0].keys.is_pinned()
    assert becomes(lambda: ahead.nbytes == 2**24), "the others are given back"
    swapped(kv)
    kv.clear()
    del slab
    gc.collect()
    assert ahead.take(2**24) is not None
    ahead.give_back()
    assert ahead.nbytes == 0, "unmapped while it is pinned, it would break the tests that follow"


def swapped(kv: Any) -> None:
    """Swap the blocks out and in."""
    layer, gpu = kv.layers[0], kv.layers[0].keys.device
    layer.keys.copy_(torch.arange(8, device=gpu)[:, None, None, None].expand_as(layer.keys))
    kv.swap_out([(block, 7 - block) for block in range(8)])
    torch.cuda.synchronize()
    layer.keys.zero_()
    kv.swap_in([(7 - block, block) for block in range(8)])
    torch.cuda.synchronize()
    assert layer.keys[:, 0, 0, 0].tolist() == [*range(8)]
