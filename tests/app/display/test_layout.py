"""Which part of the screen gets which columns."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.containers import VerticalScroll

from minichat.features.chats.find import FindBar
from minichat.ui.layout import MOST_PANES, SHORT, layout
from minichat.ui.monitor import EngineLine
from tests.app.conftest import run
from tests.cases import SIZES, case


@pytest.mark.parametrize(
    ("width", "monitor", "panes"),
    [
        (40, False, 1),
        (80, False, 1),
        (119, False, 1),
        (120, True, 1),
        (180, True, 2),
        (200, True, 2),
        (300, True, 4),
    ],
)
def test_without_a_drawer(width: int, monitor: bool, panes: int) -> None:
    plan = layout(width, side=None, drawer=False, side_by_side=True)
    assert (plan.side, plan.panes, plan.chats) == (monitor, panes, True)


def test_a_drawer_replaces_a_monitor_that_fills_the_screen() -> None:
    """The reply that the drawer changes stays visible."""
    for width in (80, 119):
        plan = layout(width, side=True, drawer=True, side_by_side=True)
        assert (plan.side, plan.chats, plan.drawer_columns) == (False, True, 40)


@pytest.mark.parametrize(
    ("width", "beside"), [(120, False), (149, False), (150, True), (180, True), (200, True)]
)
def test_between_a_drawer_and_the_monitor_a_chat_keeps_60_columns(width: int, beside: bool) -> None:
    plan = layout(width, side=None, drawer=True, side_by_side=True)
    assert plan.side is beside
    assert width - plan.side_columns * plan.side - plan.drawer_columns >= 60


@given(st.integers(10, 400), st.sampled_from([None, True, False]), st.booleans(), st.booleans())
def test_something_is_always_visible(
    width: int, monitor: bool | None, drawer: bool, side_by_side: bool
) -> None:
    plan = layout(width, side=monitor, drawer=drawer, side_by_side=side_by_side)
    assert plan.chats or plan.side or drawer
    assert 1 <= plan.panes <= (MOST_PANES if side_by_side else 1)
    taken = plan.side_columns * plan.side + plan.drawer_columns * drawer
    assert taken < width or not plan.chats


@run
async def test_a_resize_while_streaming(bench: Callable[..., Any]) -> None:
    async with bench((80, 24)) as it:
        reply = await it.say("hello")
        for place, size in enumerate([(200, 60), (40, 12), (120, 40), (300, 90), (80, 24)]):
            await it.pilot.resize_terminal(*size)
            reply.say(f"piece{place} ")
            await it.until(lambda place=place: f"piece{place}" in it.screen_text())


@run
async def test_several_chats_or_one(bench: Callable[..., Any]) -> None:
    async with bench((200, 50)) as it:
        await it.pilot.press("alt+p", "alt+p")
        assert "One chat is shown at a time" in it.notices()[0]
        assert "side by side" in it.notices()[1]
        await it.pilot.press("ctrl+n")
        await it.until(lambda: len(it.main.shown) == 2)
        await it.pilot.press("alt+p")
        assert len(it.main.shown) == 1
        await it.pilot.press("alt+p")
        assert len(it.main.shown) == 2
        await it.pilot.resize_terminal(120, 40)
        await it.pilot.press("alt+p")
        notice = "Showing chats side by side needs 180 columns; this terminal has 120"
        assert it.notices()[2:] == [notice]
        await it.pilot.resize_terminal(200, 50)  # without a visible monitor, nothing changed
        await it.until(lambda: len(it.main.shown) == 2)


@run
async def test_monitor_on_and_off(bench: Callable[..., Any]) -> None:
    async with bench((80, 24)) as it:
        assert not it.monitor.display
        assert it.main.query_one(EngineLine).display
        await it.pilot.press("f2")
        assert it.monitor.display
        assert not it.main.query_one("#panes").display
        await it.pilot.press("f2")
        assert it.main.query_one("#panes").display
        await it.pilot.resize_terminal(130, 40)
        assert not it.monitor.display
        await it.pilot.press("f2")
        assert it.monitor.display
        assert it.main.query_one("#panes").display


@run
async def test_snapshots_are_taken_only_while_something_happens(bench: Callable[..., Any]) -> None:
    async with bench((130, 40)) as it:
        await it.answered(await it.say("hello"))
        await it.until(lambda: it.backend.snapshots_taken and it.app.poller.resting)
        before = it.backend.snapshots_taken
        await it.pilot.press(*"typed")
        assert it.backend.snapshots_taken == before
        await it.say("more")
        await it.until(lambda: it.backend.snapshots_taken > before)


@run
async def test_drawer_and_monitor_replace_each_other(bench: Callable[..., Any]) -> None:
    """At 120 columns one of them fits beside the chat; the monitor is one line while the drawer is open."""
    async with bench((120, 40)) as it:
        line = it.main.query_one(EngineLine)
        assert it.monitor.display and not line.display
        await it.pilot.press("f3")
        assert it.drawer.display and line.display and not it.monitor.display
        assert it.main.transcript.size.width >= 60
        await it.pilot.press("escape")
        assert it.monitor.display and not line.display and not it.drawer.display
        for key in ("f2", "alt+m"):
            await it.pilot.press("f4")
            assert it.quantization.display and not it.monitor.display
            await it.pilot.press(key)
            assert it.monitor.display and not it.quantization.display, "the one opened last is visible"
        assert it.monitor.has_focus_within


@run
async def test_escape_closes_the_innermost_part_first(bench: Callable[..., Any]) -> None:
    """The find bar, then the drawer, then the reply is stopped, wherever the focus is."""
    async with bench((200, 50)) as it:
        await it.say("hello")
        await it.pilot.press("f3", "ctrl+f")
        it.main.prompt.focus()
        await it.pilot.press("escape")
        assert not it.main.query_one(FindBar).display and it.drawer.display
        it.main.transcript.focus()
        await it.pilot.press("escape")
        assert not it.drawer.display and it.app.chats.active.streaming
        await it.pilot.press("f4", "alt+m", "escape")
        assert not it.quantization.display and it.monitor.display and it.app.focused is it.main.prompt
        await it.pilot.press("f3")
        it.main.prompt.focus()
        await it.until(lambda: "Esc close" in it.screen_text() and "Esc stop" not in it.screen_text())
        await it.pilot.press("escape")
        await it.until(lambda: "Esc stop" in it.screen_text())
        await it.pilot.press("escape")
        await it.until(lambda: not it.app.chats.active.streaming)


@run
async def test_a_completion_list_closes_before_the_drawer(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await it.pilot.press("f3")
        it.main.prompt.focus()
        await it.pilot.press(*"@/")
        await it.until(lambda: it.main.prompt.completion.offers)
        await it.pilot.press("escape")
        assert not it.main.prompt.completion.offers and it.drawer.display
        await it.pilot.press("escape")
        assert not it.drawer.display


@pytest.mark.parametrize("size", SIZES)
@run
async def test_a_maximized_pane_fills_the_screen(bench: Callable[..., Any], size: tuple[int, int]) -> None:
    async with bench(size) as it:
        chats = it.main.query_one("#panes")
        if size[0] < 200:
            await it.pilot.press("alt+m")
        else:
            await it.pilot.press("f3", "alt+m")  # wide enough for a drawer beside it
        before = (chats.display, it.drawer.display, it.monitor.size)
        for back in ("3", "escape"):
            await it.pilot.press("3")
            await it.until(lambda: it.monitor.rates.size.width >= size[0] - 1)
            assert it.monitor.rates.size.height >= it.main.size.height - 6
            assert not chats.display and not it.drawer.display
            await it.pilot.press(back)
            await it.until(lambda: (chats.display, it.drawer.display, it.monitor.size) == before)
            assert it.monitor.has_focus_within
        await it.pilot.press("1")
        it.main.prompt.focus()
        await it.pilot.press("escape")
        await it.until(lambda: (chats.display, it.drawer.display, it.monitor.size) == before)


@run
async def test_opening_something_else_restores_the_screen(bench: Callable[..., Any]) -> None:
    async with bench((120, 40)) as it:
        for key in ("f2", "f3", "f4", "ctrl+f"):
            with case(key):
                await it.pilot.press("alt+m", "3")
                assert not it.main.query_one("#panes").display
                await it.pilot.press(key)
                assert it.main.query_one("#panes").display and it.monitor.maximized is None
                shown = {"f3": it.drawer, "f4": it.quantization, "ctrl+f": it.main.query_one(FindBar)}
                assert it.monitor.display is (key == "ctrl+f")
                assert key not in shown or shown[key].display
                if key == "f2":
                    await it.pilot.press("f2")
                    await it.until(lambda: it.monitor.display and it.monitor.kvmap.display)


@run
async def test_on_a_low_screen_a_long_draft_leaves_its_lines_to_panels(bench: Callable[..., Any]) -> None:
    async with bench((80, 24)) as it:
        prompt = it.main.prompt
        prompt.put("\n".join(map(str, range(20))))
        await it.until(lambda: prompt.outer_size.height == 10)
        for key in ("f3", "f2"):
            with case(key):
                await it.pilot.press(key)
                await it.until(lambda: prompt.outer_size.height == 5)
                await it.pilot.press("escape")
                await it.until(lambda: prompt.outer_size.height == 10)
        await it.pilot.resize_terminal(80, 40)
        await it.pilot.press("f3")
        await it.until(lambda: it.drawer.display and prompt.outer_size.height == 10)


@run
async def test_a_short_screen_has_no_key_bar(bench: Callable[..., Any]) -> None:
    async with bench((80, SHORT - 1)) as it:
        assert not it.main.keybar.display and it.main.prompt.styles.border_top[0] == ""
        await it.pilot.resize_terminal(80, SHORT)
        await it.until(lambda: it.main.keybar.display)
        assert it.main.prompt.styles.border_top[0]
        await it.pilot.resize_terminal(80, SHORT - 1)
        await it.until(lambda: not it.main.keybar.display)


@run
async def test_tab_goes_from_the_prompt_to_the_messages_of_its_chat(bench: Callable[..., Any]) -> None:
    """Not to those of the leftmost chat beside it."""
    async with bench((240, 40)) as it:
        await it.pilot.press("ctrl+n", "tab")
        assert [pane.conversation is it.app.chats.active for pane in it.main.panes] == [False, True]
        assert it.app.focused is it.main.pane.transcript


@run
async def test_an_open_help_is_laid_out_anew_when_the_terminal_grows(bench: Callable[..., Any]) -> None:
    """Two columns need half of the lines."""
    async with bench((80, 24)) as it:
        await it.pilot.press("f1")
        await it.until(lambda: it.app.screen is not it.main)
        body = it.app.screen.query_one(VerticalScroll)
        await it.until(lambda: body.virtual_size.height > 80)
        await it.pilot.resize_terminal(200, 60)
        await it.until(lambda: body.virtual_size.height < 70)


@run
async def test_a_key_without_room_for_several_chats_says_so(bench: Callable[..., Any]) -> None:
    async with bench((180, 50)) as it:
        await it.pilot.press("ctrl+n", "f3", "alt+p")
        await it.until(lambda: it.notices() == ["One chat is shown at a time"])
        await it.pilot.press("alt+p")
        room = "close the drawer or the monitor to make room"
        await it.until(lambda: it.notices()[1:] == [f"Chats are shown side by side; {room}"])
        await it.pilot.press("escape", "alt+p")
        assert (len(it.main.shown), len(it.notices())) == (1, 2)
