"""The drawer's line about speculation: of the running or last reply, and of the kind that is set."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from engine.api.events import Delta
from engine.api.params import SamplingParams
from engine.api.request import Finish
from engine.api.speculation import Speculation
from minichat.clients.fake import FakeBackend, FakeReply
from minichat.features.decoding.drawer import gains
from tests.app.conftest import run, snapshot

SIZE = (100, 40)
DRAFT, SUFFIX = (SamplingParams(speculate=kind) for kind in ("draft", "suffix"))


def seen(speculation: Speculation | None) -> FakeBackend:
    """An engine whose snapshots show request 0 with this."""
    shot = snapshot(3, (0,))
    return FakeBackend([replace(shot, requests=(shot.requests[0]._replace(speculation=speculation),))])


async def ended(it: Any, reply: FakeReply, whole: Speculation | None) -> None:
    reply.say("fine")
    reply.send(Delta(reply.id, finish=Finish.STOP, speculation=whole))
    await it.until(lambda: not it.app.chats.active.streaming)


def line(it: Any) -> str:
    return str(it.drawer.gains.content) if it.drawer.gains.display else ""


@run
async def test_the_gain_of_speculation_is_shown_in_the_drawer(bench: Callable[..., Any]) -> None:
    async with bench(SIZE, backend=seen(Speculation("draft", True, 10, 40, 30, 1.8)), params=DRAFT) as it:
        await it.say("hello")
        await it.pilot.press("f3")
        await it.until(lambda: "75% accepted  4.0 tok/step  1.80x" in it.screen_text())


@run
async def test_a_reply_that_has_ended_has_the_figures_of_its_whole(bench: Callable[..., Any]) -> None:
    """Not those of the last snapshot before its end."""
    async with bench(SIZE, backend=seen(Speculation("draft", True, 10, 40, 30, 1.8)), params=DRAFT) as it:
        reply = await it.say("hello")
        await it.pilot.press("f3")
        await it.until(lambda: line(it) == "75% accepted  4.0 tok/step  1.80x")
        await ended(it, reply, Speculation("draft", True, 20, 80, 40, 1.25))
        await it.until(lambda: "last reply: 50%  3.0 tok/step  1.25x" in it.screen_text())


@pytest.mark.parametrize(
    ("most", "shown"),
    [
        (Speculation("draft", True, 10, 91, 91, 7.524), "last reply: 100%  10.1 tok/step  7.5x"),
        (Speculation("draft", True, 10, 120, 120, 11.52), "last reply: 100%  13.0 tok/step  12x"),
    ],
)
@run
async def test_large_gains_fit_the_line(bench: Callable[..., Any], most: Speculation, shown: str) -> None:
    async with bench(SIZE, backend=seen(None), params=DRAFT) as it:
        reply = await it.say("hello")
        await it.pilot.press("f3")
        await ended(it, reply, most)
        await it.until(lambda: shown in it.screen_text())


@run
async def test_a_pause_is_in_the_line(bench: Callable[..., Any]) -> None:
    paused = Speculation("draft", False, 10, 40, 40, 0.953)
    async with bench(SIZE, backend=seen(paused), params=DRAFT) as it:
        await it.say("hello")
        await it.pilot.press("f3")
        await it.until(lambda: "100%  5.0 tok/step  0.95x  paused" in it.screen_text())


@pytest.mark.parametrize("kind", ["ngram", "suffix"])
@run
async def test_a_reply_that_no_snapshot_showed_has_figures(bench: Callable[..., Any], kind: str) -> None:
    """No accepted draft is a result, too."""
    async with bench(SIZE, backend=seen(None), params=SamplingParams(speculate=kind)) as it:
        reply = await it.say("hello")
        await it.pilot.press("f3")
        await ended(it, reply, Speculation(kind, True, 3, 6, 0, 0.9))
        await it.until(lambda: line(it) == "last reply: 0%  1.0 tok/step  0.90x")


@run
async def test_the_figures_are_of_the_kind_that_is_set(bench: Callable[..., Any]) -> None:
    async with bench(SIZE, backend=seen(Speculation("draft", True, 10, 40, 30, 1.8)), params=DRAFT) as it:
        reply = await it.say("hello")
        await it.pilot.press("f3")
        await it.until(lambda: line(it).startswith("75%"))
        active = it.app.chats.active
        active.tune(SUFFIX)
        await it.until(lambda: line(it) == "nothing drafted yet")
        active.tune(DRAFT)
        await ended(it, reply, Speculation("draft", True, 10, 40, 30, 1.8))
        await it.until(lambda: line(it).startswith("last reply: 75%"))
        active.tune(SUFFIX)
        await it.until(lambda: not line(it))
        active.send("again")
        await it.until(lambda: line(it) == "nothing drafted yet")


@run
async def test_another_chat_shows_no_figures_of_this_one(bench: Callable[..., Any]) -> None:
    async with bench(SIZE, backend=seen(None), params=DRAFT) as it:
        reply = await it.say("hello")
        await it.pilot.press("f3")
        await ended(it, reply, Speculation("draft", True, 10, 40, 30, 1.8))
        await it.until(lambda: line(it).startswith("last reply"))
        await it.command("chat.new")
        await it.until(lambda: len(it.app.chats) == 2 and not line(it))


def test_a_reply_without_drafts_says_so() -> None:
    assert gains(Speculation("ngram")) == "nothing drafted yet"
    assert gains(Speculation("ngram", False)) == "paused: no gain lately"
    assert gains(Speculation("ngram"), over=True) == "last reply: nothing drafted"
    assert gains(Speculation("ngram", False), over=True) == "last reply: paused, no gain before"
    assert gains(Speculation("ngram", False, 4, 8, 4), over=True) == "last reply: 50%  2.0 tok/step"
