"""The rate of a reply, after its end."""

from collections.abc import Callable
from typing import Any

from engine.api.request import Finish
from minichat.features.chats.overview import state_of
from tests.app.conftest import run


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
        assert state_of(it.app.chats.active)[0] == "0 tok/s"
        reply.end()
        await it.until(lambda: not it.app.chats.active.streaming)
