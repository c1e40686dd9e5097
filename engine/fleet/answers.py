"""Asks engines that others wait for whether they still answer."""

import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from typing import Any

from engine.api.commands import GetSnapshot
from engine.host.client import EngineClient

WITHIN = 10.0  # seconds that an engine has for an answer, which follows its current step
PERIOD = 2.0  # seconds between two questions


class Answers:
    """Which engines have not answered for too long. A thread asks only those that are awaited."""

    def __init__(
        self,
        engines: Mapping[int, EngineClient],
        awaited: Callable[[], Collection[int]],
        on_silence: Callable[[int], None],
    ) -> None:
        """`awaited`, `on_silence`: called on the thread."""
        self._engines, self._awaited, self._on_silence = engines, awaited, on_silence
        self._asked: dict[int, tuple[Future[Any], float]] = {}
        self.silent: frozenset[int] = frozenset()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._ask, name="answers", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join()

    def _ask(self) -> None:
        while not self._ended.wait(PERIOD):
            now = time.monotonic()
            self._asked = {number: each for number, each in self._asked.items() if not each[0].done()}
            for number in self._awaited():
                if number not in self._asked:
                    self._asked[number] = self._engines[number].send(GetSnapshot()), now
            silent = frozenset(number for number, (_, at) in self._asked.items() if now - at > WITHIN)
            lost, self.silent = silent - self.silent, silent
            for number in lost:
                self._on_silence(number)
