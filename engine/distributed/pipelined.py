"""A runner of several stages: sends each step to all ranks, and runs the last stage on its own runner.

Several steps are in flight, one in each stage. On a CPU, a call of the own runner takes as long as its work,
so those for later steps wait until earlier steps have been collected: meanwhile the other stages work on
them. Ranks report every step. A failed one has passed all stages, so nothing has to be taken back.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from engine.api.errors import BadInput, EngineDead, EngineError
from engine.api.snapshot import SchemeView
from engine.distributed.collective import Exchanged
from engine.distributed.messages import Kind, digest, draft_digest
from engine.distributed.runner import RankedRunner
from engine.distributed.stages import PipelineLink, StageLost
from engine.distributed.team import Team
from engine.execution.changes import RunnerChange
from engine.execution.protocol import StepResult, WeightsPlan
from engine.execution.runner import ModelRunner
from engine.kv.tiers.tier import TransferEnd, TransferOrder
from engine.scheduling.step import Masks, Step
from engine.scheduling.step_bytes import encode
from engine.serving.recordings.runner_bytes import encode_masks, encode_order

_FIXED = "the weights of a pipeline (pp) keep the scheme that it was started with"


@dataclass(slots=True)
class StageFlight:
    """A step in flight, and its part of the last stage."""

    step: Step
    began: float
    own: Any = None  # the handle of the own runner, once launched
    error: Exception | None = None
    done: bool = False  # whether the own runner has got all calls of the step


class PipelinedRunner(RankedRunner):
    def __init__(self, own: ModelRunner, team: Team, link: PipelineLink) -> None:
        super().__init__(own, team)
        self._link, self._at_once = link, own.device.type == "cuda"
        self._calls = deque[tuple[bool, Callable[[], None]]]()  # to make: whether for a step, and the call
        self._reports: dict[int, dict[int, dict[str, Any]]] = {}  # of steps in flight, by rank
        self._in_flight, self._since = 0, 0.0  # steps, and the time up to which bubbles are accounted for
        self._busy = [0.0] * team.ranks  # seconds that each rank has worked

    def launch(self, step: Step) -> StageFlight:  # type: ignore[override]  # the engine treats it as opaque
        self._team.send(Kind.STEP, encode(step))
        flight = StageFlight(step, time.monotonic())
        if not self._in_flight:
            self._since = flight.began
        self._in_flight += 1
        self._reports[step.number] = {}
        self._later(True, lambda: self._run(flight))
        return flight

    def supply(self, flight: StageFlight, masks: Masks) -> None:  # type: ignore[override]
        if self._team.sums.ranks > 1:
            self._team.send(Kind.MASKS, encode_masks(flight.step.number, masks))
        self._later(True, lambda: self._sample(flight, masks))

    def skip(self, step: Step) -> None:
        self._team.send(Kind.SKIP, encode(step))
        self._later(False, partial(self.own.skip, step))

    def collect(self, flight: StageFlight) -> StepResult:  # type: ignore[override]
        while not flight.done:
            self._calls.popleft()[1]()
        self._catch_up()
        number, result = flight.step.number, StepResult([])
        if flight.error is None:
            try:
                result = self.own.collect(flight.own)
                self._team.sums.check()
            except Exception as error:
                flight.error = error
        if isinstance(flight.error, StageLost):
            raise self._team.loss()
        reports = self._reports_of(number)
        self._in_flight -= 1
        self._account(reports)
        self._refuse_failed(flight, reports)
        for rank, report in reports.items():
            same = digest(result) if rank < self._team.sums.ranks else draft_digest(flight.own.drafts)
            if report["digest"] != same:
                self._dead = f"rank {rank} computed other tokens than rank 0 in step {number}"
                raise EngineDead(self._dead)
        result.seconds = time.monotonic() - flight.began
        return result

    def apply(self, change: RunnerChange) -> None:
        self._make_calls()
        super().apply(change)

    def transfer(self, order: TransferOrder) -> None:
        self._team.send(Kind.TRANSFER, encode_order(order))
        if order.blocks:
            self._ended[order.id] = {}
        self._later(False, partial(self.own.transfer, order))

    def transferred(self, *, wait: bool = False) -> list[TransferEnd]:
        if wait:
            self._make_calls()
        return super().transferred(wait=wait)

    def plan_weights(self, scheme: str) -> WeightsPlan | None:
        if scheme == self.own.weights_scheme:
            return self.own.plan_weights(scheme)
        raise BadInput(f"quantization {scheme!r}: {_FIXED}", field="scheme", value=scheme)

    def weight_schemes(self) -> tuple[SchemeView, ...]:
        fixed = self.own.weights_scheme
        views = self.own.weight_schemes()
        return tuple(each if each.name == fixed else each._replace(why_not=_FIXED) for each in views)

    # The own stage

    def _later(self, of_step: bool, call: Callable[[], None]) -> None:
        self._calls.append((of_step, call))
        if self._at_once:
            self._make_calls()
        else:
            self._catch_up()

    def _catch_up(self) -> None:
        """Make all calls up to the next step's."""
        while self._calls and not self._calls[0][0]:
            self._calls.popleft()[1]()

    def _make_calls(self) -> None:
        while self._calls:
            self._calls.popleft()[1]()

    def _run(self, flight: StageFlight) -> None:
        try:
            with self._link.step(len(flight.step.ids)):
                flight.own = self.own.launch(flight.step)
        except Exception as error:
            self._failed(flight, error)
        flight.done = flight.done or not flight.step.guided

    def _sample(self, flight: StageFlight, masks: Masks) -> None:
        flight.done = True
        if flight.error is not None:
            return
        try:
            with self._link.step(0):
                self.own.supply(flight.own, masks)
        except Exception as error:
            self._failed(flight, error)

    def _failed(self, flight: StageFlight, error: Exception) -> None:
        flight.error, flight.done = error, True
        if self._team.sums.ranks > 1:
            self._team.sums.interrupt()

    # The other ranks

    def _note(self, rank: int, frame: dict[str, Any]) -> int | None:
        if "step" not in frame:
            return super()._note(rank, frame)
        self._reports[frame["step"]][rank] = frame
        return None

    def _reports_of(self, number: int) -> dict[int, dict[str, Any]]:
        """Wait until all ranks have reported a step."""
        found = self._reports[number]
        for member in self._team.members:
            while member.rank not in found:
                self._note(member.rank, self._frame(member))
        return self._reports.pop(number)

    def _refuse_failed(self, flight: StageFlight, reports: dict[int, dict[str, Any]]) -> None:
        """Raise the error of the earliest stage. Ranks inside of a stage cannot go on after one."""
        errors = [EngineError.from_wire(each["error"]) for each in reports.values() if each["error"]]
        if cause := next(reversed(errors), flight.error):
            if self._team.sums.ranks > 1:
                self._dead = f"a step failed, and stages with several ranks cannot go on: {cause}"
                raise EngineDead(self._dead)
            raise cause

    def _account(self, reports: dict[int, dict[str, Any]]) -> None:
        """Report how long each rank worked since the last collected step, while steps were in flight."""
        now, (seconds, sent) = time.monotonic(), self._team.sums.exchanged
        own = {"busy": self._link.busy, "exchanged": [seconds, sent + self._link.sent]}
        all_ranks = [own, *(reports[member.rank] for member in self._team.members)]
        busy = [float(each["busy"]) for each in all_ranks]
        passed, self._since = now - self._since, now
        self._team.meters.note_work((b - before for b, before in zip(busy, self._busy, strict=True)), passed)
        self._busy = busy
        self._team.meters.note_exchanges([Exchanged(*each["exchanged"]) for each in all_ranks], passed)
