"""The keys that act on a request act on the selected one, or say why they do not."""

from textual.notifications import Notify

from minichat.ui.monitor import MonitorPanel, Queues
from tests.widgets.monitor.snapshots import OWNERS, request, snapshot
from tests.widgets.monitor.stage import received, staged


async def test_only_a_running_request_is_preempted() -> None:
    """The engine would ignore it for another one."""
    panel = MonitorPanel()
    async with staged(panel, (66, 40)) as pilot:
        said = lambda: [each.notification.message for each in received(pilot, Notify)]  # noqa: E731
        panel.update_from(snapshot(640, [request(3, "waiting"), request(4, blocks=(1, 2))]), OWNERS)
        panel.queues.focus()
        await pilot.press("P")
        assert said() == ["The selected request is not running"]
        await pilot.press("down", "P")
        assert [message.request for message in received(pilot, Queues.PreemptRequested)] == [4]
        assert len(said()) == 1


async def test_requests_of_a_former_engine_are_not_selected() -> None:
    panel = MonitorPanel()
    async with staged(panel, (66, 40)) as pilot:
        panel.update_from(snapshot(640, [request(3, blocks=(1, 2))]), OWNERS)
        panel.queues.focus()
        panel.forget()
        await pilot.press("x", "P")
        assert [each.notification.message for each in received(pilot, Notify)] == [
            "There is no request to abort",
            "There is no request to preempt",
        ]
        assert not received(pilot, Queues.RequestAction)
