"""What the mouse does in the decoding drawer and in the line of tokens."""

from collections.abc import Callable
from typing import Any

from minichat.features.decoding.knobs import Knobs
from minichat.features.picking.line import TokenPicker
from tests.app.conftest import run
from tests.app.decoding.test_decoding import row
from tests.app.decoding.test_picking import letters, replied


@run
async def test_a_click_on_the_sign_beside_a_value_changes_it(bench: Callable[..., Any]) -> None:
    async with bench((100, 40)) as it:
        params = lambda: it.app.chats.active.chat.params  # noqa: E731
        await it.pilot.press("f3")
        knobs = it.drawer.knobs
        row(it, "temperature")
        line = knobs.render().plain.splitlines()[knobs.row].rstrip()
        left, right = line.index("‹"), line.index("›")
        await it.pilot.click(Knobs, offset=(right, knobs.row))
        await it.until(lambda: params().temperature == 0.75)
        await it.pilot.click(Knobs, offset=(left, knobs.row))
        await it.until(lambda: params().temperature == 0.7)
        await it.pilot.click(Knobs, offset=(left + 2, knobs.row))
        await it.pilot.click(Knobs, offset=(left, knobs.row - 1))  # which is selected only now
        assert params().temperature == 0.7
        assert knobs.render().plain.splitlines()[knobs.row][left] == "‹"


@run
async def test_a_click_selects_a_token_and_a_candidate(bench: Callable[..., Any]) -> None:
    async with bench((100, 40), backend=letters()) as it:
        await replied(it, "xabc")
        await it.pilot.press("alt+c")
        await it.until(lambda: it.picker.rows)
        await it.pilot.click(TokenPicker, offset=(1 + 2, 1))  # the padding, and two letters
        await it.until(lambda: it.picker.at == 2 and any(each.chosen for each in it.picker.rows))
        await it.pilot.click(TokenPicker, offset=(8, 3 + 2))
        assert it.picker.choice == 2
        await it.pilot.click(TokenPicker, offset=(8, 3))
        assert it.picker.choice == 0
        await it.pilot.click(TokenPicker, offset=(40, 2))  # right of the last bar
        await it.pilot.click(TokenPicker, offset=(8, 0))
        assert (it.picker.at, it.picker.choice) == (2, 0)
        asked = len(it.replies)
        await it.pilot.press("enter")
        await it.until(lambda: len(it.replies) > asked)
        it.replies[-1].end()
        await it.until(lambda: not it.app.chats.streaming)
