"""The loop of a rank: decodes each message, and makes the call on its own runner that rank 0 makes."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

from engine.api.errors import BadWire
from engine.api.events import log
from engine.distributed.collective import Interrupted, RankCollective
from engine.distributed.link import RankLink
from engine.distributed.messages import STEP_KINDS, Kind, digest, error_to_wire
from engine.distributed.ring import RingMessage
from engine.execution.changes import Recache, Resize, RunnerChange
from engine.execution.runner import ModelRunner
from engine.kv.tiers.tier import Tier, TransferOrder
from engine.scheduling.step import Masks, Step
from engine.scheduling.step_bytes import Bounds, decode
from engine.serving.recordings.runner_bytes import (
    checked,
    decode_change,
    decode_json,
    decode_masks,
    decode_order,
    encode_end,
)

_POLL = 0.001  # seconds between checks of transfers in flight


class StepReader(Protocol):
    """Where the engine's messages arrive."""

    def receive(self, seconds: float | None = None) -> RingMessage | None: ...


class RankLoop:
    def __init__(
        self,
        runner: ModelRunner,
        ring: StepReader,
        link: RankLink,
        collective: RankCollective,
        bounds: Bounds,
        tiers: Sequence[Tier],
        rank: int,
    ) -> None:
        self._rank = rank
        self._runner, self._ring, self._link, self._tiers = runner, ring, link, tiers
        self._collective, self._bounds = collective, bounds
        self._launched: dict[int, tuple[Step, Any]] = {}  # by number: not collected yet
        self._moving: set[int] = set()  # transfers in flight
        self._error: BaseException | None = None  # why this rank has stopped the others' calls

    def run(self) -> None:
        """Run until the engine ends, which raises EOFError."""
        while True:
            message = self._ring.receive(_POLL if self._moving else None)
            if message is not None:
                self._take(message)
            if self._moving:
                self._report_ends()

    def _take(self, message: RingMessage) -> None:
        payload = message.payload
        match message.kind:
            case Kind.STEP:
                self._launch(decode(payload, self._bounds))
            case Kind.SKIP:
                self._runner.skip(decode(payload, self._bounds))
            case Kind.MASKS:
                self._supply(*decode_masks(payload))
            case Kind.COLLECT:
                self._collect(message.number, int.from_bytes(payload, "little"))
            case Kind.CHANGE:
                self._apply(message.number, decode_change(payload))
            case Kind.TRANSFER:
                self._transfer(decode_order(payload))
            case Kind.COMPILE:
                self._runner.start_compiling(checked(STEP_KINDS.read, decode_json(payload)))
            case Kind.CAPTURE:
                self._runner.capture(checked(STEP_KINDS.read, decode_json(payload)))
            case Kind.STOP:
                self._collective.finish()
                self._answer(message.number, self._error)
            case Kind.RESET:
                self._error = None
                self._collective.reset()
                self._answer(message.number)
            case Kind.CLOSE:
                for tier in self._tiers:
                    tier.close()
                raise EOFError("the engine has ended")
            case kind:
                raise BadWire(f"message {message.number} has the unknown kind {kind}")

    def _launch(self, step: Step) -> None:
        try:
            self._launched[step.number] = step, self._runner.launch(step)
        except Exception as error:
            self._fail(error)

    def _supply(self, number: int, masks: Masks) -> None:
        if number not in self._launched:
            return  # it has failed here, which its collection reports
        self._check_masks(number, masks)
        try:
            self._runner.supply(self._launched[number][1], masks)
        except Exception as error:
            del self._launched[number]
            self._fail(error)

    def _check_masks(self, number: int, masks: Masks) -> None:
        step = self._launched[number][0]
        slots = {step.rows[at].slot for at in step.guided}
        size = -(-self._bounds.vocab // 8)
        if not slots.issuperset(masks.slots) or (masks.slots and masks.bits.shape[1] != size):
            raise BadWire(f"the masks are for other rows than those of step {number}")

    def _collect(self, message: int, number: int) -> None:
        for older in [each for each in self._launched if each < number]:
            del self._launched[older]  # taken back on rank 0
        try:
            if number not in self._launched:
                raise self._error or Interrupted(f"step {number} was not launched")
            result = self._runner.collect(self._launched.pop(number)[1])
            self._collective.check()
        except Exception as error:
            self._fail(error)
            self._answer(message, error)
        else:
            self._answer(message, None, digest(result))

    def _apply(self, message: int, change: RunnerChange) -> None:
        try:
            self._runner.apply(change)
            if isinstance(change, Resize):
                self._bounds = replace(self._bounds, blocks=change.blocks)
            elif isinstance(change, Recache):
                self._bounds = replace(self._bounds, blocks=self._runner.fit().blocks)
        except Exception as error:
            log.warning("a change failed: %s", change, exc_info=error)
            self._answer(message, error)
        else:
            self._answer(message)

    def _transfer(self, order: TransferOrder) -> None:
        if any(not 0 <= block < self._bounds.blocks for block in order.blocks):
            raise BadWire(f"transfer {order.id} has blocks outside of the cache")
        if order.blocks:
            self._moving.add(order.id)
        self._runner.transfer(order)

    def _report_ends(self) -> None:
        for end in self._runner.transferred():
            self._moving.discard(end.id)
            self._link.send({"end": encode_end(end).decode()})

    def _fail(self, error: Exception) -> None:
        """Stop the other ranks, which would wait for this one, until the engine has stopped all of them."""
        if self._error is None:
            log.error("the step failed on this rank", exc_info=error)
            self._error = error
            self._collective.interrupt()

    def _answer(self, message: int, error: BaseException | None = None, tokens: int = 0) -> None:
        wire = None if error is None else error_to_wire(self._rank, error)
        exchanged = self._collective.exchanged
        self._link.send({"to": message, "error": wire, "digest": tokens, "exchanged": exchanged})
