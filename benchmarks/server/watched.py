"""Starts a fleet's engines within a limit, and says what each does until it is ready."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Event, Lock

from engine.api.commands import GetSnapshot
from engine.api.config import EngineConfig
from engine.api.errors import EngineError
from engine.fleet.fleet import Fleet
from engine.fleet.local import Start
from engine.host.frames import FrameSocket
from engine.host.launching import Ahead, ChildProcess, Launch, launch_here
from engine.host.process import EngineProcess

Say = Callable[[str], None]
Build = Callable[[Start, Path], Fleet]
Launcher = Callable[[EngineConfig], Launch]

_TICK = 0.1  # seconds
_EVERY = 5.0  # seconds between two lines about a start
_TAIL = 5  # lines of a log


def here(config: EngineConfig) -> Launch:
    """Launch an engine's process on this machine."""
    return partial(launch_here, ahead=Ahead(config.device))


class Watched:
    """The engines of one fleet. If they are not ready in time they are killed, and the error says why."""

    def __init__(
        self,
        name: str,
        logs: Path,
        within: float,
        say: Say,
        *,
        launcher: Launcher = here,
        dry_rate: float | None = None,
    ) -> None:
        """`logs`: the folder of their logs. `within`: seconds until all must be ready. `dry_rate`: they make
        up that many tokens a second.
        """
        self.name, self._logs, self._say = name, logs, say
        self._launcher, self._dry_rate = launcher, dry_rate
        self._began, self._within = time.monotonic(), within
        self._killing, self._lock = Event(), Lock()
        self._children: list[ChildProcess] = []
        self._engines: dict[str, EngineProcess] = {}  # by the stem of its log
        self._doing: dict[str, str] = {}

    @property
    def left(self) -> float:
        return self._began + self._within - time.monotonic()

    @property
    def log(self) -> Path:
        """The logs are named like this, with the engine's number added."""
        return self._logs / (self.name.replace(",", "").replace(" ", "-") + ".log")

    @contextmanager
    def running(self, build: Build) -> Iterator[Fleet]:
        """A fleet that is ready. Its engines are killed after an error, so that none is waited for."""
        fleet = self._fleet(build)
        try:
            yield fleet
        except BaseException:
            self._look(_EVERY)
            self._end(fleet)
            raise
        fleet.close()

    def _fleet(self, build: Build) -> Fleet:
        """Build the fleet, and return it once all engines have loaded and warmed up."""
        with ThreadPoolExecutor(1) as thread:
            building = thread.submit(build, self._start, self.log)
            try:
                self._until("is not loaded", building.done)
            except BaseException:
                self._kill()
                with suppress(EngineError, CancelledError):
                    building.result().close()
                raise
        try:
            fleet = building.result()
        except EngineError as error:
            raise EngineError(f"an engine did not start: {error}") from error
        try:
            self._until("has not warmed up", self._warm)
        except BaseException:
            self._end(fleet)
            raise
        self._say(f"{self.name}: ready after {time.monotonic() - self._began:.1f} s")
        return fleet

    def check(self) -> None:
        """Raise if the process of an engine has ended."""
        if ended := [each.error for each in self._engines.values() if each.error]:
            raise EngineError(ended[0])

    def report(self) -> str:
        """What each engine did last, and the last lines of each log."""
        logs = sorted(self._logs.glob(f"{self.log.stem}-*.log"))
        found = [(each, each.read_text(errors="replace").splitlines()[-_TAIL:]) for each in logs]
        return f"\n{self._state()}" + "".join(
            f"\n{each}:" + "".join(f"\n  {line}" for line in lines) for each, lines in found
        )

    def _start(self, config: EngineConfig, log: Path) -> EngineProcess:
        launcher = self._launcher(config)

        def launch(log: Path) -> tuple[ChildProcess, FrameSocket]:
            child, frames = launcher(log)
            with self._lock:
                self._children.append(child)
                if self._killing.is_set():
                    child.kill()
            return child, frames

        note = partial(self._doing.__setitem__, log.stem)
        note("starting")
        made = self._engines[log.stem] = EngineProcess(
            config, log, phase=note, dry_rate=self._dry_rate, launch=launch
        )
        note("loaded")
        return made

    def _end(self, fleet: Fleet) -> None:
        """Kill the engines, so that none is waited for, and close the fleet."""
        self._kill()
        fleet.close()

    def _kill(self) -> None:
        with self._lock:
            self._killing.set()
            for each in self._children:
                each.kill()

    def _until(self, problem: str, holds: Callable[[], bool]) -> None:
        said = self._began
        while not holds():
            if self.left <= 0:
                raise EngineError(f"an engine {problem} within {self._within:g} s: {self._state()}")
            if time.monotonic() > said + _EVERY:
                said = time.monotonic()
                self._say(f"{self.name}: {said - self._began:.0f} s, {self._state()}")
            time.sleep(_TICK)

    def _state(self) -> str:
        return "; ".join(f"{name} {doing}" for name, doing in sorted(self._doing.copy().items()))

    def _warm(self) -> bool:
        shares = self._look(min(_EVERY, max(0.0, self.left)))
        self.check()
        return all(each >= 1 for each in shares)

    def _look(self, within: float) -> list[float]:
        """Note what each engine does. Return how far they have warmed up; one that compiles answers late."""
        asked = {name: each.send(GetSnapshot()) for name, each in self._engines.items()}
        latest, shares = time.monotonic() + within, list[float]()
        for name, answer in asked.items():
            try:
                shot = answer.result(max(0.0, latest - time.monotonic()))
            except (EngineError, TimeoutError) as error:
                self._doing[name] = str(error) or "does not answer"
                shares.append(0.0)
            else:
                queues = f"{shot.running} running, {shot.waiting} waiting, {shot.loading} loading"
                self._doing[name] = f"has warmed up to {shot.warmed:.0%}, {queues}"
                shares.append(shot.warmed)
        return shares
