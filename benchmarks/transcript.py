"""What streaming replies cost the screen: processor time, the longest stretch, bytes to the terminal."""

import asyncio
import gc
import time
from asyncio.events import Handle
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from operator import sub

from textual.app import App, ComposeResult
from textual.containers import Horizontal
from textual.drivers.headless_driver import HeadlessDriver

from benchmarks.harness import Bench
from minichat.chats.model import Message
from minichat.widgets.transcript import Transcript

_TURN = 0.02  # seconds between two panes, as the program does it
_PIECE = 20  # characters of a flush: 40 to 50 tokens a second, ten times a second
_REPLY = """\
PagedAttention splits the **KV cache** into fixed blocks, so that a request holds only what it has filled.
A block table says where each one lies; two requests with the *same* beginning share blocks (`refs` counts).

## What it costs

1. One more lookup for each block.
2. Nothing is copied until a shared block is written to, see [the paper](https://arxiv.org/abs/2309.06180).

| block | waste | lookups |
|------:|------:|--------:|
| 16    | 8     | 256     |
| 64    | 32    | 64      |

```python
def take(self, count: int) -> list[int]:
    taken = [self.free.popleft() for _ in range(count)]
    self.refs[taken] = 1  # the taker's own
    return taken
```

> Most of the memory that a fixed reservation would hold is never used.

"""


class Sink(HeadlessDriver):
    """A terminal that counts what is sent to it; the program draws for it as for a real one."""

    sent = 0

    @property
    def is_headless(self) -> bool:
        return False

    def write(self, data: str) -> None:
        Sink.sent += len(data.encode())


class Screen(App[None]):
    CSS = "Transcript { width: 1fr; border-right: solid $panel; }"

    def __init__(self, panes: int) -> None:
        super().__init__(driver_class=Sink)
        self._panes = [Transcript() for _ in range(panes)]

    def compose(self) -> ComposeResult:
        with Horizontal():
            yield from self._panes

    @property
    def panes(self) -> list[Transcript]:
        return self._panes


@dataclass
class Stretches:
    """How long the loop was held by one callback after another, in seconds of its thread's processor time."""

    seconds: list[float] = field(default_factory=list)
    of_collector: list[float] = field(default_factory=list)  # how much of each was the garbage collector's
    _collecting: float = 0.0

    @contextmanager
    def watched(self) -> Iterator[None]:
        run = Handle._run

        def timed(handle: Handle) -> None:
            begin, self._collecting = time.thread_time(), 0.0
            run(handle)
            self.seconds.append(time.thread_time() - begin)
            self.of_collector.append(self._collecting)

        Handle._run = timed  # type: ignore[method-assign, assignment]
        gc.callbacks.append(self._collector)
        try:
            yield
        finally:
            Handle._run = run  # type: ignore[method-assign]
            gc.callbacks.remove(self._collector)

    def _collector(self, phase: str, _info: dict[str, int]) -> None:
        self._collecting += time.thread_time() * (1 if phase == "stop" else -1)


async def stream(panes: int, messages: int, flushes: int, size: tuple[int, int]) -> dict[str, list[float]]:
    """Every pane has its messages and a reply under way; the first tenth of the flushes warms up."""
    screen = Screen(panes)
    cost, sent, stretches = [], [], Stretches()

    async def flush_all(_pilot: object) -> None:
        history = [
            Message(number, "user" if number % 2 == 0 else "assistant", _REPLY)
            for number in range(messages - 1)
        ]
        for pane in screen.panes:
            pane.show([*history, Message(messages, "assistant", "", state="streaming")], "a")
        await asyncio.sleep(2)  # lexers load
        text = cycle(_REPLY)
        with stretches.watched():
            for number in range(flushes):
                if number == flushes // 10:
                    stretches.seconds.clear()
                    stretches.of_collector.clear()
                begin, before = time.process_time(), Sink.sent
                for pane in screen.panes:
                    pane.extend("".join(next(text) for _ in range(_PIECE)))
                    await asyncio.sleep(_TURN)
                cost.append((time.process_time() - begin) * 1000)
                sent.append((Sink.sent - before) / 1000)
        screen.exit()

    await screen.run_async(size=size, auto_pilot=flush_all)
    warm = flushes // 10
    without = map(sub, stretches.seconds, stretches.of_collector)
    return {
        "cpu": cost[warm:],
        "sent": sent[warm:],
        "stretch": [max(stretches.seconds) * 1000],
        "without": [max(without) * 1000],
    }


def run(
    bench: Bench,
    *,
    panes: tuple[int, ...] = (1, 4, 8),
    messages: tuple[int, ...] = (10, 40),
    flushes: int = 100,
) -> None:
    for count in panes:
        for length in messages:
            name = f"{count} panes, {length} messages"
            found = asyncio.run(stream(count, length, flushes, (200, 60)))
            bench.note(f"{name}: a flush of all", found["cpu"], "ms")
            bench.note(f"{name}: longest stretch", found["stretch"], "ms")
            bench.note(f"{name}: longest stretch but for the garbage collector", found["without"], "ms")
            bench.note(f"{name}: to the terminal, a flush", found["sent"], "kB")
