"""What the screen says about ending replies: which keys do it, and what becomes of them."""

from collections.abc import Callable
from typing import Any

import pytest

from engine.api.params import SamplingParams
from tests.app.conftest import run

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
