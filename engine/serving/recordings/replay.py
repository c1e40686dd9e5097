"""Records everything a runner receives and the tokens it returns; replays it on another runner.

A recording starts with an idle engine and an empty cache. A runner with the same model and configuration
returns the same tokens from the file alone, without any request.
"""

import dataclasses
import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

from engine.api.cache_spec import KvSchemeName
from engine.api.codec import codec
from engine.api.errors import BadInput, BadWire
from engine.execution.changes import Recache, Resize, RunnerChange
from engine.execution.protocol import Runner, StepResult
from engine.kv.tiers.tier import TransferEnd, TransferOrder
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.step import Masks, Step
from engine.scheduling.step_bytes import Bounds, decode, encode
from engine.serving.recordings.runner_bytes import (
    checked,
    decode_change,
    decode_end,
    decode_json,
    decode_masks,
    decode_order,
    encode_change,
    encode_end,
    encode_masks,
    encode_order,
)
from engine.serving.recordings.transfers import TransferReplay

VERSION = 3
MOST = 2**28  # maximum bytes of a frame
_FRAME = struct.Struct("<cQ")  # kind, payload size in bytes
_NUMBER = struct.Struct("<q")  # the step that a frame is about

_HEADER, _STEP, _FAILED, _MASKS, _TAKEN_BACK, _RESULT, _CHANGE, _TRANSFER, _END = _KINDS = tuple(
    bytes([each]) for each in b"HSFMBRCTE"
)


@dataclass(frozen=True, slots=True)
class Origin:
    """The initial state of a recording. The replaying runner must start in the same state."""

    bounds: Bounds
    scheme: str  # of the weights
    kv_scheme: KvSchemeName
    tiers: tuple[tuple[str, int], ...] = ()  # name, maximum number of blocks
    version: int = VERSION

    @classmethod
    def of(cls, scheduler: Scheduler, runner: Runner, vocab: int) -> "Origin":
        slots, width = scheduler.tables.grid.shape
        pool, groups = scheduler.pool, scheduler.kv.group_count
        bounds = Bounds(slots, width, pool.block_size, pool.size, vocab, groups)
        return cls(bounds, runner.weights_scheme, scheduler.kv.kv_scheme, scheduler.transfers.sizes)


class Recorded(NamedTuple):
    """A step's result: the fields of a StepResult that determine tokens."""

    tokens: tuple[int, ...]
    runs: tuple[tuple[int, tuple[int, ...]], ...] = ()  # by request: tokens of rows with drafts
    likeliest: tuple[int, ...] = ()  # of the rows of beam searches, end to end

    @classmethod
    def of(cls, result: StepResult) -> "Recorded":
        runs = tuple((request, tuple(run)) for request, run in result.runs.items())
        likeliest = () if result.top_tokens is None else tuple(result.top_tokens.ids.ravel().tolist())
        return cls(tuple(result.tokens), runs, likeliest)


_RECORDED, _ORIGIN = codec(Recorded), codec(Origin)


class StepLog:
    """Writes what a runner receives and returns to a file."""

    def __init__(self, path: Path, origin: Origin) -> None:
        self._file: IO[bytes] = path.open("xb")
        self._write(_HEADER, json.dumps(_ORIGIN.write(origin)).encode())

    def step(self, step: Step, *, failed: bool) -> None:
        """Write a step. `failed`: only its changes apply."""
        self._write(_FAILED if failed else _STEP, encode(step))

    def masks(self, step: int, masks: Masks) -> None:
        self._write(_MASKS, encode_masks(step, masks))

    def taken_back(self, step: int) -> None:
        """Record that a launched step has no result."""
        self._write(_TAKEN_BACK, _NUMBER.pack(step))

    def result(self, step: int, result: StepResult) -> None:
        written = json.dumps(_RECORDED.write(Recorded.of(result)), separators=(",", ":"))
        self._write(_RESULT, _NUMBER.pack(step) + written.encode())

    def change(self, change: RunnerChange) -> None:
        self._write(_CHANGE, encode_change(change))

    def transfer(self, order: TransferOrder) -> None:
        self._write(_TRANSFER, encode_order(order))

    def transferred(self, end: TransferEnd) -> None:
        self._write(_END, encode_end(end))

    def close(self) -> None:
        self._file.close()

    def _write(self, kind: bytes, payload: bytes) -> None:
        self._file.write(_FRAME.pack(kind, len(payload)))
        self._file.write(payload)


class LoggedRunner:
    """Wraps a runner and records what it receives."""

    def __init__(self, runner: Runner, recording: StepLog) -> None:
        self.runner, self._recording = runner, recording

    def __getattr__(self, name: str) -> Any:
        return getattr(self.runner, name)  # read-only methods

    def launch(self, step: Step) -> tuple[Step, Any]:
        try:
            handle = self.runner.launch(step)
        except Exception:
            self._recording.step(step, failed=True)
            raise
        self._recording.step(step, failed=False)
        return step, handle

    def supply(self, handle: tuple[Step, Any], masks: Masks) -> None:
        step, inner = handle
        try:
            self.runner.supply(inner, masks)
        except Exception:
            self._recording.taken_back(step.number)
            raise
        self._recording.masks(step.number, masks)

    def collect(self, handle: tuple[Step, Any]) -> StepResult:
        step, inner = handle
        try:
            result = self.runner.collect(inner)
        except Exception:
            self._recording.taken_back(step.number)
            raise
        self._recording.result(step.number, result)
        return result

    def apply(self, change: RunnerChange) -> None:
        self.runner.apply(change)
        self._recording.change(change)

    def transfer(self, order: TransferOrder) -> None:
        self._recording.transfer(order)
        self.runner.transfer(order)

    def transferred(self, *, wait: bool = False) -> Sequence[TransferEnd]:
        ends = self.runner.transferred(wait=wait)
        for end in ends:
            self._recording.transferred(end)
        return ends

    def follow(self, transfer: int) -> bool:
        """No: a replay may run on a device that cannot, or be slower to copy."""
        return False

    def close(self) -> None:
        self._recording.close()


