"""The byte forms of what a runner receives beside steps (scheduling/step_bytes.py).

Recordings hold them, and ranks receive them.
"""

import json
from typing import Any

import numpy as np

from engine.api.codec import DecodeError, codec
from engine.api.errors import BadWire
from engine.execution.changes import (
    AttachAdapter,
    DetachAdapter,
    Recache,
    ReplaceLayer,
    Resize,
    RunnerChange,
    UseGraphs,
    UseScheme,
)
from engine.kv.tiers.tier import TransferEnd, TransferOrder
from engine.scheduling.step import Masks

_CHANGES: dict[str, Any] = {
    each.__name__: each
    for each in (ReplaceLayer, UseScheme, Resize, Recache, UseGraphs, AttachAdapter, DetachAdapter)
}
_ORDER, _TRANSFER_END = codec(TransferOrder), codec(TransferEnd)


def encode_masks(step: int, masks: Masks) -> bytes:
    head = np.array([step, len(masks.slots), *masks.slots], "<i8").tobytes()
    return head + np.ascontiguousarray(masks.bits).tobytes()


def decode_masks(payload: bytes) -> tuple[int, Masks]:
    """Return the number of the step, and its masks."""
    words = np.frombuffer(payload[: len(payload) // 8 * 8], "<i8")
    if len(words) < 2 or not 0 <= words[1] <= len(words) - 2:
        raise BadWire("the recording has truncated masks")
    slots = tuple(words[2 : 2 + words[1]].tolist())
    bits = np.frombuffer(payload[8 * (2 + len(slots)) :], np.uint8).copy()
    if len(bits) % max(1, len(slots)):
        raise BadWire("the recording has truncated masks")
    return int(words[0]), Masks(slots, bits.reshape(len(slots), -1) if slots else bits.reshape(0, 0))


def encode_change(change: RunnerChange) -> bytes:
    name = type(change).__name__
    return _dumped([name, codec(_CHANGES[name]).write(change)])


def decode_change(payload: bytes) -> RunnerChange:
    pair = decode_json(payload)
    kind = _CHANGES.get(pair[0]) if type(pair) is list and len(pair) == 2 and type(pair[0]) is str else None
    if kind is None:
        raise BadWire(f"the recording has an unknown change {pair!r:.60}")
    change: RunnerChange = checked(codec(kind).read, pair[1])
    return change


def encode_order(order: TransferOrder) -> bytes:
    return _dumped(_ORDER.write(order))


def decode_order(payload: bytes) -> TransferOrder:
    order: TransferOrder = checked(_ORDER.read, decode_json(payload))
    return order


def encode_end(end: TransferEnd) -> bytes:
    return _dumped(_TRANSFER_END.write(end))


def decode_end(payload: bytes) -> TransferEnd:
    end: TransferEnd = checked(_TRANSFER_END.read, decode_json(payload))
    return end


def checked(read: Any, value: Any) -> Any:
    try:
        return read(value)
    except DecodeError as error:
        raise BadWire(f"the recording: {error}") from None


def decode_json(payload: bytes) -> Any:
    try:
        return json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise BadWire(f"the recording has a frame that is not JSON: {error}") from None


def _dumped(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
