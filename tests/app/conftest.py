"""The full program on a terminal of any size, with a fake engine that returns the replies a test gives it."""

import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from textual._compositor import Compositor
from textual._context import visible_screen_stack
from textual.content import Content
from textual.geometry import Size
from textual.message import Message
from textual.notifications import Notify
from textual.pilot import Pilot
from textual.strip import Strip

from engine.api.events import Delta
from engine.api.params import SamplingParams
from engine.api.snapshot import BlockView, Quantiles, RequestView, Snapshot, StepTimes, Throughput
from minichat.app import MinichatApp
from minichat.chats.store import Store
from minichat.clients.fake import FakeBackend, FakeReply
from minichat.clients.protocol import Reply
from minichat.clients.sample_snapshots import sample_snapshot
from minichat.features.decoding.feature import DecodingPanel
from minichat.features.monitor import MonitorSide
from minichat.features.picking.line import TokenPicker
from minichat.features.quantization.feature import QuantizationPanel
from minichat.settings import load
from minichat.shell.paths import locate
from minichat.shell.terminal import Terminal
from minichat.start import Start
from minichat.ui.error_boundary import FAILED
from minichat.ui.main import MainScreen
from minichat.ui.picture import strips_of
from tests import impatient
from tests.waiting import tick, until

HERE = Terminal(ssh=False, tmux=False, unicode=True)


def snapshot(step: int = 0, running: tuple[int, ...] = (), **changes: Any) -> Snapshot:
    """An engine of 64 blocks; each running request has two of them."""
    owner = np.full(64, -1)
    for place, request in enumerate(running):
        owner[2 * place : 2 * place + 2] = request
    views = tuple(
        RequestView(request, "decode", "", 7, step, 7 + step, 99, 0, 0, 0, (2 * place, 2 * place + 1), ())
        for place, request in enumerate(running)
    )
    usual = {
        "at": float(step),
        "step": step,
        "max_context": 512,
        "host_in_use": 0,
        "host_size": 0,
        "preemptions": 0,
        "prefix_hit_rate": 0.0,
        "rates": Throughput(decode=40.0 * len(running)),
        "step_times": StepTimes(),
        "ttft": Quantiles(),
        "itl": Quantiles(),
        "finished": 0,
        "memory": {},
    }
    blocks = BlockView(
        16 * 4, (owner >= 0).astype(int), owner, (owner >= 0) * 16, owner * 0, 2 * len(running), 0, 0
    )
    return sample_snapshot(blocks, views, **{**usual, **changes})


@dataclass
class Bench:
    """A running program: the app, its pilot and its fake engine."""

    app: MinichatApp
    pilot: Pilot[object]
    backend: FakeBackend
    notified: dict[str, str]  # the text of each notice, by its id
    failures: list[BaseException]  # errors in parts of the screen

    @property
    def main(self) -> MainScreen:
        return self.app.main

    @property
    def replies(self) -> list[FakeReply]:
        return self.backend.replies

    @property
    def drawer(self) -> DecodingPanel:
        return self.app.context.part(DecodingPanel)

    @property
    def quantization(self) -> QuantizationPanel:
        return self.app.context.part(QuantizationPanel)

    @property
    def monitor(self) -> MonitorSide:
        return self.app.context.part(MonitorSide)

    @property
    def picker(self) -> TokenPicker:
        """The token picker in the active chat's pane."""
        return self.main.pane.query_one(TokenPicker)

    async def command(self, id: str) -> None:
        """Run a command as the palette does."""
        await self.app.action_command(id)

    def texts(self) -> list[tuple[str, str, str]]:
        """The role, text and state of each message in the active chat."""
        return [(each.role, each.text, each.state) for each in self.app.chats.active.chat.messages]

    async def say(self, text: str) -> FakeReply:
        """Type a message and send it; return the reply that the engine was asked for."""
        asked = len(self.replies)
        self.main.prompt.put(text)
        await self.pilot.press("enter")
        await self.until(lambda: len(self.replies) > asked)
        return self.replies[-1]

    async def until(self, holds: Callable[[], object]) -> None:
        """Wait until the condition holds and the screen is idle."""
        await self.pilot.pause()
        await until(holds, self._rest)

    async def _rest(self) -> None:
        await tick()
        await self.pilot.pause()

    async def answered(self, reply: FakeReply, text: str = "fine") -> None:
        """Send the whole reply and wait until its run has ended."""
        reply.say(text)
        reply.end()
        await self.until(lambda: not any(each.streaming for each in self.app.chats if _asked(each, reply)))

    def screen_text(self) -> str:
        return "\n".join("".join(segment.text for segment in strip) for strip in strips_of(self.app.screen))

    def notices(self) -> list[str]:
        """All notices since the start."""
        return list(self.notified.values())


