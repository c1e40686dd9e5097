"""Starts and stops replicas by the number of their requests, with the rules of Ray Serve's autoscaling."""

import logging
import threading
import time
from collections.abc import Callable

from engine.api.commands import DrainReplica, StartReplica
from engine.api.errors import EngineError
from engine.host.client import EngineClient

log = logging.getLogger("minichat.engine")

UP_AFTER = 30.0  # seconds of too many requests before replicas start; Serve's default
DOWN_AFTER = 600.0  # seconds of too few before replicas are drained; Serve's default
_LOOK_EVERY = 5.0  # seconds
_COUNTED = ("ready", "restarting", "no answer")  # they take prompts, or will soon


class Autoscaler:
    """Keeps as many replicas as their requests need, `target` for each, and at least `least`."""

    def __init__(
        self, fleet: EngineClient, least: int, target: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._fleet, self._least, self._target, self._clock = fleet, least, target, clock
        self._since: tuple[bool, float] | None = None  # when more (or fewer) replicas began to be needed
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="autoscaler", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.wait(_LOOK_EVERY):
            try:
                self.look()
            except EngineError as error:  # such as a replica that an operator has just started
                log.warning("the number of replicas was not changed: %s", error)

    def look(self) -> None:
        """Compare what is needed with what there is. Act once they have differed for long enough."""
        replicas = self._fleet.snapshot().replicas
        requests = sum(each.running + each.waiting for each in replicas)
        there = [each for each in replicas if each.state in _COUNTED]
        missing = max(self._least, -(-requests // self._target)) - len(there)
        if not missing:
            self._since = None
            return
        more, now = missing > 0, self._clock()
        if self._since is None or self._since[0] is not more:
            self._since = more, now
        if now - self._since[1] < (UP_AFTER if more else DOWN_AFTER):
            return
        self._since = None
        if more:  # those that drain are ready at once
            spare = sorted(
                (each.state, each.number) for each in replicas if each.state in ("draining", "stopped")
            )
            for _, number in spare[:missing]:
                self._fleet.send(StartReplica(number)).result()
        else:
            idle = sorted((each.running + each.waiting, -each.number) for each in there)
            for _, number in idle[:-missing]:
                self._fleet.send(DrainReplica(-number, stop=True)).result()
