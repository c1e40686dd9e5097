"""The panes together: their layout and their keys."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.color import Color
from textual.geometry import Region
from textual.notifications import Notify

from engine.api import events
from engine.api.expert_load import ExpertLoad
from engine.api.snapshot import Quantiles, StepTimes, Throughput
from minichat.ui.monitor import KVMap, MonitorPanel, Queues
from minichat.ui.monitor.arrange import EXPERTS, PANES, arrange
from minichat.ui.monitor.pane import Pane
from tests.waiting import until
from tests.widgets.monitor.snapshots import OWNERS, request, snapshot
from tests.widgets.monitor.stage import lines, received, staged

SHOT = snapshot(640, [request(number, blocks=range(number * 9, number * 9 + 9)) for number in range(6)])
EVEN = ExpertLoad((0, 1), 4, 2, np.ones(8, np.int64))
NONE_YET = {"ttft": Quantiles(), "itl": Quantiles(), "step_times": StepTimes(), "finished": 0}
IDLE = snapshot(640, rates=Throughput(), **NONE_YET)


@given(st.integers(1, 300), st.integers(1, 100), st.sampled_from([None, *PANES]))
def test_panes_neither_overlap_nor_leave_gaps(width: int, height: int, maximized: int | None) -> None:
    room = Region(0, 0, width, height)
    places = [Region(*place) for place in arrange(width, height, maximized).values()]
    assert places
    assert all(place in room and place.area for place in places)
    assert not any(one.overlaps(other) for one, other in combinations(places, 2))


def test_common_sizes_show_all_panes() -> None:
    for size in ((50, 33), (66, 53), (120, 20), (300, 80)):
        assert sorted(arrange(*size, useful_lines={EXPERTS: 0})) == list(PANES[:-1])
    for size in ((50, 38), (66, 53), (120, 24), (300, 80)):
        assert sorted(arrange(*size)) == list(PANES)
    assert sorted(arrange(40, 12)) == [1, 2]


async def test_all_panes_show_content() -> None:
    panel = MonitorPanel()
    async with staged(panel, (66, 45)) as pilot:
        panel.update_from(replace(SHOT, experts=EVEN), OWNERS)
        panel.add_event(events.Queued(1, 0.0, 3, 120))
        await pilot.pause()
        for number, pane in panel.panes.items():
            shown = lines(pane)
            assert shown[0].startswith(f" {number} {pane.title}")
            assert shown[1].strip()
            assert all(len(line) == 66 for line in shown)


async def test_panes_that_do_not_fit_are_named() -> None:
    panel = MonitorPanel()
    async with staged(panel, (80, 19)) as pilot:
        panel.update_from(SHOT, OWNERS)
        await pilot.pause()
        headings = [lines(pane)[0].rstrip() for pane in panel.panes.values() if pane.display]
        assert [heading.endswith("4 5 hidden") for heading in headings] == [False, False, True]
        await pilot.resize_terminal(80, 60)
        await pilot.pause()
        assert not any("hidden" in lines(pane)[0] for pane in panel.panes.values() if pane.display)
        await pilot.resize_terminal(80, 19)
        panel.maximize(5)
        await pilot.pause()
        assert "hidden" not in lines(panel.event_log)[0]


async def test_ascii_mode_is_ascii() -> None:
    panel = MonitorPanel(ascii=True)
    async with staged(panel, (50, 33)) as pilot:
        panel.update_from(SHOT, OWNERS)
        panel.add_event(events.Finished(1, 0.0, 3, "failed", 1, "x" * 99))
        panel.focus_first()
        await pilot.pause()
        assert all(line.isascii() for pane in panel.panes.values() for line in lines(pane))


@pytest.mark.parametrize("theme", ["minichat-dark", "minichat-light", "high-contrast"])
async def test_all_text_is_readable_on_the_background(theme: str) -> None:
    panel = MonitorPanel()
    async with staged(panel, (66, 40), theme=theme) as pilot:
        panel.update_from(SHOT, OWNERS)
        panel.add_event(events.Queued(1, 0.0, 3, 120))
        panel.queues.focus()
        await pilot.pause()
        ground = Color.parse(pilot.app.theme_variables["background"])
        for pane in (panel.queues, panel.rates, panel.latency, panel.event_log):
            for segment in (each for y in range(pane.size.height) for each in pane.render_line(y)):
                assert segment.style
                assert segment.style.color
                assert segment.style.bgcolor
                if segment.text.strip():
                    ink, paper = (
                        Color.from_rich_color(c) for c in (segment.style.color, segment.style.bgcolor)
                    )
                    assert abs(ink.brightness - paper.brightness) > 0.25, (segment, pane)
                    assert abs(ground.brightness - paper.brightness) < 0.2, (segment, pane)


async def test_a_number_maximizes_a_pane_and_restores_it() -> None:
    panel = MonitorPanel()
    async with staged(panel, (66, 40)) as pilot:
        panel.update_from(SHOT, OWNERS)
        panel.focus_first()
        for number in PANES:
            await pilot.press(f"{number}")
            pane = panel.panes[number]
            await until(lambda seen=pane: seen.size == (66, 40) and lines(seen)[1].strip())
            assert [each.number for each in panel.panes.values() if each.display] == [number]
            assert pane.has_focus
        await pilot.press("6")
        assert [number for number, pane in panel.panes.items() if pane.display] == list(PANES[:-1])
        await pilot.press("2", "escape")
        assert panel.maximized is None
        assert not received(pilot, MonitorPanel.LeaveRequested)
        await pilot.press("escape")
        assert len(received(pilot, MonitorPanel.LeaveRequested)) == 1


async def test_a_hidden_pane_is_not_updated(monkeypatch: pytest.MonkeyPatch) -> None:
    panel = MonitorPanel()
    rendered: list[Pane] = []
    monkeypatch.setattr(Pane, "draw", lambda pane: rendered.append(pane))
    async with staged(panel, (66, 40)) as pilot:
        panel.maximize(4)
        await pilot.pause()
        rendered.clear()
        panel.update_from(SHOT, OWNERS)
        assert rendered == [panel.latency]
        panel.display = False
        await pilot.pause()
        rendered.clear()
        panel.update_from(SHOT, OWNERS)
        assert rendered == []
        panel.display = True
        await until(lambda: panel.latency in rendered)


async def test_p_pauses_the_display() -> None:
    panel = MonitorPanel(ascii=True)
    async with staged(panel, (60, 40)) as pilot:
        panel.update_from(SHOT, OWNERS)
        panel.focus_first()
        await pilot.press("p")
        assert lines(panel.queues)[0].rstrip().endswith("paused")
        panel.update_from(snapshot(640), OWNERS)
        panel.add_event(events.Died(1, 0.0, "gone"))
        await pilot.pause()
        assert "6 running" in lines(panel.queues)[0]
        assert "gone" not in lines(panel.event_log)[1]
        await pilot.press("p")
        await pilot.pause()
        assert "0 running" in lines(panel.queues)[0]
        assert "gone" in lines(panel.event_log)[1]


async def test_keys_work_wherever_the_focus_is() -> None:
    panel = MonitorPanel()
    async with staged(panel, (66, 40)) as pilot:
        panel.update_from(SHOT, OWNERS)
        panel.latency.focus()
        await pilot.press("o", "c", "l", "plus", "minus", "x", "P")
        assert (panel.kvmap.order, panel.kvmap.tint, panel.kvmap.letters) == ("by session", "age", True)
        assert [message.by for message in received(pilot, MonitorPanel.RateRequested)] == [1, -1]
        assert [message.request for message in received(pilot, Queues.AbortRequested)] == [0]
        assert [message.request for message in received(pilot, Queues.PreemptRequested)] == [0]
        await pilot.press("slash", *"xp1")
        assert panel.event_log.pattern == "xp1"
        assert len(received(pilot, Queues.AbortRequested)) == 1


async def test_what_the_map_does_not_show_is_announced() -> None:
    panel = MonitorPanel()
    async with staged(panel, (66, 40)) as pilot:
        said = lambda: [each.notification.message for each in received(pilot, Notify)]  # noqa: E731
        panel.update_from(SHOT, OWNERS)
        panel.latency.focus()
        await pilot.press("l", "l", "o", "o", "c")
        assert said() == [], "the map shows it"
        await pilot.press("2", "l", "o", "c")
        shown = ["as letters", "by session", "with color by references"]
        await until(lambda: said() == [f"The map will show blocks {each}" for each in shown], pilot.pause)


async def test_an_order_that_a_narrow_map_does_not_show_is_announced() -> None:
    panel = MonitorPanel()
    async with staged(panel, (40, 40)) as pilot:
        panel.update_from(IDLE, OWNERS)
        panel.latency.focus()
        await pilot.press("o", "o")
        shown = [f"The map will show blocks {each}" for each in ("by session", "by address")]
        said = lambda: [each.notification.message for each in received(pilot, Notify)]  # noqa: E731
        await until(lambda: said() == shown, pilot.pause)


async def test_all_sizes_from_tiny_to_huge() -> None:
    panel = MonitorPanel()
    async with staged(panel, (66, 40)) as pilot:
        panel.add_event(events.Queued(1, 0.0, 3, 120))
        for size in ((1, 1), (10, 3), (40, 12), (120, 30), (300, 90)):
            await pilot.resize_terminal(*size)
            await until(lambda size=size: panel.size == size)
            panel.update_from(SHOT, OWNERS)
            for pane in panel.panes.values():
                await until(
                    lambda seen=pane: (
                        not seen.display or all(len(line) == seen.size.width for line in lines(seen))
                    ),
                )


async def test_panes_with_little_content_give_their_lines_to_others() -> None:
    panel = MonitorPanel()
    async with staged(panel, (66, 40)):

        def heights() -> list[int]:
            return [pane.size.height for pane in panel.panes.values() if pane.display]

        panel.update_from(IDLE, OWNERS)
        await until(lambda: heights()[1:] == [2, 2, 2, 2])
        assert heights()[0] == 40 - 4 * 3, "the map has all other lines"
        panel.update_from(SHOT, OWNERS)
        await until(lambda: heights()[1] == 2 + 6 and heights()[3] == 6)
        assert sum(heights()) + 4 == 40
        for number in range(3):
            panel.add_event(events.Queued(1, 0.0, number, 120))
        grown = heights()
        panel.update_from(IDLE, OWNERS)
        await until(lambda: heights()[4] == 4)
        assert heights()[1] == grown[1], "panes do not jump with each request that ends"


def test_lines_go_only_to_panes_that_can_use_them() -> None:
    few = dict.fromkeys((2, 4, 5, 6), 2)
    for size in ((50, 33), (120, 20), (300, 80)):
        places = arrange(*size, useful_lines=few)
        assert sorted(places) == list(PANES)
        assert all(places[pane][3] == 2 for pane in few)
    assert sorted(arrange(40, 12, useful_lines=few)) == [1, 2], "the map and the rates keep their minimum"
    assert sorted(arrange(40, 12, useful_lines=few | {3: 2})) == [1, 2, 3]


async def test_the_keys_that_scroll_listed_blocks_are_named_if_they_do() -> None:
    kvmap = KVMap(ascii=True)
    async with staged(kvmap, (30, 8)) as pilot:
        for count, scrolls in ((8, False), (2000, True)):
            kvmap.update_from(snapshot(count), OWNERS)
            await pilot.press("enter")
            assert ("scroll" in dict(kvmap.hints).values()) == scrolls == (len(kvmap.pointed()) > 7)
            await pilot.press("escape")


async def test_a_heading_without_some_facts_says_so() -> None:
    pane = Pane()
    pane.number, pane.title = 7, "facts"  # type: ignore[misc]
    async with staged(pane, (30, 3), focus=False) as pilot:
        for width, words in (
            (30, " 7 facts  one  two"),
            (19, " 7 facts  one  two"),
            (18, " 7 facts  one …"),
            (12, " 7 facts …"),
            (10, " 7 facts"),
        ):
            await pilot.resize_terminal(width, 3)
            await pilot.pause()
            assert "".join(text for text, _ in pane.heading("one", "", "two")).rstrip() == words