class Failures(logging.Handler):
    """Collects the errors that the screen contains: a test that does not expect them fails."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[BaseException] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg == FAILED:
            assert record.exc_info and record.exc_info[1]
            self.errors.append(record.exc_info[1])


@dataclass
class Clock:
    """A clock that only the test advances."""

    now: float = 100.0

    def __call__(self) -> float:
        return self.now


async def at_once() -> None:
    """Return at once, so batches are read without delay."""


async def whole(reply: Reply) -> list[Delta]:
    return [delta async for batch in reply.batches(at_once) for delta in batch]


def _asked(conversation: Any, reply: FakeReply) -> bool:
    return conversation.run is not None and conversation.run.reply is reply


@contextmanager
def drawn_when_read() -> Iterator[None]:
    """Draw the screen when a test reads it, and no frames. Layouts, messages and events are as ever."""
    render = Compositor.render_strips

    def no_frame(compositor: Compositor, **_: object) -> None:
        compositor._dirty_regions.clear()

    def read(compositor: Compositor, size: Size | None = None) -> list[Strip]:
        screen = compositor.root
        if screen is not None and screen is screen.app.screen:
            visible_screen_stack.set(screen.app._background_screens)  # what is drawn behind a dialog
        return render(compositor, size)

    with (
        patch.object(Compositor, "render_update", no_frame),
        patch.object(Compositor, "render_strips", read),
    ):
        yield


@pytest.fixture
def bench(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Open the program: `async with bench((80, 24)) as it`. Its store persists until the test ends.

    The screen is drawn when a test reads it, and at the end. Frames between, which no one looks at, would
    take a quarter of the time: they are drawn with `frames=True`, and in soak tests.
    """
    soaked = request.node.get_closest_marker("soak") is not None

    @asynccontextmanager
    async def opened(
        size: tuple[int, int] = (80, 24), *, frames: bool = soaked, **more: Any
    ) -> AsyncIterator[Bench]:
        paths = locate({"HOME": str(tmp_path)})
        backend = more.pop("backend", None) or FakeBackend([snapshot()])
        shows = more.pop("shows_notices", False)  # over the screen; without, tests can still read them
        store = Store(paths.chats, more.pop("wall_clock", time.time))
        keywords = {
            "params": SamplingParams(temperature=0.7),
            "terminal": HERE,
            "loaded": load(paths.settings),
            **more,
        }
        features = keywords.pop("features", None)
        app = MinichatApp(backend, store, Start(model="tiny", paths=paths, **keywords), features)
        app.chats.services.pacer.rate = 200
        notices: dict[str, str] = {}

        def see(message: Message) -> None:
            if isinstance(message, Notify):
                notice = message.notification
                shown = Content.from_markup(notice.message).plain if notice.markup else notice.message
                notices[notice.identity] = shown

        log, failures = logging.getLogger("minichat.app"), Failures()
        log.addHandler(failures)
        try:
            with nullcontext() if frames else drawn_when_read():
                async with app.run_test(size=size, message_hook=see, notifications=shows):
                    pilot = impatient.ImpatientPilot(app)
                    await pilot.pause()
                    yield Bench(app, pilot, backend, notices, failures.errors)
                    if app.is_running and app.screen_stack:
                        strips_of(app.screen)
        finally:
            impatient.forget()
            log.removeHandler(failures)
            store.close()
        if failures.errors:
            raise failures.errors[0]

    return opened


def run(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test on its own event loop."""
    import functools
    import inspect

    @functools.wraps(test)
    def plain(*arguments: Any, **keywords: Any) -> None:
        impatient.run(test(*arguments, **keywords))

    plain.__signature__ = inspect.signature(test)  # type: ignore[attr-defined]
    return plain
