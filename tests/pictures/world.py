"""A program with stopped clocks, chats with messages, and a fake engine at work."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.api.commands import MeasureSpeeds
from engine.api.events import Admitted, Event, Finished, FirstToken, Preempted, Queued, Resumed, TokenLogprob
from engine.api.expert_load import ExpertLoad
from engine.api.params import SamplingParams
from engine.api.snapshot import (
    BlockView,
    FormTime,
    Load,
    RequestView,
    SchemeView,
    Snapshot,
    StepTimes,
    Switch,
    Throughput,
)
from engine.api.speeds import Reads, Speeds
from minichat.chats.model import ReplyStats
from minichat.chats.store import Store
from minichat.clients.fake import FakeBackend
from minichat.clients.sample_snapshots import sample_snapshot
from minichat.shell.paths import locate
from minichat.ui.snapshot_poller import SnapshotPoller
from minichat.ui.transcript.markdown import highlight
from tests.app.conftest import Bench, Clock

NOON = 1_700_049_600.0  # November 15, 2023, 12:00 UTC
BLOCKS = 512
REPLY = """\
Paged attention keeps the **KV cache** in blocks of 16 tokens:

- a request holds a *table* of block numbers
- two requests may hold the same block

```python
def place(token: int, table: list[int]) -> int:
    return table[token // 16] * 16 + token % 16  # a cell
```

| technique | what it saves |
|---|---|
| prefix cache | computing a prompt again |
| copy on write | memory |

