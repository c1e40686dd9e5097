"""A runner of several ranks: makes each call on its own one, that of rank 0, and sends it to the others.

All ranks get the same calls in the same order, so they compute the same tokens and none waits for another
outside of the sums. Questions are answered by rank 0 alone: the ranks agree on everything that counts.
"""

import json
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

from engine.api.cache_spec import KvSchemeName
from engine.api.errors import EngineDead, EngineError
from engine.distributed.collective import LIMIT, Exchanged, Interrupted
from engine.distributed.member import Member
from engine.distributed.messages import STEP_KINDS, Kind, digest
from engine.distributed.team import Team
from engine.execution.changes import Recache, RunnerChange
from engine.execution.protocol import Compilation, StepKind, StepResult
from engine.execution.runner import ModelRunner
from engine.kv.tiers.tier import TransferEnd, TransferOrder
from engine.scheduling.step import Masks, Step
from engine.scheduling.step_bytes import encode
from engine.serving.recordings.runner_bytes import decode_end, encode_change, encode_masks, encode_order

Handle = tuple[int, float, Any]  # the step's number, when it was launched, the handle of rank 0's runner


class RankAnswer(NamedTuple):
    """What a rank answers to a message."""

    error: EngineError | None
    digest: int  # of the tokens it has sampled
    exchanged: Exchanged  # so far


