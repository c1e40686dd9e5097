"""Steps whose layers wait for their own blocks give the same replies.

The copy stream is played on a CPU: it copies nothing before something waits for it, and blocks hold wrong
numbers until then. `tests/kernels/attention/test_arrivals.py` has the same on a GPU.
"""

import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.execution import cache_blocks
from engine.execution.cache_blocks import OnStream, swap_runs
from engine.execution.cuda import arrivals, graphs
from engine.execution.cuda.arrivals import Arrivals
from engine.execution.cuda.recording import Recording
from engine.execution.protocol import StepKind
from engine.execution.runner import ModelRunner
from engine.execution.transfers import TransferRunner
from engine.kernels import driver
from engine.kernels.driver import copy_rectangles
from engine.kv.host_memory import Pairs
from engine.kv.store import KVStore, move_blocks
from engine.kv.tiers.tier import Transfer
from engine.scheduling.step import Rows, Step, StepRow
from engine.serving.engine import Engine
from tests.cases import soak
from tests.kernels.attention.test_blocks import LAYERS
from tests.kernels.attention.test_driver import STREAM, Driver
from tests.outputs import Output
from tests.runner.graphs.plain_stage import PlainStage
from tests.runner.graphs.test_precompile import Stage
from tests.runner.small import alone, ask, drain, engine_on, turn

PATIENCE = 40  # looks at events until one more copy is done
WRONG = 9.0  # in blocks that have not arrived


class CopyStream:
    """Copies in order, if something waits for them, or has looked often enough."""

    cuda_stream = STREAM

    def __init__(self) -> None:
        self.queue: list[Callable[[], None] | Event] = []
        self.waits: list[tuple[Event, int]] = []  # for what something had to wait, and the copies left then
        self.looks = 0

    def advance(self) -> None:
        first = self.queue.pop(0)
        if isinstance(first, Event):
            first.done = True
        else:
            first()


class Event:
    def __init__(self, stream: CopyStream, **kinds: bool) -> None:
        self.stream, self.done, self.kinds = stream, True, kinds

    def record(self, stream: CopyStream | None = None) -> None:
        assert self not in self.stream.queue, "something may still wait for the last record"
        self.done = False
        self.stream.queue.append(self)

    def wait(self) -> None:
        if not self.done:
            self.synchronize()
            left = sum(not isinstance(each, Event) for each in self.stream.queue)
            self.stream.waits.append((self, left))

    def synchronize(self) -> None:
        while not self.done:
            self.stream.advance()

    def query(self) -> bool:
        stream = self.stream
        stream.looks += 1
        if stream.queue and stream.looks % PATIENCE == 0:
            stream.advance()
        while stream.queue and isinstance(stream.queue[0], Event):
            stream.advance()
        return self.done

    def elapsed_time(self, end: "Event") -> float:
        return 1.0


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> CopyStream:
    made, played = CopyStream(), Driver()

    def copy(found: np.ndarray, stream: int) -> None:
        made.queue.append(partial(copy_rectangles, found.copy(), stream))

    for module in cache_blocks, arrivals:
        monkeypatch.setattr(module, "copy_rectangles", copy)
    monkeypatch.setattr(cache_blocks, "LEAST_RUN", 1)
    monkeypatch.setattr(driver, "library", lambda: played)
    monkeypatch.setattr(torch.cuda, "Event", partial(Event, made))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: made)
    return made


def arriving(engine: Engine, stream: CopyStream, *, graphs: bool = True) -> Arrivals:
    """Have the engine copy on the stream, and its steps wait by layer."""
    runner = engine.runner
    assert isinstance(runner, ModelRunner)
    store, stage = runner.store, Stage(runner)
    runner.use_stages(stage, PlainStage(runner) if graphs else None)  # type: ignore[arg-type]
    made = Arrivals(store.layers, [Event(stream) for _ in store.layers])  # type: ignore[misc]
    runner.arrivals = made

    def mover(sources: Sequence[Tensor], targets: Sequence[Tensor], pairs: Pairs) -> None:
        if targets[0] is store.layers[0].keys and sources[0] is not targets[0]:
            for target in targets:
                target[[block for _, block in pairs]] = WRONG
            assert not swap_runs(sources, targets, pairs, made)
        else:
            move_blocks(sources, targets, pairs)

    class Blocks:
        def __init__(self, numbers: tuple[int, ...]) -> None:
            self.numbers = numbers

        @torch.inference_mode()
        def move(self, *works: Callable[[], None]) -> Transfer:
            return OnStream(works, made)

    store.mover = mover
    runner._transfers = TransferRunner([*engine.scheduler.transfers.tiers.values()], Blocks)  # type: ignore[arg-type]
    return made


