"""The cost of the monitor: processor time of an update of all panes, and bytes to the terminal."""

import asyncio
import itertools
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from textual.app import App, ComposeResult

from benchmarks.screen.sink import Sink
from engine.api.events import Admitted
from engine.api.snapshot import BlockView, Quantiles, RequestView, Snapshot, StepTimes, Throughput
from engine.kv.pool import BlockPool
from minichat.bench.harness import Bench
from minichat.clients.sample_snapshots import sample_snapshot
from minichat.ui.frames import FrameScreen
from minichat.ui.monitor import MonitorPanel, Owner

_BLOCK = 16
_GROWTH = 10  # tokens of each request per update: 40 tokens and 4 updates a second
_SETTLED = 0.06  # seconds in which an update is rendered


@dataclass
class Grown:
    """A request in the pool."""

    prompt: int
    end: int
    blocks: list[int]
    tokens: int = field(init=False)

    def __post_init__(self) -> None:
        self.tokens = self.prompt


class Screen(App[None]):
    def __init__(self) -> None:
        super().__init__(driver_class=Sink)
        self.panel = MonitorPanel()

    def get_default_screen(self) -> FrameScreen[None]:
        return FrameScreen()

    def compose(self) -> ComposeResult:
        yield self.panel


def snapshots(blocks: int, requests: int, count: int) -> Iterator[Snapshot]:
    """Snapshots after 20,000 steps in which requests arrived, grew by a token a step, and ended."""
    pool, rng = BlockPool(blocks, _BLOCK), np.random.default_rng(7)
    numbers = itertools.count()
    live: dict[int, Grown] = {}
    longest = blocks * _BLOCK // requests // 2
    for step in range(20_000 + count * _GROWTH):
        pool.clock = step
        if len(live) < requests:
            id, prompt = next(numbers), int(rng.integers(64, longest))
            live[id] = Grown(
                prompt, prompt + int(rng.integers(64, longest)), pool.allocate(-(-prompt // _BLOCK), id)
            )
        for id, one in list(live.items()):
            one.tokens += 1
            if one.tokens > len(one.blocks) * _BLOCK:
                one.blocks += pool.allocate(1, id)
            if one.tokens >= one.end:
                for number, block in enumerate(one.blocks[:-1]):
                    pool.publish(block, b"%d %d" % (id, number))
                pool.free(live.pop(id).blocks)
        if step >= 20_000 and step % _GROWTH == 0:
            yield _snapshot(step, _view(pool, live), _requests(live))


def _view(pool: BlockPool, live: Mapping[int, Grown]) -> BlockView:
    filled = np.where(pool.owner >= 0, _BLOCK, 0).astype(np.int32)
    for one in live.values():
        filled[one.blocks[-1]] = one.tokens - (len(one.blocks) - 1) * _BLOCK
    columns = (pool.refs.copy(), pool.owner.copy(), filled, pool.used_at.copy())
    return BlockView(pool.size, *columns, pool.in_use, pool.cached, pool.evictions)


def _requests(live: Mapping[int, Grown]) -> list[RequestView]:
    return [
        RequestView(
            id,
            "decode",
            "",
            one.prompt,
            one.tokens - one.prompt,
            one.tokens,
            one.end,
            64,
            0,
            0,
            tuple(one.blocks),
            (),
        )
        for id, one in live.items()
    ]


def _snapshot(step: int, blocks: BlockView, requests: list[RequestView]) -> Snapshot:
    """A snapshot whose figures change each time, like those of a running engine."""
    now = step // _GROWTH
    return sample_snapshot(
        blocks,
        requests,
        at=now / 4,
        step=step,
        rates=Throughput(100.0 * (now % 9), 1600.0 + 10 * (now % 13), 100.0, len(requests), len(requests)),
        step_times=StepTimes(1e-4, 2e-4, 8e-3 + 1e-5 * (now % 7), 3e-4),
        itl=Quantiles(0.01, 0.012, 0.013 + 1e-4 * (now % 5), 2048),
    )


async def watch(
    blocks: int, requests: int, updates: int, size: tuple[int, int], *, shown: bool, order: bool
) -> dict[str, list[float]]:
    """Update the monitor and return the cost of each update, without the first tenth; each adds an event."""
    screen = Screen()
    owners = {number: Owner("ABCDEFGHIJKLMNOP"[number % 16], number % 16) for number in range(10_000)}
    moments = list(snapshots(blocks, requests, updates))
    call, whole, sent = [], [], []

    async def look(_pilot: object) -> None:
        panel = screen.panel
        if order:
            panel.action_order()
        panel.display = shown
        await asyncio.sleep(0.3)
        for shot in moments:
            begin, before = time.process_time(), Sink.sent
            panel.add_event(Admitted(shot.step, shot.at, shot.requests[0].id, 32))
            panel.update_from(shot, owners)
            call.append((time.process_time() - begin) * 1000)
            await asyncio.sleep(_SETTLED)
            whole.append((time.process_time() - begin) * 1000)
            sent.append((Sink.sent - before) / 1000)
        screen.exit()

    await screen.run_async(size=size, auto_pilot=look)
    warm = updates // 10
    return {"call": call[warm:], "rendered": whole[warm:], "sent": sent[warm:]}


def run(
    bench: Bench, *, blocks: tuple[int, ...] = (12_288, 100_000), requests: int = 16, updates: int = 100
) -> None:
    os.environ |= {"TERM": "xterm-256color", "COLORTERM": "truecolor"}  # independent of the calling terminal
    for count in blocks:
        for name, size, shown, order in (
            ("66x53", (66, 53), True, False),
            ("66x53 by session", (66, 53), True, True),
            ("200x60", (200, 60), True, False),
            ("hidden", (66, 53), False, False),
        ):
            found = asyncio.run(watch(count, requests, updates, size, shown=shown, order=order))
            bench.note(f"{count} blocks, {name}: update", found["call"], "ms")
            bench.note(f"{count} blocks, {name}: update and drawing", found["rendered"], "ms")
            bench.note(f"{count} blocks, {name}: to the terminal", found["sent"], "kB")
