"""An engine process that is started again when it dies."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import NamedTuple, TypeVar

from engine.api.commands import Command, Submit
from engine.api.errors import BadInput, EngineDead, EngineError
from engine.api.events import Bus, Died, Event, Handler, Restarted, Restarting, log
from engine.api.expert_load import ExpertLoad
from engine.api.histogram import Counts
from engine.api.params import SamplingParams
from engine.api.snapshot import Snapshot
from engine.api.speculation import Speculation
from engine.host.client import EngineClient, Sink
from engine.host.process import EngineProcess

T = TypeVar("T")
Start = Callable[[int], EngineProcess]  # with the number of the first request

PAUSES = (1.0, 2.0, 5.0, 15.0, 60.0)  # seconds before each start in a row
_LONG_ENOUGH = 600.0  # seconds without a death after which starts are counted from 0
_NUMBERS = 2**32  # of requests in one process, so that no number comes twice
_SUSPECTS = 1000  # requests remembered that ran when a process died
_DEATHS = 2  # a request that was running at this many is refused

_Suspect = tuple[tuple[int, ...], SamplingParams]


class _Totals(NamedTuple):
    """What snapshots count since an engine's start."""

    iteration_tokens: Counts = Counts()
    finished: int = 0
    preemptions: int = 0
    evictions: int = 0
    prompts: int = 0  # tokens
    hits: float = 0.0  # those of them found in the prefix cache
    speculation: Speculation = Speculation()
    experts: ExpertLoad | None = None

    def plus(self, shot: Snapshot) -> "_Totals":
        return _Totals(
            self.iteration_tokens.plus(shot.iteration_tokens),
            self.finished + shot.finished,
            self.preemptions + shot.preemptions,
            self.evictions + shot.blocks.evictions,
            self.prompts + shot.prompt_tokens,
            self.hits + shot.prefix_hit_rate * shot.prompt_tokens,
            Speculation.total((shot.speculation, self.speculation)),
            ExpertLoad.total((shot.experts, self.experts)),
        )