See [the paper](https://arxiv.org/abs/2309.06180). 漢字 and עברית stay whole.
"""
QUESTIONS = (
    "Explain paged attention.",
    "Write a haiku on caches.",
    "Compare top-p and min-p.",
    "Why blocks?",
)
MEMORY = {"weights": 4_000_000_000, "cache": 12_000_000_000, "host_cache": 1_000_000_000}
MEMORY |= {"workspace": 500_000_000, "device_free": 3_500_000_000, "device_total": 21_000_000_000}
SWITCHES = tuple(
    Switch(name, True, True) for name in ("prefix_cache", "chunked_prefill", "overlap", "graphs")
)
SCHEMES = (
    SchemeView("none", "", 4_000_000_000, BLOCKS),
    SchemeView("int8", "", 2_200_000_000, 588),
    SchemeView("int4", "", 1_300_000_000, 627),
    SchemeView("bnb-nf4", "bitsandbytes is not installed", 0),
)
FORMS = (SchemeView("none", "", 147_456, BLOCKS), SchemeView("int8", "", 74_880, 1_008))
FORM_TIMES = (FormTime("none", "none", 2, 8, 0.00212, 31), FormTime("int8", "none", 2, 8, 0.00174, 31))


class Device(FakeBackend):
    """A fake engine whose device is as fast as the one of the snapshots."""

    async def send(self, command: Any) -> Any:
        if isinstance(command, MeasureSpeeds):
            return Speeds(read=4.0e12, multiply=6e14)
        return await super().send(command)


@dataclass(frozen=True)
class Sitting:
    """Scenes that are played in sequence by one program."""

    chats: int
    scenes: dict[str, Callable[["World"], Any]]
    options: Callable[[], dict[str, Any]] = field(default=dict)


def course(steps: int) -> list[Snapshot]:
    """Four requests: two share a prefix, one is in chunked prefill, one was preempted."""
    return [_moment(step) for step in range(1, steps + 1)]


def rest() -> Snapshot:
    """An idle engine with cached blocks."""
    blocks = np.arange(BLOCKS)
    owner = np.where((blocks >= 200) & (blocks < 240), 9, -1)
    view = BlockView(BLOCKS, 0 * blocks, owner, np.where(owner < 0, 0, 16), 0 * blocks, 0, 40, 7)
    return replace(_moment(1), blocks=view, requests=(), waiting=0, running=0, finished=0, rates=Throughput())


def with_experts(shot: Snapshot) -> Snapshot:
    """Of a model with 48 layers of 128 experts, some of which are used more than others."""
    layer, expert = np.arange(48)[:, None], np.arange(128)
    counts = 400 + 300 * np.sin(layer * 1.7 + expert * 0.9) + 900 * (expert * 7 % 128 == layer * 3 % 128)
    load = ExpertLoad(tuple(range(48)), 128, 8, counts.astype(np.int64).reshape(-1))
    return replace(shot, model="Qwen3-30B-A3B", experts=load)


def _moment(step: int) -> Snapshot:
    shared = tuple(range(40, 46))
    views = (
        _request(0, 96 + 8 * step, (*shared, *range(100, 100 + step // 2)), generated=8 * step),
        _request(1, 96 + 6 * step, (*shared, *range(160, 160 + step // 3)), generated=6 * step),
        _request(2, 64 * step, tuple(range(300, 300 + 4 * step)), phase="prefill", prompt=4096),
        _request(3, 0, (), phase="swapped", why="no room: 12 blocks short", preemptions=1, prompt=200),
    )
    refs, owner, filled = (np.full(BLOCKS, value) for value in (0, -1, 0))
    for view in reversed(views):
        for block in view.blocks:
            refs[block] += 1
            owner[block], filled[block] = view.id, 16
    for block in range(200, 240):  # of a request that has ended
        owner[block], filled[block] = 9, 16
    for view in views:
        if view.blocks:
            filled[view.blocks[-1]] = 5
    used = np.where(refs > 0, step, 1)
    in_use = int((refs > 0).sum())
    wave = (step * 7) % 5
    usual = sample_snapshot(BlockView(BLOCKS, refs, owner, filled, used, in_use, 40, 7), views)
    return replace(
        usual,
        at=float(step),
        step=1000 + step,
        model="Qwen3-8B",
        dtype="bfloat16",
        device="NVIDIA H200",
        attention="triton",
        kv_dtype="bfloat16",
        max_context=8192,
        rates=replace(usual.rates, prefill=900.0 + 60 * wave, decode=380.0 + 20 * wave),
        step_times=StepTimes(plan=0.0002, launch=0.0007, wait=0.0011, commit=0.0001),
        memory=MEMORY,
        switches=SWITCHES,
        reads=Reads(4_000_000_000, ((0, 147_456),)),
        schemes=SCHEMES,
        kv_schemes=FORMS,
        form_times=FORM_TIMES,
        load=Load(0.87, 412.0, 700.0),
    )


def _request(id: int, launched: int, blocks: Sequence[int], **changes: Any) -> RequestView:
    usual = RequestView(id, "decode", "", 96, 0, launched, 4608, 0, 0, 0, tuple(blocks), ())
    return usual._replace(**changes)


EVENTS: tuple[Event, ...] = (
    Queued(990, 0.1, 0, 96),
    Admitted(990, 0.1, 0, 0),
    FirstToken(992, 0.2, 0, 0.092),
    Queued(994, 0.3, 1, 96),
    Admitted(994, 0.3, 1, 96),
    FirstToken(995, 0.4, 1, 0.031),
    Queued(998, 0.6, 3, 200),
    Preempted(1002, 0.8, 3, True, 12, "host"),
    Resumed(1010, 1.2, 3, True, 0),
    Finished(1020, 1.4, 9, "stop", 214, ""),
)


def remember(store: Store, chats: int) -> None:
    """Chats with messages in the store."""
    for number in range(chats):
        chat = store.create_chat(QUESTIONS[number], "", SamplingParams(temperature=0.7, top_p=0.95))
        for turn in range(2):
            store.append(chat.id, "user", QUESTIONS[(number + turn) % 4])
            message = store.append(chat.id, "assistant", "")
            text = REPLY if turn == number % 2 else f"Answer {number + 1}. " * 12
            stats = ReplyStats(214, 5.7, 0.092, 96, "top-p 0.95, T 0.7")
            store.update(replace(message, text=text, stats=stats))


class World(Bench):
    """What a scene can use."""

    clock: Clock

    async def still(self) -> None:
        """Wait until nothing is left to draw."""
        await self.until(lambda: not any(pane.transcript.busy for pane in self.main.panes))
        before: list[object] = []
        while (now := self._geometry()) != before:  # a scroll bar may need a second layout
            before = now
            await self.pilot.pause()

    def _geometry(self) -> list[object]:
        widgets = self.app.screen.walk_children()
        return [
            (each.region, each.virtual_size, each.scroll_offset, each.show_vertical_scrollbar)
            for each in widgets
        ]

    async def resize(self, size: tuple[int, int]) -> None:
        if self.app.size != size:
            await self.pilot.resize_terminal(*size)
            await self.until(lambda: self.app.screen.size == size)  # on a busy machine it may be late
            await self.still()
            for pane in self.main.panes:
                pane.show_figures()
        if self.main.engine.latest is not None:
            self.main.show_snapshot(self.main.engine.latest)
        await self.still()

    def work(self, steps: int = 24) -> None:
        """Show the engine's snapshots of this number of steps."""
        for number in range(4):
            if number < len(self.app.chats):
                self.main.took(list(self.app.chats)[number], number)
        self.main.show_events(EVENTS)
        for shot in course(steps):
            self.main.show_snapshot(shot)

    async def stream(self, number: int, text: str, logprobs: Sequence[TokenLogprob] = ()) -> None:
        """Stream more of a reply, half a second later."""
        before = self.replies[number].tokens
        conversation = next(each for each in self.app.chats if number in each.traces)
        self.replies[number].say(text, tokens=20, logprobs=logprobs)
        await self.until(lambda: conversation.run and conversation.run.tokens == before + 20)
        self.clock.now += 0.5


@asynccontextmanager
async def opened(
    bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, root: Path, sitting: Sitting, theme: str
) -> AsyncIterator[World]:
    """Open the program at a small, fast size, with the test's own clocks, time zone and folders."""
    highlight.load("python")
    monkeypatch.setenv("HOME", str(root))
    monkeypatch.setattr(SnapshotPoller, "wake", lambda _: None)  # only a scene shows snapshots
    monkeypatch.setattr("minichat.ui.monitor.figures.wall_clock", noon)
    paths = locate({"HOME": str(root)})
    paths.settings.parent.mkdir(parents=True)
    paths.settings.write_text(f'[screen]\ntheme = "{theme}"\n')
    store = Store(paths.chats, noon)
    remember(store, sitting.chats)
    store.close()
    more = sitting.options()
    backend = more.pop("backend", None) or Device([rest()])
    clock = Clock()
    async with bench((80, 24), backend=backend, clock=clock, wall_clock=noon, **more) as it:
        world = World(it.app, it.pilot, it.backend, it.notified, it.failures)
        world.clock = clock
        it.monitor.event_log.clock = it.monitor.rates.clock = noon
        await it.until(lambda: it.app.lifecycle.ready.is_set() or not backend.loaded.is_set())
        yield world


def noon() -> float:
    return NOON
