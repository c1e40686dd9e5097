"""From the engine's thread to readers on the event loop."""

from collections.abc import Callable

from engine.host.handover import Handover

_TICK = 0.004  # seconds between two deliveries: a wake makes the engine's thread wait for the interpreter

Notice = Callable[[int], None]


class Notifier:
    """Rung by the engine's thread for a place of a reader; the reader hears of it on the loop."""

    def __init__(self) -> None:
        self._rung: Handover[tuple[Notice, int]] = Handover(_deliver, _TICK)

    def notify(self, notice: Notice, place: int) -> None:
        """From any thread; `notice` runs on the loop."""
        self._rung((notice, place))


def _deliver(rung: list[tuple[Notice, int]]) -> None:
    for notice, place in rung:
        notice(place)
