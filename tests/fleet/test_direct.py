"""Which engines send blocks from GPU to GPU: what they lend each other, and how they open it."""

import os
import threading
import weakref
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from engine.api.cache_spec import KV_SCHEMES, KvSchemeName, LayerSpec
from engine.api.config import EngineConfig
from engine.api.errors import BadInput, EngineError
from engine.api.places import ExchangePlace
from engine.distributed.memory import anonymous
from engine.execution.cache_blocks import blocks_of
from engine.fleet.exchange import GpuPeers, exchange_tier, lent_bytes, why_not_direct
from engine.fleet.local import start_apart_fleet
from engine.host.process import EngineProcess
from engine.kv.store import KVStore, bits
from engine.kv.tiers.lender import Lender
from tests.tiers.lending import lending
from tests.waiting import becomes

HERE = torch.device("cuda", 0)
TOTAL = 80 * 2**30
OWN = Lender.of(os.getpid())


@pytest.fixture(autouse=True)
def _machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """GPU 3 reaches the memory of no other one."""
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda one, other: 3 not in (one, other))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (TOTAL // 2, TOTAL))


def test_a_place_is_read_as_it_was_written() -> None:
    for place in (
        ExchangePlace("/proc/1/fd/5", 2, 1, (0, 1, 12)),
        ExchangePlace("/proc/1/fd/5", 2, None, (3,)),
        ExchangePlace("/memory", 1, 0),
        ExchangePlace("/memory", 1, None),
    ):
        assert ExchangePlace.parse(str(place)) == place


@pytest.mark.parametrize(
    ("gpus", "device", "why"),
    [
        ((0, 1, 2), HERE, ""),
        ((0, 0), HERE, ""),
        ((0, 3), HERE, "cuda:3 cannot access the memory of cuda:0"),
        ((0, 1), torch.device("cuda", 3), "cuda:0 cannot access the memory of cuda:3"),
        ((), HERE, "cuda:0 is not one of several GPUs"),
        ((0, 1), torch.device("cpu"), "cpu is not one of several GPUs"),
    ],
)
def test_gpus_that_reach_each_others_memory(gpus: tuple[int, ...], device: torch.device, why: str) -> None:
    assert why_not_direct(gpus, device) == why


@pytest.mark.parametrize(
    ("size", "own", "gpus", "lent"),
    [
        (2 * 10**9, 0, (0, 1), 10**9),
        (2 * 10**9 + 8, 1, (0, 1), 10**9),
        (2**36, 0, (0, 1), TOTAL // 10 // 8 * 8),
        (2**36, None, (0, 1), 0),
        (2**36, 0, (0, 3), 0),
        (2**36, 0, (), 0),
    ],
)
def test_an_engine_for_prompts_lends_a_part_of_its_gpus_memory(
    tmp_path: Path, size: int, own: int | None, gpus: tuple[int, ...], lent: int
) -> None:
    memory = tmp_path / "memory"
    with memory.open("wb") as file:
        file.truncate(size)
    assert lent_bytes(str(ExchangePlace(str(memory), 2, own, gpus)), HERE) == lent
    assert lent_bytes(None, HERE) == 0


def test_a_thread_opens_the_memory_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    may_open, memory = threading.Event(), torch.zeros(8)

    def opened(handle: bytes, nbytes: int, device: torch.device) -> Any:
        assert may_open.wait(10)
        if handle == b"bad":
            raise EngineError("simulated failure")
        assert (handle, nbytes, device) == (b"good", 32, HERE)
        return memory

    monkeypatch.setattr("engine.fleet.exchange.opened_bytes", opened)
    peers = GpuPeers(HERE, 0)
    assert peers.lent is None
    assert (peers.opened(b"good", 32, OWN), peers.opened(b"bad", 32, OWN)) == (None, None)
    may_open.set()
    assert becomes(lambda: peers.opened(b"good", 32, OWN) is memory)
    with pytest.raises(EngineError, match="simulated failure"):
        becomes(lambda: peers.opened(b"bad", 32, OWN))


def test_memory_of_a_process_that_dies_while_it_is_opened_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A later process may have the same handle."""
    may_open, opened = threading.Event(), list[weakref.ref[torch.Tensor]]()

    def new(handle: bytes, nbytes: int, device: torch.device) -> torch.Tensor:
        assert may_open.wait(10)
        memory = torch.full((8,), float(len(opened)))
        opened.append(weakref.ref(memory))
        return memory

    monkeypatch.setattr("engine.fleet.exchange.opened_bytes", new)
    peers = GpuPeers(HERE, 0)
    with lending() as process:
        assert peers.opened(b"handle", 64, Lender.of(process.pid)) is None
    may_open.set()
    assert becomes(lambda: opened)
    peers.opened(b"another", 64, OWN)
    assert becomes(lambda: opened[0]() is None)

    def first() -> float | None:
        memory = peers.opened(b"handle", 64, OWN)
        return None if memory is None else float(memory[0])

    assert becomes(lambda: (found := first()) is not None and found > 0), "the later process's memory"


def test_without_gpu_memory_blocks_go_through_the_host(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(nbytes: int, device: torch.device) -> Any:
        raise EngineError("cuMemAlloc_v2: error 2, CUDA_ERROR_OUT_OF_MEMORY")

    monkeypatch.setattr("engine.fleet.exchange.DeviceMemory", full)
    assert GpuPeers(HERE, 64).lent is None
    assert "64 bytes of cuda:0: cuMemAlloc_v2: error 2" in caplog.text


def test_memory_that_cannot_be_lent_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Private:
        bytes, freed = torch.zeros(8), 0

        def handle(self) -> bytes:
            raise EngineError("cuIpcGetMemHandle: error 801, CUDA_ERROR_NOT_SUPPORTED")

        def close(self) -> None:
            self.freed += 1

    memory = Private()
    monkeypatch.setattr("engine.fleet.exchange.DeviceMemory", lambda nbytes, device: memory)
    assert (GpuPeers(HERE, 64).lent, memory.freed) == (None, 1)


class OnCpu:
    """Main memory in place of a GPU's, by handle."""

    lent: ClassVar[dict[bytes, torch.Tensor]] = {}

    def __init__(self, nbytes: int, device: torch.device) -> None:
        self.bytes = torch.zeros(nbytes, dtype=torch.uint8)

    def handle(self) -> bytes:
        handle = f"{len(self.lent):064}".encode()
        self.lent[handle] = self.bytes
        return handle


@pytest.mark.parametrize("scheme", KV_SCHEMES)
def test_blocks_of_a_cache_travel_in_lent_memory(
    monkeypatch: pytest.MonkeyPatch, scheme: KvSchemeName
) -> None:
    monkeypatch.setattr("engine.fleet.exchange.DeviceMemory", OnCpu)
    monkeypatch.setattr("engine.fleet.exchange.opened_bytes", lambda handle, *_: OnCpu.lent[handle])
    memory, cpu = anonymous(2**20), torch.device("cpu")
    spec = LayerSpec(heads=4, kv_heads=2, key_dim=16, value_dim=16, scale=1.0)
    stores = [
        KVStore(
            [spec] * 2, blocks=8, block_size=16, host_blocks=0, dtype=torch.float32, device=cpu, scheme=scheme
        )
        for _ in range(2)
    ]
    for tensor in (bits(each) for layer in stores[0].layers for each in layer.tensors()):
        tensor.view(torch.uint8).random_(0, 255)
    try:
        sender, reader = (
            exchange_tier(str(ExchangePlace(f"/proc/self/fd/{memory}", 1, own, (0, 1))), store, device)
            for own, store, device in zip((0, None), stores, (HERE, torch.device("cuda", 1)), strict=True)
        )
    finally:
        os.close(memory)
    names = [bytes([number]) * 32 for number in range(3)]
    out = sender.store(names, blocks_of(stores[0], cpu)((1, 7, 3)))
    assert reader.holds(names) == 0, "the copy has not been seen to end"
    out.result()
    assert sender.way == "gpu"
    assert becomes(lambda: reader.holds(names) == 3)
    reader.load(names, blocks_of(stores[1], cpu)((5, 2, 0))).result()
    for mine, theirs in zip(*(each.layers for each in stores), strict=True):
        for one, other in zip(mine.tensors(), theirs.tensors(), strict=True):
            sent, found = bits(one)[[1, 7, 3]], bits(other)[[5, 2, 0]]
            assert torch.equal(sent.view(torch.uint8), found.view(torch.uint8))


@pytest.mark.parametrize(
    ("devices", "direct", "expected"),
    [
        (("cuda:0", "cuda:1", "cuda:2"), True, (0, 1, 2)),
        (("cuda", "cuda:1"), True, (0, 1)),
        (("cuda:0", "cuda:1"), False, ()),
        (("cpu", "cpu"), True, ()),
        (("auto", "auto"), True, ()),
    ],
)
def test_engines_know_the_gpus_of_all(
    tmp_path: Path, devices: tuple[str, ...], direct: bool, expected: tuple[int, ...]
) -> None:
    places = list[ExchangePlace]()

    def start(config: EngineConfig, log: Path) -> EngineProcess:
        places.append(ExchangePlace.parse(config.exchange or ""))
        raise BadInput("it does not start")

    configs = [EngineConfig(model="pocket", device=each) for each in devices]
    with pytest.raises(BadInput, match="it does not start"):
        start_apart_fleet(configs, 1, start, tmp_path / "log", 0, room=0.001, direct=direct)
    assert sorted(str(each.own) for each in places) == ["0", *["None"] * (len(devices) - 1)]
    assert {each.gpus for each in places} == {expected}
