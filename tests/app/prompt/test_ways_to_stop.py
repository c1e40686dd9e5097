"""What the screen says about ending replies: which keys do it, and what becomes of them."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from engine.api.commands import Abort
from engine.api.params import SamplingParams
from minichat.chats.model import Message
from minichat.clients.fake import FakeBackend, FakeReply
from tests.app.chats.test_beside_another_screen import living
from tests.app.conftest import run, snapshot
from tests.attach.test_screen import lost

_OF_PALETTE = "A is still replying. To stop: ^P, Stop this reply"


@run
async def test_an_edit_is_not_given_up_to_stop_a_reply(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await it.answered(await it.say("hello"), "good")
        await it.pilot.press("alt+e", "x", "alt+r")
        await it.until(lambda: len(it.replies) == 2)
        await it.pilot.press("enter")
        await it.until(lambda: it.notices() == [_OF_PALETTE])
        await it.pilot.press("ctrl+p", *"stop this", "enter")
        await it.until(lambda: not it.app.chats.streaming)
        assert it.main.prompt.text == "hellox"


@run
@pytest.mark.parametrize("key", ["alt+g", "ctrl+f"])
async def test_the_way_to_stop_is_another_while_esc_closes_something(
    bench: Callable[..., Any], key: str
) -> None:
    async with bench((120, 40)) as it:
        reply = await it.say("hello")
        await it.pilot.press(key, "alt+r")
        await it.until(lambda: it.notices() == [_OF_PALETTE])
        await it.answered(reply)


@run
async def test_esc_does_not_stop_a_search_in_another_chat(bench: Callable[..., Any]) -> None:
    async with bench((120, 40)) as it:
        it.app.chats.active.tune(SamplingParams(beams=4))
        reply = await it.say("hello")
        await it.pilot.press("ctrl+n", "alt+g", "up", "alt+k")
        said = "A beam search has no fork before its end. To stop: ^P, Stop all replies"
        await it.until(lambda: it.notices() == [said])
        await it.answered(reply)


async def regenerated(it: Any) -> Any:
    """A reply that replaces a complete one and has a word."""
    await it.answered(await it.say("hello"), "good")
    await it.pilot.press("alt+r")
    await it.until(lambda: len(it.replies) == 2)
    it.replies[-1].say("stub")
    await it.until(lambda: "stub" in it.screen_text())
    return it.replies[-1]


@run
async def test_a_reply_that_cannot_be_stopped_now_is_not_said_to_be_replaced(
    bench: Callable[..., Any],
) -> None:
    backend = FakeBackend([snapshot()], elsewhere="box:8000")
    backend.handlers[Abort] = lambda command: None  # it arrives when the link is back
    async with bench((120, 40), backend=backend) as it:
        reply = await regenerated(it)
        backend.emit(lost())
        await it.until(lambda: "no link" in it.screen_text())
        await it.pilot.press("escape")
        await it.until(lambda: it.notices() == ["No link. The reply stops when it is back"])
        await it.answered(reply, " and more")
        assert it.texts()[-1] == ("assistant", "stub and more", "done")


@run
async def test_a_chat_that_is_not_on_the_screen_is_named_with_its_earlier_reply(
    bench: Callable[..., Any],
) -> None:
    async with bench() as it:
        await regenerated(it)
        await it.pilot.press("ctrl+n")
        await it.command("reply.stop_all")
        await it.until(lambda: it.notices() == ["A keeps the earlier reply"])
        await it.until(lambda: not it.app.chats.streaming)


@run
@pytest.mark.parametrize("command", ["Stop this", "Stop all"])
async def test_a_reply_of_another_screen_is_no_missing_one(
    bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    async with bench() as it:
        await it.answered(await it.say("hello"), "good day")
        chat, store = it.app.chats.active.chat, it.app.store
        with living(monkeypatch):
            said = (Message(0, "user", "from there"), Message(0, "assistant", "", state="streaming"))
            store.add_turn(chat.id, chat.messages[-1].id, said)
        it.app.chats.outdated([it.app.chats.active])
        await it.pilot.press("ctrl+p", *command, "enter")
        notice = "A is replying on another screen. Wait for the end of the reply"
        await it.until(lambda: it.notices() == [notice])


class Slow(FakeBackend):
    """Takes a request when `takes` is set."""

    def __init__(self) -> None:
        super().__init__([snapshot()])
        self.takes = asyncio.Event()

    async def submit(self, *given: Any, **more: Any) -> FakeReply:
        await self.takes.wait()
        return await super().submit(*given, **more)


@run
async def test_a_reply_that_the_engine_has_not_taken_yet_stops_later(bench: Callable[..., Any]) -> None:
    backend, said = Slow(), "The reply stops when the engine has taken its request"
    async with bench(backend=backend, shows_notices=True) as it:
        await it.pilot.press(*"hello", "enter")
        await it.until(lambda: it.app.chats.active.streaming)
        await it.pilot.press("escape")
        await it.until(lambda: it.notices() == [said])
        backend.takes.set()
        await it.until(lambda: not it.app.chats.active.streaming)
        await it.until(lambda: not it.app._notifications)
