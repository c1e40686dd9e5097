"""The cost of streaming replies: processor time, the longest block of the event loop, bytes sent."""

import asyncio
import gc
import time
from itertools import cycle
from operator import sub

from textual.app import App, ComposeResult
from textual.containers import Horizontal

from benchmarks.screen.sink import Sink, Stretches
from minichat.bench.harness import Bench
from minichat.chats.model import Message
from minichat.shell.interpreter import share
from minichat.ui.frames import FrameScreen
from minichat.ui.transcript import Transcript

_TURN = 0.02  # seconds between two panes, as in the program
_PIECE = 20  # characters of a flush: 40 to 50 tokens a second, ten times a second
_REPLY = """\
PagedAttention splits the **KV cache** into fixed blocks, so that a request holds only what it has filled.
A block table maps positions to blocks; two requests with the *same* beginning share blocks (`refs` counts).

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
    self.refs[taken] = 1
    return taken
```

> Most of the memory that a fixed reservation would hold is never used.

"""


class Screen(App[None]):
    CSS = "Transcript { width: 1fr; border-right: solid $panel; }"

    def __init__(self, panes: int) -> None:
        super().__init__(driver_class=Sink)
        self.panes = [Transcript() for _ in range(panes)]

    def get_default_screen(self) -> FrameScreen[None]:
        return FrameScreen()

    def compose(self) -> ComposeResult:
        with Horizontal():
            yield from self.panes


async def stream(panes: int, messages: int, flushes: int, size: tuple[int, int]) -> dict[str, list[float]]:
    """Extend a streaming reply in every pane; return the cost of each flush, without the first tenth."""
    screen = Screen(panes)
    cost, sent, stretches = [], [], Stretches()

    async def flush_all(_pilot: object) -> None:
        history = [
            Message(number, "user" if number % 2 == 0 else "assistant", _REPLY)
            for number in range(messages - 1)
        ]
        for pane in screen.panes:
            pane.show([*history, Message(messages, "assistant", "", state="streaming")], "a")
        await asyncio.sleep(2)  # for the lexers to load
        gc.freeze()  # as the program does once the engine is ready
        text = cycle(_REPLY)
        with stretches.watched():
            for number in range(flushes):
                if number == flushes // 10:
                    stretches.clear()
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
    share()
    for count in panes:
        for length in messages:
            name = f"{count} panes, {length} messages"
            found = asyncio.run(stream(count, length, flushes, (200, 60)))
            bench.note(f"{name}: a flush of all", found["cpu"], "ms")
            bench.note(f"{name}: longest stretch", found["stretch"], "ms")
            bench.note(f"{name}: longest stretch but for the garbage collector", found["without"], "ms")
            bench.note(f"{name}: to the terminal, a flush", found["sent"], "kB")
