"""Host memory that is pinned slab by slab, with a stand-in for the pinning."""

from collections.abc import Iterator
from queue import SimpleQueue
from threading import Thread

import pytest
import torch

from engine.api.cache_spec import LayerSpec
from engine.execution.cache_blocks import blocks_of
from engine.kv import pinned
from engine.kv.host_memory import HostMemory
from engine.kv.store import KVStore
from engine.kv.tiers.host import HostTier
from tests.waiting import LIMIT, becomes

SPEC = LayerSpec(heads=2, kv_heads=1, key_dim=8, value_dim=8, scale=1.0)
CPU = torch.device("cpu")
BLOCK = KVStore.block_bytes([SPEC] * 2, 16, torch.float32)


class Pinning:
    """Pins one slab per permit, or raises if the test asks for a failure."""

    def __init__(self) -> None:
        self.allowed: SimpleQueue[bool] = SimpleQueue()
        self.asked: list[int] = []

    def __call__(self, nbytes: int) -> torch.Tensor:
        self.asked.append(nbytes)
        if not self.allowed.get(timeout=30):
            raise RuntimeError("CUDA error: out of memory")
        return torch.zeros(nbytes, dtype=torch.uint8)


@pytest.fixture
def pinning() -> Iterator[Pinning]:
    made = Pinning()
    yield made
    for _ in range(9):
        made.allowed.put(False)


@pytest.fixture
def kv(pinning: Pinning, monkeypatch: pytest.MonkeyPatch) -> KVStore:
    monkeypatch.setattr(pinned, "SLAB", 2 * BLOCK + 1)
    made = KVStore(
        [SPEC] * 2, blocks=6, block_size=16, host_blocks=5, dtype=torch.float32, device=CPU,
        pin=pinning,
    )  # fmt: skip
    for layer in made.layers:
        for tensor in layer.tensors():
            tensor[:] = torch.arange(6.0)[:, None, None, None]
    return made


def test_blocks_become_usable_slab_by_slab(kv: KVStore, pinning: Pinning) -> None:
    tier, blocks = HostTier(kv), blocks_of(kv, CPU)
    assert (tier.size, tier.room(), tier.used) == (5, 0, 0), "nothing waits for the first slab"
    pinning.allowed.put(True)
    assert becomes(lambda: tier.room() == 2)
    tier.store([b"a", b"b"], blocks((1, 2)))
    assert (tier.room(), tier.used, kv.host_nbytes) == (0, 2, 2 * BLOCK)
    pinning.allowed.put(True)
    assert becomes(lambda: tier.room() == 2)
    tier.store([b"c"], blocks((3,)))
    pinning.allowed.put(True)
    assert becomes(lambda: tier.room() == 2)
    assert pinning.asked == [2 * BLOCK, 2 * BLOCK, BLOCK]
    tier.load([b"c", b"a"], blocks((0, 5)))  # of two slabs
    found = [tensor[:, 0, 0, 0].tolist() for layer in kv.layers for tensor in layer.tensors()]
    assert found == [[3, 1, 2, 3, 4, 1]] * 4
    tier.release([b"a", b"b", b"c"])
    assert (tier.room(), tier.used) == (5, 0)


def test_a_store_beyond_what_is_ready_waits_for_it(kv: KVStore, pinning: Pinning) -> None:
    """Only a replay sends one; the scheduler asks for the room before."""
    for _ in range(3):
        pinning.allowed.put(True)
    tier = HostTier(kv)
    tier.store([bytes([n]) for n in range(5)], blocks_of(kv, CPU)(tuple(range(5))))
    assert (tier.room(), tier.used) == (0, 5)


def test_a_store_waits_only_for_the_slabs_that_it_needs(kv: KVStore, pinning: Pinning) -> None:
    tier = HostTier(kv)
    storing = Thread(
        target=lambda: tier.store([b"a", b"b", b"c"], blocks_of(kv, CPU)((0, 1, 2))), daemon=True
    )
    storing.start()
    pinning.allowed.put(True)
    pinning.allowed.put(True)
    storing.join(LIMIT)
    assert (tier.used, tier.room(), kv.host.ready) == (3, 1, 4)


def test_what_was_pinned_before_memory_ran_out_is_used(
    kv: KVStore, pinning: Pinning, caplog: pytest.LogCaptureFixture
) -> None:
    tier = HostTier(kv)
    pinning.allowed.put(True)
    pinning.allowed.put(False)
    assert becomes(lambda: tier.size == tier.room() == 2)
    assert "not enough host memory for 5 blocks, so 2 are used: CUDA error" in caplog.text


def test_a_store_that_is_closed_pins_no_more(kv: KVStore, pinning: Pinning) -> None:
    assert becomes(lambda: pinning.asked)
    HostTier(kv).close()
    pinning.allowed.put(True)
    assert (kv.host_ready(least=5), len(pinning.asked)) == (2, 1)
    kv.clear()
    assert kv.host_nbytes == 0


def test_the_end_of_the_pinning_is_told_also_if_memory_runs_out() -> None:
    def fails(blocks: int) -> int:
        raise MemoryError("no more")

    told: list[str] = []
    HostMemory(3, 2, lambda blocks: blocks, lambda: told.append("filled"))
    HostMemory(3, 2, fails, lambda: told.append("no memory"))
    assert told == ["filled", "no memory"]
