"""A screen on an engine that outlives it: cut links, and replies that the next screen resumes."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.api.params import SamplingParams
from minichat.app import MinichatApp
from minichat.chats.queries import INTERRUPTED
from minichat.chats.store import Store
from minichat.clients.fake import FakeBackend, FakeReply
from minichat.clients.protocol import LinkBack, LinkLost, Past
from minichat.session.resuming import tag_of
from minichat.shell.paths import locate
from minichat.ui.monitor.figures import clock_time
from tests.app.conftest import bench, run, snapshot
from tests.cases import SIZES

__all__ = ["bench"]


def elsewhere(**more: Any) -> FakeBackend:
    return FakeBackend([snapshot()], elsewhere="box:8000", starts=False, **more)


def lost(why: str = "the connection was lost", *, ended: bool = False) -> LinkLost:
    return LinkLost(0, 1.0, why, ended)


def back(*, restarted: bool = False) -> LinkBack:
    return LinkBack(0, 2.0, 1.5, restarted)


@run
async def test_it_shows_where_the_engine_is(bench: Callable[..., Any]) -> None:
    backend = elsewhere()
    backend.loaded.clear()
    async with bench((120, 30), backend=backend) as it:
        await it.until(lambda: "attaching to box:8000" in it.screen_text())
        backend.loaded.set()
        await it.until(lambda: "attached to box:8000" in it.screen_text())
        assert not it.app.paths.remembered.exists()


@run
async def test_no_model_of_this_machine_is_offered_to_an_engine_elsewhere(bench: Callable[..., Any]) -> None:
    async with bench((120, 30), backend=elsewhere()) as it:
        await it.until(lambda: it.app.lifecycle.alive)
        await it.pilot.press("alt+o")
        await it.until(lambda: it.notices() or it.app.screen is not it.main)
        assert it.notices() == [
            "An attached screen cannot change the model of box:8000. Start that engine with another one"
        ]
        assert it.app.screen is it.main


@run
@pytest.mark.parametrize("attached", [True, False])
async def test_the_greeting_offers_only_what_works_here(bench: Callable[..., Any], attached: bool) -> None:
    backend = elsewhere() if attached else FakeBackend([snapshot()])
    async with bench((110, 30), backend=backend) as it:
        await it.until(lambda: "Take the tour: ^P, then Tour the" in it.screen_text())
        assert ("Alt+O changes the model" in " ".join(it.screen_text().split())) is not attached


@run
async def test_a_cut_is_reported_and_messages_wait(bench: Callable[..., Any]) -> None:
    async with bench((140, 40), backend=elsewhere()) as it:
        running = await it.say("hello")
        running.say("half ")
        it.backend.emit(lost())
        await it.until(lambda: "no link to box:8000 (the connection was lost)" in it.screen_text())
        assert "reconnecting. Idle chats queue a message" in it.screen_text()
        await it.pilot.press("f5")  # no reason to start the program again
        it.main.prompt.put("this chat waits for its reply")
        await it.pilot.press("enter")
        await it.until(lambda: any("A is still replying" in each for each in it.notices()))
        assert it.main.prompt.text == "this chat waits for its reply" and len(it.texts()) == 2
        it.main.prompt.put("")
        await it.pilot.press("ctrl+n")
        it.main.prompt.put("while it is cut")
        await it.pilot.press("enter")
        await it.until(lambda: len(it.texts()) == 2)
        assert len(it.replies) == 1
        it.backend.emit(back())
        await it.until(lambda: len(it.replies) == 2)
        assert "no link" not in it.screen_text()
        assert "attached to box:8000" in it.screen_text()
        running.say("whole")
        running.end()
        chat = next(iter(it.app.chats)).chat
        await it.until(lambda: chat.messages[-1].state == "done")
        assert chat.messages[-1].text == "half whole"
        assert it.app.return_code is None


@run
async def test_a_message_that_waits_for_the_link_can_be_stopped(bench: Callable[..., Any]) -> None:
    async with bench(backend=elsewhere()) as it:
        await it.until(lambda: it.app.lifecycle.alive)
        it.backend.emit(lost())
        it.main.prompt.put("never")
        await it.pilot.press("enter", "escape")
        await it.until(lambda: it.texts() and it.texts()[-1][2] == "stopped")
        it.backend.emit(back())
        await it.until(lambda: it.app.lifecycle.alive)
        assert it.replies == []


@run
async def test_a_link_that_ended_is_a_lost_engine(bench: Callable[..., Any]) -> None:
    async with bench((120, 30), backend=elsewhere()) as it:
        await it.answered(await it.say("hello"))
        it.backend.emit(lost("update this program", ended=True))
        await it.until(lambda: "F5 reconnects  |  update this program" in it.screen_text())
        await it.pilot.press("f5")
        await it.until(lambda: it.app.lifecycle.alive)
        assert it.backend.switched == ["tiny"]
        await it.answered(await it.say("and now"))


@run
@pytest.mark.parametrize("size", [(100, 30), (120, 40)])
async def test_rates_of_a_lost_engine_are_cleared(bench: Callable[..., Any], size: tuple[int, int]) -> None:
    at_work = FakeBackend([snapshot(running=(1, 2))], elsewhere="box:8000")
    async with bench(size, backend=at_work) as it:
        await it.until(lambda: "80 tok/s" in it.screen_text())
        it.backend.emit(lost("the engine has ended", ended=True))
        await it.until(lambda: "80 tok/s" not in it.screen_text())
        shown = it.screen_text()
        assert "0 running" in shown or "no engine: the engine has ended" in shown
        assert it.main.engine.latest.state == "dead"


@run
@pytest.mark.parametrize("size", SIZES)
async def test_figures_of_a_cut_link_are_dated(bench: Callable[..., Any], size: tuple[int, int]) -> None:
    at_work = FakeBackend([snapshot(running=(1, 2))], elsewhere="box:8000")
    async with bench(size, backend=at_work) as it:
        await it.until(lambda: "80 tok/s" in it.screen_text())
        seen = clock_time(0)
        it.main.engine.clock = it.monitor.rates.clock = lambda: 0.0
        it.main.show_snapshot(snapshot(running=(1, 2)))
        it.backend.emit(lost())
        it.backend.emit(lost("no connection"))
        as_of = f"no link, as of {seen}"
        panes = [pane for pane in it.monitor.panes.values() if pane.seen]
        await it.until(lambda: it.screen_text().count(as_of) == max(len(panes), 1))
        await it.until(lambda: not it.monitor.event_log.seen or " cut " in it.screen_text())
        await it.pilot.press("alt+m", "3")
        await it.until(lambda: it.screen_text().count(as_of) == 1)
        axis = next(line for line in it.screen_text().splitlines() if "-30 s" in line)
        assert axis.split()[-1] == seen
        await it.pilot.press("f8")
        await it.until(lambda: f"Why this speed ({as_of})" in it.screen_text())
        await it.pilot.press("escape", "f4")
        await it.until(lambda: f"scheme  {as_of}" in it.screen_text())
        it.backend.emit(back())
        await it.until(lambda: "no link" not in it.screen_text())


@run
async def test_after_another_engine_took_over_no_request_has_an_owner(bench: Callable[..., Any]) -> None:
    async with bench(backend=elsewhere()) as it:
        await it.answered(await it.say("hello"))
        assert it.main.engine.owners
        it.backend.emit(lost(), back(restarted=True))
        await it.until(lambda: not it.main.engine.owners and it.app.lifecycle.alive)
        it.backend.emit(lost(), back())
        await it.answered(await it.say("and now"))
        assert it.main.engine.owners


@run
async def test_a_dead_remote_engine_is_reported(bench: Callable[..., Any]) -> None:
    backend = FakeBackend([snapshot(state="dead", error="no memory")], elsewhere="box:8000")
    async with bench((100, 30), backend=backend) as it:
        await it.until(lambda: "the engine has stopped: no memory" in it.screen_text())


@run
async def test_a_screen_that_may_start_no_engine_says_how_to_replace_a_dead_one(
    bench: Callable[..., Any],
) -> None:
    """F5 would find the same one: its server still answers."""
    backend = FakeBackend([snapshot(state="dead", error="no memory")], elsewhere="engine work")
    backend.replacement = "minichat up --name work"
    async with bench((100, 30), backend=backend) as it:
        way = "Run minichat up --name work in another terminal"
        await it.until(lambda: f" {way}  |  the engine has stopped: no memory" in it.screen_text())
        assert it.app.lifecycle.refusal == f"There is no engine. {way}"


async def leave(bench: Callable[..., Any], how: Callable[[MinichatApp], Any]) -> str:
    """End a screen in the middle of a reply, and return the reply's tag."""
    backend = elsewhere()
    async with bench(backend=backend) as it:
        reply = await it.say("hello")
        reply.say("half ")
        await it.until(lambda: it.app.chats.active.run.parts.text)
        done = how(it.app)
        if done is not None:
            await done
            assert not reply.finished
            await it.until(lambda: it.app.return_code == 0)
    [tag] = backend.tags
    assert len(tag) > 16
    return str(tag)


