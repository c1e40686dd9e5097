"""The rate of a reply, after its end."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from engine.api.events import Delta
from engine.api.request import Finish
from minichat.chats.model import Message
from minichat.features.chats.overview import state_of
from minichat.session.run import RunningReply
from tests.app.conftest import run, snapshot


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


async def three_tokens(it: Any, clock: Clock) -> Any:
    """A reply of them, each half a second after the one before."""
    reply = await it.say("hello")
    for token in ("one ", "two ", "three"):
        reply.say(token)
        await it.until(lambda token=token: token.strip() in it.screen_text())
        clock.now += 0.5
    return reply


@run
async def test_tokens_that_arrive_all_at_once_have_no_rate(bench: Callable[..., Any]) -> None:
    """A beam search may only be certain of its text at its end."""
    async with bench((100, 30)) as it:
        reply = await it.say("hello")
        reply.say("many tokens", tokens=37)
        await it.answered(reply, "")
        stats = it.app.chats.active.chat.messages[-1].stats
        assert stats.tokens >= 37 and stats.rate == 0


@run
async def test_the_rate_of_a_reply_is_that_of_the_engine_whenever_its_tokens_arrived(
    bench: Callable[..., Any],
) -> None:
    """Across a link that was cut, they arrive late, and all at once."""
    clock = Clock()
    async with bench((100, 30), clock=clock) as it:
        reply = await it.say("hello")
        clock.now += 1
        reply.say("one ")
        await it.until(lambda: "one" in it.screen_text())
        clock.now += 60
        reply.say("two three", tokens=2)
        reply.send(Delta(reply.id, finish=Finish.STOP, decoding=0.5))
        await it.until(lambda: not it.app.chats.active.streaming)
        stats = it.app.chats.active.chat.messages[-1].stats
        assert (stats.rate, stats.ttft, stats.seconds) == (4, 1, 1.5)
        assert "4 tok/s" in it.screen_text()


@run
async def test_a_search_has_the_rate_of_all_its_tokens_and_took_as_long_as_the_user_waited(
    bench: Callable[..., Any],
) -> None:
    """Much of it may be computed before its first text is certain."""
    clock = Clock()
    async with bench((100, 30), clock=clock) as it:
        reply = await it.say("hello")
        clock.now += 4
        reply.say("one two", tokens=8)
        await it.until(lambda: "one" in it.screen_text())
        clock.now += 4
        reply.send(Delta(reply.id, (1,) * 8, " three", finish=Finish.STOP, decoding=7.5))
        await it.until(lambda: not it.app.chats.active.streaming)
        stats = it.app.chats.active.chat.messages[-1].stats
        assert (stats.rate, stats.ttft, stats.seconds) == (2, 4, 8)


@run
async def test_the_rate_of_a_reply_that_was_lost_ends_with_its_last_token(bench: Callable[..., Any]) -> None:
    clock = Clock()
    async with bench((100, 30), clock=clock) as it:
        reply = await three_tokens(it, clock)
        clock.now += 60
        reply.end(Finish.FAILED, error="lost")
        await it.until(lambda: not it.app.chats.active.streaming)
        assert it.app.chats.active.chat.messages[-1].stats.rate == 2


@run
async def test_the_rate_of_a_running_reply_is_that_of_the_tokens_that_have_arrived(
    bench: Callable[..., Any],
) -> None:
    """Many chats are drawn in turn, so their tokens arrive in batches."""
    clock = Clock()
    async with bench((100, 30), clock=clock) as it:
        reply = await three_tokens(it, clock)
        clock.now += 1
        assert state_of(it.app.chats.active)[0] == "2 tok/s"
        it.main.pane.show_figures()
        assert it.main.pane.head.figures.startswith("2 tok/s")
        clock.now += 10  # no token for so long counts
        assert state_of(it.app.chats.active)[0] == "0.16 tok/s"
        reply.end()
        await it.until(lambda: not it.app.chats.active.streaming)


@run
async def test_a_reply_whose_blocks_were_taken_has_no_rate(bench: Callable[..., Any]) -> None:
    """No text arrives that would update its figures; a rate would say that it goes on."""
    clock = Clock()
    async with bench((100, 30), clock=clock) as it:
        reply = await three_tokens(it, clock)
        head = it.main.pane.head
        shot = snapshot(running=(reply.id,))
        taken = shot.requests[0]._replace(phase="swapped", blocks=())
        it.main.show_snapshot(replace(shot, requests=(taken,)))
        assert head.figures == "swapped  3 tok"
        assert state_of(it.app.chats.active)[0] == "swapped"
        it.main.show_snapshot(shot)
        assert head.figures.startswith("2 tok/s  3 tok")
        assert state_of(it.app.chats.active)[0] == "2 tok/s"
        reply.end()
        await it.until(lambda: not it.app.chats.active.streaming)


@run
async def test_a_chat_alone_says_that_the_blocks_of_its_reply_were_taken(bench: Callable[..., Any]) -> None:
    """It has no header; "writing" would be wrong for as long as others have the blocks."""
    async with bench((100, 30)) as it:
        reply = await it.say("hello")
        reply.say("one ")
        await it.until(lambda: "one" in it.screen_text())
        title = lambda: next(each for each in it.screen_text().splitlines() if "assistant" in each)  # noqa: E731
        shot = snapshot(running=(reply.id,))
        taken = shot.requests[0]._replace(phase="preempted", blocks=())
        it.main.show_snapshot(replace(shot, requests=(taken,)))
        await it.until(lambda: "preempted" in title())
        it.main.show_snapshot(shot)
        await it.until(lambda: "writing" in title())
        it.main.show_snapshot(replace(shot, requests=(taken,)))
        reply.end()
        await it.until(lambda: not it.app.chats.active.streaming)
        await it.until(lambda: "preempted" not in title())


def test_a_search_waits_while_one_of_its_rows_gets_no_slot() -> None:
    """A row that has just forked waits until the next step, too: that is no wait."""
    reply = RunningReply(Message(1, "assistant", "", params={"beams": 2}), 0.0, begun=True)
    first, second = snapshot(running=(0, 1)).requests
    waits = second._replace(phase="waiting", blocks=(), group=0)
    seen = []
    for rows in ((first, waits), (first, waits._replace(id=2)), (first, waits._replace(id=2)), (first,)):
        reply.see(rows)
        seen.append(reply.doing)
    assert seen == ["searching", "searching", "waiting", "searching"]
    for count in range(3):
        reply.see((first._replace(generated=first.generated + count), waits))
    assert reply.doing == "searching", "its rows take turns"
    sampled = RunningReply(Message(1, "assistant", ""), 0.0, begun=True)
    for _ in range(2):
        sampled.see((first, waits))
    assert sampled.doing == "writing", "the displayed sample goes on"


def test_a_reply_goes_on_while_one_of_its_rows_has_blocks() -> None:
    reply = RunningReply(Message(1, "assistant", ""), 0.0)
    first, second = snapshot(running=(0, 1)).requests
    reply.see([first._replace(phase="swapped", blocks=()), second._replace(group=0)])
    assert not reply.taken and reply.blocks == 2