@dataclass(frozen=True, slots=True)
class Replayed:
    """A step's recorded result and the result of the replay."""

    step: int
    then: Recorded
    now: Recorded


def replay(path: Path, runner: Runner, origin: Origin) -> Iterator[Replayed]:
    """Run a recording on a fresh runner.

    Raises BadWire if the file is not a recording for this runner.
    """
    pending, transfers = _PendingSteps(), TransferReplay(runner, origin.tiers)
    with path.open("rb") as file:
        frames = _frames(file)
        _check_header(next(frames, None), origin)
        bounds = origin.bounds
        for kind, payload in frames:
            if kind == _STEP:
                step = decode(payload, bounds)
                pending.add(step, runner.launch(step))
            elif kind == _FAILED:
                runner.skip(decode(payload, bounds))
            elif kind == _CHANGE:
                change = decode_change(payload)
                try:
                    runner.apply(change)
                except (BadInput, RuntimeError, MemoryError) as error:  # torch and numpy lack the memory
                    raise BadWire(f"the recording has a change that this runner refuses: {error}") from None
                if isinstance(change, Resize):
                    bounds = dataclasses.replace(bounds, blocks=change.blocks)
                elif isinstance(change, Recache):
                    fit = runner.fit()
                    bounds = dataclasses.replace(bounds, blocks=fit.blocks)
            elif kind == _MASKS:
                number, masks = decode_masks(payload)
                runner.supply(pending.guided(number, masks, bounds), masks)
            elif kind == _TRANSFER:
                transfers.begin(decode_order(payload), bounds)
            elif kind == _END:
                transfers.end(decode_end(payload))
            elif kind == _TAKEN_BACK:
                pending.drop(_number(payload))
            elif kind == _RESULT:
                number = _number(payload)
                result = runner.collect(pending.take(number))
                yield Replayed(number, _recorded(payload[_NUMBER.size :]), Recorded.of(result))


def _frames(file: IO[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Yield the frames. The last one may be cut off if the recording program ended early."""
    while len(head := file.read(_FRAME.size)) == _FRAME.size:
        kind, size = _FRAME.unpack(head)
        if kind not in _KINDS:
            raise BadWire(f"the file is not an engine recording: it has a frame of kind {kind!r}")
        if size > MOST:
            raise BadWire(f"the recording has a frame of {size} bytes; the limit is {MOST}")
        payload = file.read(size)
        if len(payload) < size:
            return
        yield kind, payload


def _check_header(frame: tuple[bytes, bytes] | None, origin: Origin) -> None:
    if frame is None or frame[0] != _HEADER:
        raise BadWire("the file is not an engine recording")
    found: Origin = checked(_ORIGIN.read, decode_json(frame[1]))
    if found != origin:
        raise BadWire(f"the recording starts with {found}, but this runner with {origin}")


class _PendingSteps:
    """Steps that are launched and not yet collected."""

    def __init__(self) -> None:
        self._handles: dict[int, tuple[Step, Any]] = {}
        self._unmasked: set[int] = set()

    def add(self, step: Step, handle: Any) -> None:
        self._handles[step.number] = step, handle
        if step.guided:
            self._unmasked.add(step.number)

    def guided(self, number: int, masks: Masks, bounds: Bounds) -> Any:
        """The handle of a step that waits for masks. The masks must be for its own rows."""
        step, handle = self._found(number)
        if number not in self._unmasked:
            raise BadWire(f"the recording has masks for step {number}, which needs none")
        self._unmasked.remove(number)
        slots = {step.rows[at].slot for at in step.guided}
        if len(set(masks.slots)) < len(masks.slots) or not slots.issuperset(masks.slots):
            raise BadWire(
                f"the recording has masks for slots {masks.slots}, but step {number} guides {slots}"
            )
        if masks.slots and masks.bits.shape[1] != -(-bounds.vocab // 8):
            raise BadWire(f"the recording has masks of {masks.bits.shape[1]} bytes for {bounds.vocab} tokens")
        return handle

    def take(self, number: int) -> Any:
        _, handle = self._found(number)
        if number in self._unmasked:
            raise BadWire(f"the recording has a result of step {number} before its masks")
        del self._handles[number]
        return handle

    def drop(self, number: int) -> None:
        self._handles.pop(number, None)
        self._unmasked.discard(number)

    def _found(self, number: int) -> tuple[Step, Any]:
        if number not in self._handles:
            raise BadWire(f"the recording names step {number}, which is not in flight")
        return self._handles[number]


def _number(payload: bytes) -> int:
    if len(payload) < _NUMBER.size:
        raise BadWire("the recording has a frame without the number of its step")
    return int(_NUMBER.unpack_from(payload)[0])


def _recorded(payload: bytes) -> Recorded:
    recorded: Recorded = checked(_RECORDED.read, decode_json(payload))
    return recorded
