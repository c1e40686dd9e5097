"""A server that is shut down says so; the screen says what to do, and attaches again when it is back."""

from collections.abc import Callable
from typing import Any

import pytest

from engine.api.errors import BadWire, EngineDead, EngineError
from engine.api.events import FirstToken
from engine.api.params import SamplingParams
from minichat.clients.fake import FakeBackend
from minichat.clients.protocol import LinkLost, Progress
from minichat.models.residents import Resident, Waiting
from tests.app.conftest import bench, run, snapshot
from tests.attach.conftest import Attached, attached, no_progress
from tests.attach.test_screen import back, elsewhere
from tests.server.conftest import Served, dry, serving

__all__ = ["bench"]

STOPPED = "it was stopped; start it again"


class StoppedHome:
    """The home of an engine that does not run any more once its server has said so."""

    starts = False

    def __init__(self) -> None:
        self.runs = True

    async def ensure(self, progress: Progress) -> None:
        if not self.runs:
            raise EngineError(STOPPED)

    def gone(self, *, told: bool) -> str:
        self.runs = not told
        return STOPPED if told else ""


async def ends(it: Attached, server: Served) -> None:
    """End the server once the screen reads its events."""
    await it.until(lambda: server.state.events._readers._waiting)
    server.server.end()


@run
async def test_a_server_that_was_shut_down_is_waited_for(own: Served) -> None:
    """On another machine: it may be started again at any time."""
    async with attached(own) as it:
        await ends(it, own)
        await it.until(lambda: len(it.events_of(LinkLost)) == 2)
        events = it.events_of(LinkLost)
        now = "the server has shut down, or will soon"  # its replies may still run
        assert [each.why for each in events] == ["the server is shutting down", now]
        assert not any(each.stopped or each.ended for each in events)
        with serving(dry(rate=50)) as other:
            it.proxy.restore(other.port)
            assert (await it.back()).restarted


@run
@pytest.mark.parametrize("tried", [False, True])
async def test_an_engine_that_ended_is_attached_to_once_it_is_back(own: Served, tried: bool) -> None:
    """Also after the user has tried it in vain."""
    home = StoppedHome()
    async with attached(own, home) as it:
        await ends(it, own)
        await it.until(lambda: [each.why for each in it.events_of(LinkLost) if each.ended] == [STOPPED])
        assert it.events_of(LinkLost)[0].stopped
        with pytest.raises(EngineDead, match=STOPPED):
            await it.backend.snapshot()
        if tried:
            with pytest.raises(EngineError, match=STOPPED):
                await it.backend.switch("", no_progress)
        with serving(dry(rate=50)) as other:
            it.proxy.restore(other.port)
            assert (await it.back()).seconds < 60
            assert (await it.backend.snapshot()).state == "ready"
            await it.backend.submit("x", SamplingParams(max_tokens=2))
            await it.until(lambda: it.events_of(FirstToken))


@run
async def test_nothing_is_sent_to_an_engine_that_is_being_stopped(bench: Callable[..., Any]) -> None:
    async with bench((120, 30), backend=elsewhere()) as it:
        await it.answered(await it.say("hello"))
        running = await it.say("a last question")
        it.backend.emit(LinkLost(0, 1.0, "the server is shutting down", stopped=True))
        await it.until(lambda: "box:8000 is being stopped; running replies may end" in it.screen_text())
        assert "no link" not in it.screen_text() and "stopping, as of " in it.screen_text()
        await it.answered(running)
        it.main.prompt.put("too late")
        await it.pilot.press("enter")
        await it.until(
            lambda: "The engine is being stopped. Send messages when it runs again" in it.notices()
        )
        assert (it.main.prompt.text, len(it.replies)) == ("too late", 2)
        it.backend.emit(LinkLost(0, 1.0, STOPPED, ended=True))
        await it.until(lambda: f"F5 reconnects  |  {STOPPED}" in it.screen_text())
        it.backend.emit(back(restarted=True))
        await it.until(lambda: STOPPED not in it.screen_text())
        await it.pilot.press("enter")
        await it.until(lambda: len(it.replies) == 3)


@run
async def test_a_screen_that_starts_its_engine_says_so(bench: Callable[..., Any]) -> None:
    """F5 starts another one, where `minichat up` has opened the screen."""
    backend = FakeBackend([snapshot()], elsewhere="engine main", starts=True)
    async with bench((120, 30), backend=backend) as it:
        await it.answered(await it.say("hello"))
        backend.emit(LinkLost(0, 1.0, STOPPED, ended=True))
        await it.until(lambda: f"F5 restarts the engine  |  {STOPPED}" in it.screen_text())
        assert it.app.lifecycle.refusal == "There is no engine. F5 restarts the engine"


@run
async def test_a_screen_that_cannot_read_its_engine_only_attaches_again(bench: Callable[..., Any]) -> None:
    """F5 ends no engine that runs, as one of another version."""
    backend = FakeBackend([snapshot()], elsewhere="engine main", starts=True)
    async with bench((120, 30), backend=backend) as it:
        await it.answered(await it.say("hello"))
        backend.emit(LinkLost(0, 1.0, "update this program", ended=True, answers=True))
        await it.until(lambda: "F5 reconnects  |  update this program" in it.screen_text())
        backend.unloadable["tiny"] = BadWire("update it first")
        await it.pilot.press("f5")
        await it.until(lambda: "F5 reconnects  |  cannot attach to engine main: update" in it.screen_text())
        backend.unloadable["tiny"] = EngineError("it has ended")
        await it.pilot.press("f5")
        await it.until(lambda: "F5 restarts the engine  |  cannot attach to engine main" in it.screen_text())


def test_what_to_do_about_a_stopped_engine(tmp_path: Any) -> None:
    waiting = Waiting(Resident(tmp_path, "box"), None)
    assert waiting.gone(told=True) == "the engine box was stopped; start it again: minichat up --name box"
    log = tmp_path / "box.log"
    ended = f"the engine box has ended; start it again: minichat up --name box; its log: {log}"
    assert waiting.gone(told=False) == ended
