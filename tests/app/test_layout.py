"""Who gets which columns."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minichat.ui.layout import MOST_PANES, layout
from minichat.ui.monitor import EngineLine
from tests.app.conftest import run


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
def test_by_itself(width: int, monitor: bool, panes: int) -> None:
    plan = layout(width, monitor=None, drawer=False, side_by_side=True)
    assert (plan.monitor, plan.panes, plan.chats) == (monitor, panes, True)


def test_a_drawer_takes_the_place_of_a_monitor_that_fills_the_screen() -> None:
    """The reply that it changes is seen beside it."""
    for width in (80, 119):
        plan = layout(width, monitor=True, drawer=True, side_by_side=True)
        assert (plan.monitor, plan.chats, plan.drawer_columns) == (False, True, 40)


@given(st.integers(10, 400), st.sampled_from([None, True, False]), st.booleans(), st.booleans())
def test_something_is_always_seen(width: int, monitor: bool | None, drawer: bool, side_by_side: bool) -> None:
    plan = layout(width, monitor=monitor, drawer=drawer, side_by_side=side_by_side)
    assert plan.chats or plan.monitor or drawer
    assert 1 <= plan.panes <= (MOST_PANES if side_by_side else 1)
    taken = plan.monitor_columns * plan.monitor + plan.drawer_columns * drawer
    assert taken < width or not plan.chats


@run
async def test_a_resize_while_it_streams(bench: Callable[..., Any]) -> None:
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
        assert "one chat is seen at a time" in it.notices()[0]
        assert "side by side" in it.notices()[1]
        await it.pilot.press("ctrl+n")
        await it.until(lambda: len(it.main.shown) == 2)
        await it.pilot.press("alt+p")
        assert len(it.main.shown) == 1
        await it.pilot.press("alt+p")
        assert len(it.main.shown) == 2
        await it.pilot.resize_terminal(120, 40)
        await it.pilot.press("alt+p")
        said = "180 columns show several chats side by side, and this terminal has 120"
        assert it.notices()[2:] == [said]
        await it.pilot.resize_terminal(200, 50)  # where nothing could be seen, nothing was changed
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
        await it.until(lambda: it.backend.snapshots_taken and it.app.pulse._task.done())
        before = it.backend.snapshots_taken
        await it.pilot.press(*"typed")
        assert it.backend.snapshots_taken == before
        await it.say("more")
        await it.until(lambda: it.backend.snapshots_taken > before)