def resumable(folder: Path, stream: CopyStream, *prompts: Sequence[int], **config: Any) -> Engine:
    """Return an engine with the prompts' blocks in host memory only."""
    graphs = config.pop("graphs", True)
    engine = engine_on(folder, blocks=16, prefix_cache=True, host_blocks=64, preemption="swap", **config)
    arriving(engine, stream, graphs=graphs)
    for prompt in prompts:
        ask(engine, prompt)
        drain(engine)
    engine.scheduler.pool.forget_all()
    assert engine.scheduler.transfers.tiers["host"].used >= 5 * len(prompts) and not stream.waits
    return engine


def resume(engine: Engine, prompt: Sequence[int]) -> Output:
    """Turn until a step has followed the load."""
    _, output = ask(engine, prompt)
    for _ in range(2):
        turn(engine)
    return output


@pytest.mark.parametrize(("graphs", "depth"), [(True, 1), (False, 0), *soak((True, 0), (False, 1))])
def test_layers_wait_for_their_own_blocks(llama: Path, stream: CopyStream, graphs: bool, depth: int) -> None:
    prompt = [1, *range(30, 120)]
    engine = resumable(llama, stream, prompt, graphs=graphs, depth=depth)
    output = resume(engine, prompt)
    assert [left for _, left in stream.waits] == [2, 1, 0], "no layer waits for copies of later ones"
    drain(engine)
    assert output.reply == alone(llama, prompt).reply
    assert len(stream.waits) == 3, "later steps wait for nothing"


def test_a_step_of_one_token_waits_for_all_blocks(llama: Path, stream: CopyStream) -> None:
    """Graphs of decodes have no waits."""
    prompt = [1, *range(30, 110)]  # five blocks and a token
    engine = resumable(llama, stream, prompt)
    output = resume(engine, prompt)
    [(end, left)] = stream.waits
    assert end.kinds == {"enable_timing": True} and not left
    drain(engine)
    assert output.reply == alone(llama, prompt).reply


def test_two_chats_that_are_resumed_at_once(llama: Path, stream: CopyStream) -> None:
    """The blocks of the second arrive as a whole, since the first waits for its layers by the same events."""
    prompts = [[1, *range(30, 120)], [1, *range(90, 20, -1)]]
    engine = resumable(llama, stream, *prompts)
    outputs = [ask(engine, prompt)[1] for prompt in prompts]
    drain(engine)
    assert [each.reply for each in outputs] == [alone(llama, prompt).reply for prompt in prompts]
    assert [event.kinds for event, _ in stream.waits] == [{}] * 3 + [{"enable_timing": True}]


def test_a_message_that_comes_while_blocks_arrive_waits_for_none(llama: Path, stream: CopyStream) -> None:
    """It runs in the usual graph."""
    prompt, other = [1, *range(30, 120)], [1, *range(90, 20, -1)]
    engine = resumable(llama, stream, prompt)
    outputs = [ask(engine, each)[1] for each in (prompt, other)]
    turn(engine)  # orders the load, and launches the step of the other
    assert stream.queue and not stream.waits
    drain(engine)
    assert [each.reply for each in outputs] == [alone(llama, each).reply for each in (prompt, other)]