async def quit(app: MinichatApp) -> None:
    await app.action_quit()


def killed(app: MinichatApp) -> None:
    """Like SIGKILL: only what is already stored remains."""
    for conversation in app.chats.streaming:
        conversation.keep()
    app.store.update = lambda *_: None  # type: ignore[assignment, method-assign]


@pytest.mark.parametrize("how", [quit, killed])
def test_the_next_screen_resumes_the_reply(bench: Callable[..., Any], how: Any) -> None:
    @run
    async def test() -> None:
        tag = await leave(bench, how)
        backend = elsewhere()
        reply = FakeReply(7, "", SamplingParams(), tokens=4)
        reply.say("half a")
        backend.past[tag] = Past(reply, age=100.0, first=2.0, lasted=None)
        async with bench((100, 30), backend=backend) as it:
            await it.until(lambda: "half a" in it.screen_text())
            assert "half half" not in it.screen_text()
            assert it.main.engine.owners[7].letter == "A"
            reply.say(" loaf", tokens=3)
            reply.end()
            await it.until(lambda: it.texts()[-1] == ("assistant", "half a loaf", "done"))
            stats = it.app.chats.active.chat.messages[-1].stats
            assert (stats.tokens, stats.ttft) == (4, pytest.approx(2.0))
            assert stats.seconds == pytest.approx(100, abs=5)

    test()


