"""Notifications from the engine's thread to readers on the event loop."""

from collections.abc import Callable

from engine.host.handover import Handover

_TICK = 0.002  # seconds between two deliveries: each wake makes the engine's thread wait for the GIL

Notice = Callable[[int], None]


class Notifier:
    """Batches calls from the engine's thread and runs them on the event loop."""

    def __init__(self) -> None:
        self._handover: Handover[tuple[Notice, int]] = Handover(_deliver, _TICK)

    def notify(self, notice: Notice, place: int) -> None:
        """Schedule `notice(place)` on the loop. Safe from any thread."""
        self._handover((notice, place))


def _deliver(notices: list[tuple[Notice, int]]) -> None:
    for notice, place in notices:
        notice(place)
