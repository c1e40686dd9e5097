"""A round of requests to a fleet: prompts among steady replies. What is late is aborted."""

import random
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from engine.api.commands import Abort, Submit
from engine.api.errors import EngineError
from engine.api.events import Delta, Event, FirstToken, PromptSent, Transferred
from engine.api.params import SamplingParams
from engine.api.snapshot import EXCHANGE
from engine.fleet.fleet import Fleet

SHORT = 32  # tokens
_STEADY = 400  # tokens of a steady reply, after which the next one starts
SETTLE = 1.5  # seconds before the first prompt
_ENDS_WITHIN = 10.0  # seconds for aborted replies to end


@dataclass(slots=True)
class Load:
    """What one round has measured."""

    gaps: list[float] = field(default_factory=list)  # between two tokens of a steady reply
    firsts: list[float] = field(default_factory=list)  # to the first token of each prompt
    sent: list[PromptSent] = field(default_factory=list)
    loads: list[Transferred] = field(default_factory=list)  # of blocks that were sent
    problems: set[str] = field(default_factory=set)  # why blocks were not sent or loaded
    seconds: float = 0.0  # until the last prompt's reply has ended
    late: int = 0  # replies that had not ended within the limit


class Reply:
    """A reply to a prompt."""

    def __init__(self, fleet: Fleet, prompt: Sequence[int], params: SamplingParams) -> None:
        self._fleet, self._error = fleet, ""
        self.tokens, self.ended = list[int](), threading.Event()
        self._accepted = fleet.send(Submit(tuple(prompt), params), self._take)

    def _take(self, delta: Delta) -> None:
        self.tokens += delta.tokens
        if delta.last:
            self._error = delta.error
            self.ended.set()

    def ends(self, latest: float) -> bool:
        """Wait for its end. Raises the reason if it has failed."""
        with suppress(TimeoutError):
            self._accepted.result(max(0.0, latest - time.monotonic()))
        ended = self.ended.wait(max(0.0, latest - time.monotonic()))
        if self._error:
            raise EngineError(f"a reply failed: {self._error}")
        return ended

    @property
    def id(self) -> int:
        return self._accepted.result(_ENDS_WITHIN).id


def play(
    fleet: Fleet,
    prompts: list[list[int]],
    rate: float,
    steady: int,
    tokens: int,
    within: float,
    settle: float = SETTLE,
) -> Load:
    """Submit the prompts, `rate` a second or all at once, among steady replies. `tokens`: of each reply.
    `within`: seconds. `settle`: seconds before the first prompt.
    """
    load, stop = Load(), threading.Event()
    firsts: dict[int, float] = {}  # of all requests: a first token may come before its number is known here

    def note(event: Event) -> None:
        if isinstance(event, FirstToken):
            firsts[event.request] = event.seconds
        elif isinstance(event, PromptSent | Transferred) and event.error:
            load.problems.add(event.error)
        elif isinstance(event, PromptSent):
            load.sent.append(event)
        elif isinstance(event, Transferred) and event.load and event.tier == EXCHANGE:
            load.loads.append(event)

    steadies = [_Steady(fleet, number, load.gaps, stop) for number in range(steady)]
    if steady:
        time.sleep(settle)
        load.gaps.clear()
    unsubscribe = fleet.subscribe(note)
    params = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)
    began, replies = time.monotonic(), list[Reply]()
    for number, prompt in enumerate(prompts):
        if rate:
            time.sleep(max(0.0, began + number / rate - time.monotonic()))
        replies.append(Reply(fleet, prompt, params))
    late = [each for each in replies if not each.ends(began + within)]
    load.seconds, load.late = time.monotonic() - began, len(late)
    load.firsts = [firsts[each.id] for each in replies if each.id in firsts]
    stop.set()
    unsubscribe()
    if late:
        fleet.send(Abort(tuple(each.id for each in late))).result(_ENDS_WITHIN)
    latest = time.monotonic() + _ENDS_WITHIN
    if not all([each.ends(latest) for each in late] + [each.end(latest) for each in steadies]):
        raise EngineError(f"replies have not ended {_ENDS_WITHIN:g} s after they were aborted")
    return load


class _Steady:
    """A reply after the other, to short prompts of their own."""

    def __init__(self, fleet: Fleet, number: int, gaps: list[float], stop: threading.Event) -> None:
        self._fleet, self._gaps, self._stop = fleet, gaps, stop
        self._draw, self._over, self._error = random.Random(number), threading.Event(), ""
        self._begin()

    def _begin(self) -> None:
        prompt = tuple(self._draw.randrange(10, 3000) for _ in range(SHORT))
        self._last = 0.0
        params = SamplingParams(max_tokens=_STEADY, temperature=0.0, ignore_eos=True)
        self._accepted = self._fleet.send(Submit(prompt, params), self._take)

    def _take(self, delta: Delta) -> None:
        now = time.perf_counter()
        if self._last and delta.tokens and not self._stop.is_set():
            self._gaps.append(now - self._last)
        self._last = now
        if delta.last and (self._stop.is_set() or delta.error):
            self._error = delta.error
            self._over.set()
        elif delta.last:
            self._begin()

    def end(self, latest: float) -> bool:
        """Abort it, perhaps more than once: the next one may have begun meanwhile."""
        while not self._over.is_set() and time.monotonic() < latest:
            id = self._accepted.result(_ENDS_WITHIN).id
            self._fleet.send(Abort((id,))).result(_ENDS_WITHIN)
            self._over.wait(0.2)
        if self._error:
            raise EngineError(f"a steady reply failed: {self._error}")
        return self._over.is_set()