@pytest.mark.parametrize("seed", [1, *soak(0, 2, 3)])
def test_random_messages_get_the_same_replies(llama: Path, stream: CopyStream, seed: int) -> None:
    draw, asked = random.Random(seed), list[tuple[int, Output]]()
    prompts = [[1, *range(30, 120)], [1, *range(90, 20, -1)], [1, *range(30, 80), *range(140, 40, -1)]]
    engine = resumable(llama, stream, *prompts, depth=seed % 2, graphs=seed % 3 > 0)
    for number in draw.choices(range(3), k=10):
        asked.append((number, ask(engine, prompts[number])[1]))
        for _ in range(draw.randrange(6)):
            turn(engine)
        if draw.random() < 0.4:
            drain(engine)
            engine.scheduler.pool.forget_all()
    drain(engine)
    expected = [alone(llama, prompt).reply for prompt in prompts]
    assert [output.reply for _, output in asked] == [expected[number] for number, _ in asked]
    assert any(not event.kinds for event, _ in stream.waits), "no step waited by layer"


@pytest.mark.parametrize("ahead", [True, False])
def test_a_graph_that_waits_is_captured_ahead(
    llama: Path, stream: CopyStream, monkeypatch: pytest.MonkeyPatch, ahead: bool
) -> None:
    """A warm-up asks for it. An engine whose loads arrive as a whole has none."""
    prompt, made = [1, *range(30, 120)], list[Recording]()
    engine = resumable(llama, stream, prompt)
    assert isinstance(engine.runner, ModelRunner)

    def recording(*given: Any) -> Recording:
        made.append(Recording(*given))
        return made[-1]

    monkeypatch.setattr(graphs, "Recording", recording)
    engine.runner.arrivals.by_layer = ahead
    engine.runner.capture([StepKind(0, 10, long=True, pieces=True, waits=True)])
    assert len(made) == ahead
    engine.runner.arrivals.by_layer = True
    resume(engine, prompt)
    assert [left for _, left in stream.waits] == [2, 1, 0]
    assert len(made) == 1, "the step has its graph"


# Steps


def made_of(stream: CopyStream, layers: int, groups: int) -> tuple[Arrivals, list[Event]]:
    events = [Event(stream) for _ in range(groups)]
    stream.queue.append(lambda: None)
    for event in events:
        event.record()
    cache: list[Any] = [SimpleNamespace(tensors=lambda: iter(())) for _ in range(layers)]
    return Arrivals(cache, events), events  # type: ignore[arg-type]


def followed(made: Arrivals, stream: CopyStream) -> Event:
    (end := Event(stream)).record()
    made.follow(end)  # type: ignore[arg-type]
    return end


def step_of(*lengths: int, **fields: Any) -> Step:
    rows = Rows.of([StepRow(at, at, 0, length, True) for at, length in enumerate(lengths)])
    return Step(0, rows, np.zeros(sum(lengths), np.int64), sum(length == 1 for length in lengths), **fields)


def test_each_group_of_layers_waits_once(stream: CopyStream) -> None:
    made, events = made_of(stream, 7, 3)
    end = followed(made, stream)
    with made.awaited(step_of(1, 5), kernels=True):
        assert made.wait is not None
        waited = []
        for layer in range(7):
            made.wait(layer)
            waited.append([each.done for each in events].count(True))
    assert waited == [1, 1, 2, 2, 3, 3, 3]
    assert made.wait is None
    with made.awaited(step_of(5), kernels=True):
        assert made.wait is None and not end.done


def test_a_step_waits_for_no_load_that_was_ordered_after_its_own_had_ended(stream: CopyStream) -> None:
    made, events = made_of(stream, 2, 2)
    end = followed(made, stream)
    end.synchronize()
    stream.queue.append(lambda: None)  # copies the blocks of the later one
    for event in events:
        event.record()
    with made.awaited(step_of(5), kernels=True):
        assert made.wait is None
    assert not any(event.done for event in events) and not stream.waits


@pytest.mark.parametrize(
    ("step", "kernels"),
    [
        (step_of(5), False), (step_of(1, 1), True), (step_of(), True), (step_of(5, copies=((1, 2),)), True),
        (step_of(5, drafts={0: (1, 2)}), True),
    ],
)  # fmt: skip
def test_other_steps_wait_for_all_at_once(stream: CopyStream, step: Step, kernels: bool) -> None:
    made, _ = made_of(stream, 2, 2)
    end = followed(made, stream)
    for _ in range(2):
        with made.awaited(step, kernels=kernels):
            assert made.wait is None and [event for event, _ in stream.waits] == [end]