class RestartingEngine(EngineClient):
    """A host whose process is replaced when it dies. Requests in it fail with the reason.

    Prompts, settings and numbers stay valid; changes at run time, such as another quantization scheme, are
    lost. A request that was running at two deaths is refused, as it may be what kills the engine. Counters
    are those of all its processes, so that they do not fall.
    `stop_process` ends the process until `start_process`.
    """

    def __init__(
        self, start: Start, restarts: int, pauses: tuple[float, ...] = PAUSES, name: str = ""
    ) -> None:
        """`name`: what the log calls it, as one of several."""
        self._start, self._restarts, self._pauses = start, restarts, pauses
        self._prefix = f"{name}: " if name else ""
        self._changing = threading.Lock()  # held by `stop_process` and `start_process`
        self._beginning = threading.Lock()  # held while a process starts after the first one
        self._gate = threading.Lock()  # guards the fields below
        self._stopped = False
        self._deaths = 0  # in a row
        self._starts = 0
        self._why = ""  # why there is no process; empty while there is one
        self._suspects: OrderedDict[_Suspect, int] = OrderedDict()
        self._closed = threading.Event()
        self._halt = threading.Event()  # set: no further process may start; a new event for each start
        self._bus = Bus()
        self._before = _Totals()  # of earlier processes, as far as they were known
        self._process = start(0)
        self._last = self._process.last
        self._adopt(self._process)

    def _adopt(self, process: EngineProcess) -> None:
        self._chat, self._born = process.chat, time.monotonic()
        process.subscribe(self._on_event)
        if process.error:  # it ended before it had a subscriber
            self._on_event(Died(0, time.monotonic(), process.error))

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, command: Command[T], sink: Sink | None = None) -> Future[T]:
        with self._gate:
            process, error = self._process, self._problem(command)
        if error is None:
            return process.send(command, sink)
        answer: Future[T] = Future()
        answer.set_exception(error)
        return answer

    def _problem(self, command: Command[T]) -> EngineError | None:
        if self._why:
            return EngineDead(self._why)
        if isinstance(command, Submit) and self._suspects.get(_suspect(command), 0) >= _DEATHS:
            return BadInput(f"this request was running at {_DEATHS} deaths of the engine, so it is refused")
        return None

    def snapshot(self) -> Snapshot:
        with self._gate:
            process, why, deaths = self._process, self._why, self._deaths
        if not why:
            try:
                found = process.snapshot()
                with self._gate:
                    self._last = found if process is self._process else self._last
                why = found.error
            except EngineDead as error:
                if self._closed.is_set():
                    raise
                why = str(error)
            if not why:
                return self._counted()
            deaths += 1  # it has just died, which has not been reported yet
        ended = self._counted().ended(why)
        if self._stopped:
            return replace(ended, state="stopped")
        return replace(ended, state="restarting") if self._revives(deaths) else ended

    def _counted(self) -> Snapshot:
        """The last snapshot, with what earlier processes have counted."""
        with self._gate:
            last, totals = self._last, self._before.plus(self._last)
        return replace(
            last,
            iteration_tokens=totals.iteration_tokens,
            finished=totals.finished,
            preemptions=totals.preemptions,
            prefix_hit_rate=totals.hits / max(1, totals.prompts),
            prompt_tokens=totals.prompts,
            speculation=totals.speculation,
            experts=totals.experts,
            blocks=replace(last.blocks, evictions=totals.evictions),
        )

    @property
    def _reviving(self) -> bool:
        return self._revives(self._deaths)

    def _revives(self, deaths: int) -> bool:
        return deaths <= self._restarts and not self._halt.is_set()

    @property
    def _pause(self) -> float:
        return self._pauses[min(self._deaths, len(self._pauses)) - 1]

    def subscribe(self, handler: Handler) -> Callable[[], None]:
        """Call `handler` with every event, on the process's reading thread. It must not block."""
        return self._bus.subscribe(handler)

    def stop_process(self) -> None:
        """End the process, or the attempts to start one. Requests in it fail."""
        with self._changing:
            with self._gate:
                self._halt.set()
                self._stopped, self._why = True, "the engine was stopped"
                process = self._process
            process.stop()

    def start_process(self) -> None:
        """Start a process if there is none, and if none is being started. Deaths are counted from 0."""
        with self._changing, self._gate:
            if not self._why or self._reviving or self._closed.is_set():
                return
            self._stopped, self._deaths, self._halt = False, 0, threading.Event()
            event, halt = Died(self._last.step, time.monotonic(), self._why), self._halt
            self._why = f"{self._why}; it is being restarted"
        threading.Thread(
            target=self._revive, args=(event, 0.0, halt), name="engine-start", daemon=True
        ).start()

    def close(self) -> None:
        with self._gate:
            self._closed.set()
            self._halt.set()
            process = self._process
        process.close()

    # On the reading thread of the process

    def _on_event(self, event: Event) -> None:
        if not isinstance(event, Died) or self._closed.is_set():
            self._bus.emit(event)
            return
        with self._gate:
            if self._why:  # an engine that reported its end, and whose process then ended
                return
            halt = self._halt
            if time.monotonic() - self._born > _LONG_ENOUGH:
                self._deaths = 0
            self._deaths += 1
            self._why = f"{event.error}; it is being restarted" if self._reviving else event.error
            for command in self._process.unfinished():
                if isinstance(command, Submit):
                    self._note_death_of(command)
            reviving, pause = self._reviving, self._pause
        if not reviving:
            self._bus.emit(event)
            return
        log.error("%s%s; it is started again in %g s", self._prefix, event.error, pause)
        self._bus.emit(Restarting(event.step, event.at, event.error, pause))
        threading.Thread(
            target=self._revive, args=(event, pause, halt), name="engine-restart", daemon=True
        ).start()

    def _note_death_of(self, command: Submit) -> None:
        key = _suspect(command)
        self._suspects[key] = self._suspects.pop(key, 0) + 1
        if len(self._suspects) > _SUSPECTS:
            self._suspects.popitem(last=False)

    # On a thread of its own

    def _revive(self, event: Died, pause: float, halt: threading.Event) -> None:
        """Start processes until one is ready, as often as is allowed, unless `halt` is set."""
        while not halt.wait(pause):
            try:
                with self._beginning:
                    if not halt.is_set():
                        self._replace(event, halt)
                return
            except Exception as error:  # such as no memory or no file; each failed start counts as a death
                with self._gate:
                    if halt.is_set():
                        return
                    self._deaths += 1
                    self._why = why = f"{event.error}; it could not be restarted: {error}"
                    reviving, pause = self._reviving, self._pause
                if not reviving:
                    self._bus.emit(replace(event, error=why))
                    return
                if isinstance(error, EngineError | OSError):
                    log.error(
                        "%sthe engine could not be restarted: %s; the next try is in %g s",
                        self._prefix,
                        error,
                        pause,
                    )
                else:
                    log.exception(
                        "%sthe engine could not be restarted; the next try is in %g s", self._prefix, pause
                    )

    def _replace(self, event: Died, halt: threading.Event) -> None:
        dead = self._process
        dead.stop()  # one that lost its device still runs, and holds memory
        self._starts += 1
        process = self._start(self._starts * _NUMBERS)
        with self._gate:
            if not (halted := halt.is_set()):
                self._before, self._last = self._before.plus(self._last), process.last
                self._process, self._why, self._chat = process, "", process.chat
        if halted:
            process.close()
            return
        dead.close()
        now = time.monotonic()
        log.warning("%sthe engine runs again, after %.1f s", self._prefix, now - event.at)
        self._bus.emit(Restarted(0, now, now - event.at))
        self._adopt(process)


def _suspect(command: Submit) -> _Suspect:
    return command.prompt, command.params
