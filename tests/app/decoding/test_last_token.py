"""The likely tokens of a reply that has ended are not called those of the next token."""

from collections.abc import Callable
from math import log
from typing import Any

from engine.api.events import TokenLogprob
from minichat.clients.fake import FakeBackend
from tests.app.conftest import run, snapshot

DRAWN = TokenLogprob(0, log(0.5), 1, ((0, log(0.5)), (1, log(0.25))))


@run
async def test_the_heading_says_whose_likely_tokens_are_shown(bench: Callable[..., Any]) -> None:
    shots = [snapshot(step, (0,) * (step > 0)) for step in range(300)]
    async with bench((120, 40), backend=FakeBackend(shots)) as it:
        heading = lambda: str(it.drawer.heading.content)  # noqa: E731
        await it.pilot.press("f3")
        await it.until(lambda: heading() == "next token")
        for asked in ("hello", "again"):
            it.main.prompt.focus()
            reply = await it.say(asked)
            await it.pilot.pause()
            assert heading() == ("last token" if asked == "again" else "next token"), "it has no token yet"
            reply.say("one", 1, [DRAWN])
            await it.until(lambda: it.drawer.likely.rows and heading() == "next token")
            reply.end()
            await it.until(lambda: heading() == "last token")
            assert "last token" in it.screen_text()


@run
async def test_those_of_another_version_of_the_reply_are_not_shown(bench: Callable[..., Any]) -> None:
    async with bench((120, 40)) as it:
        await it.pilot.press("f3")
        it.main.prompt.focus()
        await it.answered(await it.say("hello"), "former")
        await it.pilot.press("alt+r")
        await it.until(lambda: len(it.replies) == 2)
        it.replies[-1].say("one", 1, [DRAWN])
        it.replies[-1].end()
        await it.until(lambda: "last token" in it.screen_text())
        await it.command("reply.earlier")
        await it.until(lambda: "former" in it.screen_text())
        assert not it.drawer.likely.rows and "last token" not in it.screen_text()
