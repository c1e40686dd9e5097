"""The line in which a text is looked for."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.app.conftest import run


def line(it: Any) -> str:
    """Of the bar, without the blanks at its end."""
    return next(line.rstrip() for line in it.screen_text().splitlines() if line.startswith(" find "))


KEYS = "Enter next  Up previous  Esc done"


@run
@pytest.mark.parametrize("size", [(80, 24), (80, 16)])  # in the low one there is no line of keys
async def test_it_says_what_it_is_and_its_keys(bench: Callable[..., Any], size: tuple[int, int]) -> None:
    async with bench(size) as it:
        await it.answered(await it.say("hello"), "needle " + "hay\n\n" * 60 + "needle")
        high = it.main.keybar.display
        assert KEYS not in it.screen_text()
        await it.pilot.press("ctrl+f")
        await it.until(lambda: f" find {KEYS}" in it.screen_text())
        assert it.screen_text().count(KEYS) == 1 + high
        await it.pilot.press(*"needle")
        await it.until(lambda: " find needle" in it.screen_text() and " of 2" in it.screen_text())
        assert it.screen_text().count(KEYS) == high
        at = it.main.transcript.find_count[0]
        await it.pilot.press("up")
        await it.until(lambda: it.main.transcript.find_count[0] != at)
        await it.pilot.press("down")
        await it.until(lambda: it.main.transcript.find_count[0] == at)
        await it.pilot.press("x")
        await it.until(lambda: line(it).endswith("not found"))
        await it.pilot.press("escape")
        await it.until(lambda: it.app.focused is it.main.prompt and KEYS not in it.screen_text())


@run
@pytest.mark.parametrize("opener", ["f2", "f3", "f4"])
async def test_what_stands_in_the_chats_place_goes(bench: Callable[..., Any], opener: str) -> None:
    """On a small screen, where it would be typed into what nobody sees."""
    async with bench((70, 20)) as it:
        await it.answered(await it.say("hello"), "a needle")
        await it.pilot.press(opener)
        await it.until(lambda: not it.main.query_one("#panes").display)
        await it.pilot.press("ctrl+f", *"needle")
        await it.until(lambda: " find needle" in it.screen_text() and "a needle" in it.screen_text())


@run
async def test_it_counts_its_hits_and_those_that_come_while_it_is_open(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        reply = await it.say("hello")
        reply.say("".join(f"needle {number}\n\n" for number in range(7)))
        await it.until(lambda: "needle 6" in it.main.transcript.last_reply())
        await it.pilot.press("ctrl+f", *"needle")
        await it.until(lambda: line(it).endswith(" of 7"))
        first = int(line(it).split()[-3])
        await it.pilot.press("enter")
        await it.until(lambda: line(it).endswith(f" {first % 7 + 1} of 7"))
        await it.pilot.press("up", "up")
        await it.until(lambda: line(it).endswith(f" {(first - 2) % 7 + 1} of 7"))
        await it.answered(reply, "\n\nneedle 7\n\n")
        await it.until(lambda: line(it).endswith(" of 8"))