@run
async def test_quitting_waits_for_a_submission_in_flight(bench: Callable[..., Any]) -> None:
    class Slow(FakeBackend):
        async def submit(self, *given: Any, **more: Any) -> FakeReply:
            asked.set()
            await goes.wait()
            return await super().submit(*given, **more)

    asked, goes = asyncio.Event(), asyncio.Event()
    backend = Slow([snapshot()], elsewhere="box:8000")
    async with bench(backend=backend) as it:
        await it.until(lambda: it.app.lifecycle.alive)
        it.main.prompt.put("hello")
        await it.pilot.press("enter")
        await it.until(asked.is_set)
        quitting = asyncio.create_task(it.app.action_quit())
        await it.pilot.pause()
        assert not quitting.done()
        goes.set()
        await quitting
        [reply] = backend.replies
        assert not reply.finished
        await it.until(lambda: it.app.return_code == 0)


@run
async def test_a_reply_that_ended_before_the_resume_keeps_its_times(bench: Callable[..., Any]) -> None:
    tag = await leave(bench, quit)
    backend = elsewhere()
    reply = FakeReply(7, "", SamplingParams())
    reply.say("all of it", tokens=9)
    reply.end()
    backend.past[tag] = Past(reply, age=5000.0, first=1.0, lasted=5.0)
    async with bench(backend=backend) as it:
        await it.until(lambda: it.texts()[-1] == ("assistant", "all of it", "done"))
        assert it.app.chats.active.chat.messages[-1].stats.seconds == 5.0
        assert it.app.chats.active.chat.messages[-1].stats.rate == 2.0


