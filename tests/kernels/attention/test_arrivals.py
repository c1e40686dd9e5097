"""Work on a GPU, in a graph and without, that reads each layer's blocks once they have arrived."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pytest
import torch

from engine.execution import cache_blocks
from engine.execution.cache_blocks import OnStream, blocks_of, mover_on
from engine.execution.cuda import arrivals
from engine.execution.cuda.arrivals import Arrivals
from engine.kernels.driver import copy_rectangles
from engine.kv.store import KVStore
from engine.scheduling.step import Rows, Step, StepRow
from tests.kernels.attention.test_blocks import LAYERS, store

pytestmark = pytest.mark.cuda

GPU = torch.device("cuda")
PROMPT = Step(0, Rows.of([StepRow(0, 0, 0, 5, True)]), np.zeros(5, np.int64))
READ = [0, 1, 2]  # blocks
OVERLAPS = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0)
LONG = 3 * 10**8  # cycles, about a sixth of a second


class Reader:
    """Copies the blocks of each layer after its wait, and then tells the host."""

    def __init__(self, ours: KVStore) -> None:
        self._tensors = [[*layer.tensors()] for layer in ours.layers]
        self._found = [[torch.empty_like(each[: len(READ)]) for each in layer] for layer in self._tensors]
        self._done = torch.ones(1, dtype=torch.int64, device=GPU)
        self.seen = torch.zeros(len(LAYERS), dtype=torch.int64, pin_memory=True)

    def launch(self, wait: Callable[[int], None] | None) -> None:
        for layer, tensors in enumerate(self._tensors):
            if wait is not None:
                wait(layer)
            for each, found in zip(tensors, self._found[layer], strict=True):
                found.copy_(each[: len(READ)])
            self.seen[layer : layer + 1].copy_(self._done, non_blocking=True)

    def bytes(self) -> list[torch.Tensor]:
        return [each.cpu().view(torch.uint8) for layer in self._found for each in layer]


def device_bytes(ours: KVStore) -> list[torch.Tensor]:
    return [each[: len(READ)].cpu().view(torch.uint8) for layer in ours.layers for each in layer.tensors()]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> tuple[KVStore, Arrivals]:
    """A store whose copies wait for something long before each group of layers."""

    def slow(found: np.ndarray, stream: int) -> None:
        torch.cuda._sleep(LONG)
        copy_rectangles(found, stream)

    monkeypatch.setattr(cache_blocks, "LEAST_RUN", 1)
    monkeypatch.setattr(arrivals, "copy_rectangles", slow)
    ours = store("none", "cuda")
    found = Arrivals.on(GPU, ours)
    ours.mover = mover_on(GPU, arrivals=found)
    return ours, found


def captured(launches: Callable[[], None]) -> torch.cuda.CUDAGraph:
    graph, aside = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(aside):
        launches()
        graph.capture_begin(capture_error_mode="relaxed")
        launches()
        graph.capture_end()
    torch.cuda.synchronize()
    return graph


def wait_of(found: Arrivals) -> Callable[[int], None]:
    torch.cuda._sleep(LONG)
    (end := torch.cuda.Event()).record()
    found.follow(end)
    with found.awaited(PROMPT, kernels=True):
        assert found.wait is not None
        return found.wait


@pytest.mark.parametrize("graphs", [False, True])
def test_a_layer_is_read_while_the_next_one_arrives(made: tuple[KVStore, Arrivals], graphs: bool) -> None:
    """The same graph waits for one load after the other, and for none if none arrives."""
    ours, found = made
    blocks, reader = blocks_of(ours, GPU, found), Reader(ours)
    graph: torch.cuda.CUDAGraph | None = None
    if graphs:
        graph = captured(partial(reader.launch, wait_of(found)))
    for turn in range(3):
        for layer in ours.layers:
            for cells in layer.tensors():
                cells[: len(READ)] = turn + 1.0
        expected = device_bytes(ours)
        blocks((*READ,)).move(partial(ours.swap_out, [(at, at) for at in READ])).result()
        for layer in ours.layers:
            for cells in layer.tensors():
                cells[: len(READ)] = 0.0
        reader.seen.zero_()
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            load = blocks((*READ,)).move(partial(ours.swap_in, [(at, at) for at in READ]))
            assert isinstance(load, OnStream)
            while not load.follow():
                pass
            with found.awaited(PROMPT, kernels=True):
                assert found.wait is not None, "the load arrives as a whole"
                if graph is None:
                    reader.launch(found.wait)
                else:
                    graph.replay()
            early = load.done()
            while not reader.seen[0]:
                pass
            late = load.done() or bool(reader.seen[-1])
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert not early, "the host has waited"
        assert not late, "the first layer has waited for the last one"
        torch.cuda.synchronize()
        assert all(map(torch.equal, reader.bytes(), expected))
    if graph is not None:
        graph.replay()
        torch.cuda.synchronize()
        assert all(map(torch.equal, reader.bytes(), expected))


def test_a_load_that_is_ordered_during_a_step_arrives_as_a_whole(made: tuple[KVStore, Arrivals]) -> None:
    """The step may still wait for the events."""
    ours, found = made
    pairs: Sequence[tuple[int, int]] = [(at, at) for at in READ]
    blocks = blocks_of(ours, GPU, found)
    expected = device_bytes(ours)
    blocks((*READ,)).move(partial(ours.swap_out, pairs)).result()
    ours.copy([(at + len(READ), at) for at in READ])
    torch.cuda.synchronize()
    torch.cuda._sleep(LONG)
    load = blocks((*READ,)).move(partial(ours.swap_in, pairs))
    assert isinstance(load, OnStream)
    while not load.follow():
        pass
    with found.awaited(PROMPT, kernels=True):
        assert found.wait is None
    assert load.result() > 0 and all(map(torch.equal, device_bytes(ours), expected))


@pytest.mark.skipif(not OVERLAPS, reason="the GPU has no programmatic dependent launch")
@pytest.mark.parametrize("graphs", [False, True])
def test_a_kernel_that_may_start_early_waits_for_blocks(made: tuple[KVStore, Arrivals], graphs: bool) -> None:
    """The kernel before the wait lets the next one start, which knows only of that kernel."""
    from engine.kernels.triton.norm.norm import norm

    ours, found = made
    tensors = [[*layer.tensors()] for layer in ours.layers]
    ones = torch.ones(len(READ) * 64, 64, dtype=torch.float16, device=GPU)
    seen = [torch.zeros(1, dtype=torch.float16, device=GPU) for _ in tensors]

    def launches(wait: Callable[[int], None]) -> None:
        for layer, (keys, *_) in enumerate(tensors):
            norm(ones, None, ones[0], 1e-6, pdl=True)
            wait(layer)
            width = keys.shape[-1]
            rows = norm(keys[: len(READ)].view(-1, width), None, ones[0, :width], 1e-6, pdl=True)
            seen[layer].copy_(rows.min())

    wait = wait_of(found)
    launches(wait)  # compiles the kernels
    graph = captured(partial(launches, wait)) if graphs else None
    pairs = [(at, at) for at in READ]
    for layer in tensors:
        for cells in layer:
            cells[: len(READ)] = 2.0
    blocks = blocks_of(ours, GPU, found)
    blocks((*READ,)).move(partial(ours.swap_out, pairs)).result()
    for _ in range(3):
        for layer in tensors:
            for cells in layer:
                cells[: len(READ)] = 0.0
        torch.cuda.synchronize()
        load = blocks((*READ,)).move(partial(ours.swap_in, pairs))
        assert isinstance(load, OnStream)
        while not load.follow():
            pass
        with found.awaited(PROMPT, kernels=True):
            assert found.wait is not None and not load.done()
            if graph is None:
                launches(found.wait)
            else:
                graph.replay()
        assert [each.item() for each in seen] == [pytest.approx(1.0, abs=1e-2)] * len(seen)
