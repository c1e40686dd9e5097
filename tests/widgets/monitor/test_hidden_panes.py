"""A key that acts on a pane that is not visible shows it first."""

import pytest
from textual.notifications import Notify

from minichat.ui.monitor import MonitorPanel, Queues
from minichat.ui.monitor.arrange import EVENTS, KVMAP, QUEUES
from tests.widgets.monitor.snapshots import OWNERS, request, snapshot
from tests.widgets.monitor.stage import received, staged

SHOT = snapshot(640, [request(number, blocks=range(number * 9, number * 9 + 9)) for number in range(3)])


@pytest.mark.parametrize("key", ["x", "P"])
async def test_no_request_is_aborted_or_preempted_before_it_is_seen(key: str) -> None:
    panel = MonitorPanel()
    async with staged(panel, (80, 24)) as pilot:
        panel.maximize(KVMAP)
        panel.update_from(SHOT, OWNERS)
        await pilot.press(key)
        assert not received(pilot, Notify), "there are requests"
        assert panel.maximized == QUEUES and panel.queues.has_focus
        assert not received(pilot, Queues.RequestAction)
        await pilot.press(key)
        assert len(received(pilot, Queues.RequestAction)) == 1


async def test_a_filter_is_typed_where_it_is_seen() -> None:
    panel = MonitorPanel()
    async with staged(panel, (80, 14)) as pilot:
        assert not panel.event_log.display
        panel.focus_first()
        await pilot.press("slash", "a")
        assert panel.maximized == EVENTS and panel.event_log.pattern == "a"
        await pilot.press("escape", "escape")
        assert panel.maximized is None and not panel.event_log.pattern