@run
async def test_text_that_has_arrived_is_kept_when_the_screen_closes(
    bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine counts it as read, though a busy screen has not drawn it."""
    async with bench(backend=elsewhere()) as it:
        monkeypatch.setattr(it.app.chats.services.pacer, "delay", lambda: 60.0)
        reply = await it.say("hello")
        reply.say("half ")
        await it.until(lambda: "half" in it.screen_text())
        reply.say("a loaf")
        reply.end()
        await it.pilot.press("ctrl+q")
        await it.until(lambda: it.app.return_code == 0)
        assert it.texts()[-1] == ("assistant", "half a loaf", "done")


@run
async def test_a_reply_unknown_to_the_engine_stays_as_stored(bench: Callable[..., Any]) -> None:
    await leave(bench, quit)
    async with bench(backend=elsewhere()) as it:
        await it.until(lambda: it.app.lifecycle.alive)
        [message] = [each for each in it.app.chats.active.chat.messages if each.role == "assistant"]
        assert (message.text, message.state, message.error) == ("half ", "stopped", INTERRUPTED)
        await it.answered(await it.say("go on"))


@run
async def test_a_link_lost_during_the_resume_keeps_the_stored_text(bench: Callable[..., Any]) -> None:
    tag = await leave(bench, quit)
    backend = elsewhere()
    reply = FakeReply(7, "", SamplingParams())
    backend.past[tag] = Past(reply, age=10.0, first=1.0, lasted=None)
    async with bench(backend=backend) as it:
        await it.until(lambda: it.texts()[-1][2] == "streaming")
        assert it.texts()[-1][1] == "half "
        await it.pilot.press("ctrl+q")
    async with bench(backend=elsewhere()) as it:
        assert it.texts()[-1][1] == "half "


@run
async def test_a_reply_is_taken_over_from_a_screen_that_was_killed(
    bench: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = elsewhere()
    async with bench(backend=backend) as it:
        await it.answered(await it.say("hello"), "good day")
        other = Store(locate({"HOME": str(tmp_path)}).chats)
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: 2**22 + 1)  # larger than any process id
            left = other.append(it.app.chats.active.chat.id, "assistant", "half", state="streaming")
        reply = FakeReply(7, "", SamplingParams())
        reply.say("half a loaf")
        reply.end()
        backend.past[tag_of(left)] = Past(reply, age=5.0, first=1.0, lasted=2.0)
        it.app.on_app_focus()
        await it.until(lambda: it.texts()[-1] == ("assistant", "half a loaf", "done"))
        other.close()


@run
async def test_a_reply_that_was_stopped_or_whose_chat_was_closed_is_not_resumed(
    bench: Callable[..., Any],
) -> None:
    async with bench(backend=elsewhere()) as it:
        reply = await it.say("hello")
        await it.pilot.press("alt+w")
        await it.until(lambda: reply.finished)


@run
async def test_a_loading_engine_is_named_before_its_model_is_known(
    bench: Callable[..., Any],
) -> None:
    backend = FakeBackend([snapshot()], elsewhere="engine main")
    async with bench(backend=backend) as it:
        await it.until(lambda: it.app.lifecycle.alive)
        backend.loaded.clear()
        it.app.lifecycle.model = ""
        it.app.run_worker(it.app.lifecycle.load())
        await it.until(lambda: backend.progress is not None)
        backend.progress(5_000_000, 10_000_000)
        await it.until(lambda: "loading engine main  5.0 of 10.0 MB" in it.screen_text())
