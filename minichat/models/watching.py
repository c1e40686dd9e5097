"""Reports the end of a server's engine."""

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from engine.api.errors import EngineError

if TYPE_CHECKING:  # they import numpy, and the engine's process is started first
    from engine.api.events import Event
    from engine.host.client import EngineClient


def watch(host: "EngineClient", died: Callable[[str], None]) -> Callable[[], None]:
    """Call `died` when the engine ends, or soon if it has ended. Return how to leave."""
    from engine.api.events import Died

    reported, looked, gate = threading.Event(), list[str](), threading.Lock()

    def hear(event: "Event") -> None:
        if type(event) is Died:
            with gate:
                reported.set()
                known = event.error in looked
            if not known:
                died(event.error)

    def look() -> None:
        """On a thread, as a snapshot waits for a step. No event comes for an end before `subscribe`."""
        with suppress(EngineError):  # it was closed
            if (shot := host.snapshot()).state != "dead":
                return
            with gate:
                if reported.is_set():
                    return
                looked.append(shot.error)
            died(shot.error)

    def leave() -> None:
        reported.set()
        unsubscribe()

    unsubscribe = host.subscribe(hear)
    threading.Thread(target=look, name="look", daemon=True).start()
    return leave