class RankedRunner:
    def __init__(self, own: ModelRunner, team: Team) -> None:
        self.own, self._team = own, team
        self._ended: dict[int, dict[int, TransferEnd]] = {}  # of each transfer in flight, by rank
        self._launched = self._stopped = -1  # the latest step, and the latest that was stopped on the GPUs
        self._dead, self._accounted = "", 0.0  # why the engine cannot go on; the time of the last account

    def __getattr__(self, name: str) -> Any:
        return getattr(self.own, name)  # questions

    def start_compiling(self, kinds: Sequence[StepKind]) -> Sequence[Compilation]:
        self._team.send(Kind.COMPILE, json.dumps(STEP_KINDS.write((*kinds,))).encode())
        return self.own.start_compiling(kinds)

    def capture(self, kinds: Sequence[StepKind]) -> None:
        self._team.send(Kind.CAPTURE, json.dumps(STEP_KINDS.write((*kinds,))).encode())
        self.own.capture(kinds)

    def launch(self, step: Step) -> Handle:
        self._launched, began = step.number, time.monotonic()
        self._team.send(Kind.STEP, encode(step))
        return step.number, began, self._together(lambda: self.own.launch(step))

    def supply(self, handle: Handle, masks: Masks) -> None:
        number, _, own = handle
        self._team.send(Kind.MASKS, encode_masks(number, masks))
        self._together(lambda: self.own.supply(own, masks))

    def skip(self, step: Step) -> None:
        self._team.send(Kind.SKIP, encode(step))
        self.own.skip(step)

    def collect(self, handle: Handle) -> StepResult:
        """Wait for a step on all ranks. Raises EngineDead if they did not sample the same tokens."""
        number, began, own = handle
        message = self._team.send(Kind.COLLECT, number.to_bytes(8, "little"))
        problem: Exception | None = None
        try:
            result: StepResult = self.own.collect(own)
            self._team.sums.check()
        except Exception as error:
            problem = error
            self._team.sums.interrupt()
        answers = self._answers(message)
        stopped = Interrupted("the step was stopped, because one beside it failed")
        elsewhere = Interrupted("the step failed on another rank")
        if problem is not None or any(each.error is not None for each in answers):
            self._recover(problem or (stopped if number <= self._stopped else elsewhere))
        if number <= self._stopped:
            raise stopped
        for rank, each in enumerate(answers, 1):
            if each.digest != digest(result):
                self._dead = f"rank {rank} sampled different tokens than rank 0 in step {number}"
                raise EngineDead(self._dead)
        now = time.monotonic()
        passed, self._accounted = now - max(began, self._accounted), now
        exchanged = [self._team.sums.exchanged, *(each.exchanged for each in answers)]
        self._team.meters.note_exchanges(exchanged, passed)
        return result

    def apply(self, change: RunnerChange) -> None:
        """Apply a change on all ranks. If it fails on one, the others keep a change that can be repeated."""
        before: KvSchemeName = self.own.store.scheme
        message, errors = self._team.send(Kind.CHANGE, encode_change(change)), list[Exception]()
        try:
            self.own.apply(change)
        except Exception as error:
            errors.append(error)
        errors += [each.error for each in self._answers(message) if each.error is not None]
        if errors:
            if isinstance(change, Recache) and change.scheme != before:
                self.apply(Recache(before))  # where it failed, the scheme is already the one before
            raise errors[0]

    def transfer(self, order: TransferOrder) -> None:
        self._team.send(Kind.TRANSFER, encode_order(order))
        if order.blocks:
            self._ended[order.id] = {}
        self.own.transfer(order)

    def transferred(self, *, wait: bool = False) -> list[TransferEnd]:
        """Transfers that have ended on every rank. One that failed on any rank has failed."""
        for end in self.own.transferred(wait=wait):
            self._ended[end.id][0] = end
        for member in self._team.members:
            lacking = {id for id, by_rank in self._ended.items() if member.rank not in by_rank}
            while lacking and (frame := self._team.receive(member, LIMIT if wait else 0.0)) is not None:
                if (id := self._note(member.rank, frame)) is not None:
                    lacking.discard(id)
        whole = [id for id, by_rank in self._ended.items() if len(by_rank) == self._team.ranks]
        return [_joined(self._ended.pop(id)) for id in whole]

    def follow(self, transfer: int) -> bool:
        """No: the other ranks' copies may be slower."""
        return False

    def enter_thread(self) -> None:
        self.own.enter_thread()

    def device_error(self) -> str | None:
        return self._dead or self._team.lost or self.own.device_error()

    def _note(self, rank: int, frame: dict[str, Any]) -> int | None:
        """Take in what a rank reports by itself. Returns the transfer that it ends."""
        end = decode_end(frame["end"].encode())
        self._ended[end.id][rank] = end
        return end.id

    def _answers(self, message: int) -> list[RankAnswer]:
        """Wait for all ranks' answers to a message."""
        found = []
        for member in self._team.members:
            while "to" not in (frame := self._frame(member)):
                self._note(member.rank, frame)
            if frame["to"] != message:
                self._dead = f"rank {member.rank} answers message {frame['to']}, not {message}"
                raise EngineDead(self._dead)
            error = frame["error"]
            found.append(
                RankAnswer(
                    None if error is None else EngineError.from_wire(error),
                    frame["digest"],
                    Exchanged(*frame["exchanged"]),
                )
            )
        return found

    def _frame(self, member: Member) -> dict[str, Any]:
        frame: dict[str, Any] | None = self._team.receive(member)
        if frame is None:
            self._dead = f"rank {member.rank} did not answer for {LIMIT:g} seconds"
            raise EngineDead(self._dead)
        return frame

    def _together(self, call: Callable[[], Any]) -> Any:
        """Make a call that waits for other ranks. If it fails here or there, all of them stop."""
        try:
            return call()
        except Exception as error:
            self._recover(error)

    def _recover(self, error: Exception) -> NoReturn:
        """Stop all ranks after a failed step, so that the next one finds them in step. Raises the cause."""
        collective = self._team.sums
        collective.interrupt()
        stopped = self._answers(self._team.send(Kind.STOP))
        collective.finish()
        if collective.deferred:  # steps that were launched before may have been stopped half way
            self._stopped = self._launched
        collective.clear()
        collective.reset()
        self._answers(self._team.send(Kind.RESET))
        causes = [error, *(each.error for each in stopped if each.error is not None)]
        raise next((each for each in causes if not isinstance(each, Interrupted)), error)


def _joined(by_rank: dict[int, TransferEnd]) -> TransferEnd:
    ends = by_rank.values()
    error = next((end.error for end in ends if end.error), "")
    return TransferEnd(by_rank[0].id, max(end.seconds for end in ends), error)