def test_the_step_after_one_that_fails_waits_as_well(stream: CopyStream) -> None:
    made, _ = made_of(stream, 2, 2)
    followed(made, stream)
    with pytest.raises(MemoryError), made.awaited(step_of(5), kernels=True):
        raise MemoryError
    assert made.wait is None
    with made.awaited(step_of(5), kernels=True):
        assert made.wait is not None


# Loads


@pytest.mark.parametrize(
    ("device", "blocks", "by_layer"), [("cuda", 4, True), ("cuda", 0, False), ("cpu", 4, False)]
)
def test_loads_from_host_memory_arrive_by_layer_on_a_gpu(
    stream: CopyStream, device: str, blocks: int, by_layer: bool
) -> None:
    cpu = torch.device("cpu")
    store = KVStore(LAYERS, blocks=2, block_size=16, host_blocks=blocks, dtype=torch.float16, device=cpu)
    made = Arrivals.on(torch.device(device), store)
    assert (made.by_layer, made.waiting is not None) == (by_layer, by_layer)
    assert len(stream.queue) == 2 * by_layer, "a graph needs events that exist"


def store_of(stream: CopyStream) -> tuple[KVStore, Arrivals, list[Event]]:
    """A cache of zeros over host memory of ones, and its events."""
    store = KVStore(
        LAYERS, blocks=8, block_size=16, host_blocks=8, dtype=torch.float16, device=torch.device("cpu"),
        pin=lambda count: torch.zeros(count, dtype=torch.uint8),
    )  # fmt: skip
    store.host_ready(least=store.host_blocks)
    for slab in store.host.slabs:
        for layer in slab:
            for cells in layer.tensors():
                cells.fill_(1.0)
    events = [Event(stream) for _ in LAYERS]
    made = Arrivals(store.layers, events)  # type: ignore[arg-type]

    def mover(sources: Sequence[Tensor], targets: Sequence[Tensor], pairs: Pairs) -> None:
        assert not swap_runs(sources, targets, pairs, made)

    store.mover = mover
    return store, made, events


@pytest.mark.parametrize("blocks", [3, 8])
def test_copies_are_launched_by_layer_over_all_slabs(
    stream: CopyStream, monkeypatch: pytest.MonkeyPatch, blocks: int
) -> None:
    """`blocks`: of a slab. The last two blocks are those of another load."""
    each = KVStore.block_bytes(LAYERS, 16, torch.float16)
    monkeypatch.setattr("engine.kv.pinned.SLAB", blocks * each)
    store, made, events = store_of(stream)
    load = OnStream([partial(store.swap_in, [(at, at) for at in range(6)])], made)
    assert len(store.host.slabs) == -(-8 // blocks) and not load.done()
    assert [each in events for each in stream.queue] == [False, True, False, True, False]
    again = OnStream([partial(store.swap_in, [(6, 6), (7, 7)])], made)
    assert [each for each in stream.queue if each in events] == events, "the first one's events are kept"
    assert load.follow()
    with made.awaited(step_of(5), kernels=True):
        assert made.wait is not None
        for layer in range(2):
            made.wait(layer)
            for cells in store.layers[layer].tensors():
                assert (cells[:6] == 1).all() and not cells[6:].any()
    assert load.done() and load.result() == 1e-3
    assert again.follow() and (store.layers[1].values[6:] == 1).all(), "as a whole, at once"


def test_a_load_in_two_works_arrives_by_layer_in_the_second(stream: CopyStream) -> None:
    store, made, events = store_of(stream)
    works = (partial(store.swap_in, [(at, at), (at + 1, at + 1)]) for at in (0, 2))
    load = OnStream([*works], made)
    assert not load.follow(), "the first one has not ended"
    while not load.follow():
        pass
    assert (store.layers[1].values[:2] == 1).all()
    assert [each for each in stream.queue if each in events] == events and not stream.waits


def test_what_is_not_copied_by_layer_is_followed_as_a_whole(stream: CopyStream) -> None:
    """As blocks without neighbors, which are gathered."""
    _, made, events = store_of(stream)
    load = OnStream([lambda: stream.queue.append(lambda: None)], made)
    assert load.follow() and [left for _, left in stream.waits] == [0]
    assert not any(each in events for each in stream.queue)
