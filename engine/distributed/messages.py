"""The messages from the engine to the ranks: each call of a runner that changes its state or waits."""

from enum import IntEnum
from typing import Any
from zlib import crc32

import numpy as np

from engine.api.codec import codec
from engine.api.errors import EngineError
from engine.execution.protocol import StepKind, StepResult

STEP_KINDS = codec(tuple[StepKind, ...])


class Kind(IntEnum):
    STEP = 1  # launch it
    SKIP = 2  # only its changes
    MASKS = 3  # of a launched step
    COLLECT = 4  # a launched step; answered with the digest of its tokens
    CHANGE = 5  # of the weights or the cache; answered
    TRANSFER = 6  # its end is reported
    COMPILE = 7  # kernels of such steps
    STOP = 8  # after a step that failed on a rank; answered once this rank has stopped, with its error
    RESET = 9  # all have stopped: forget the parts that were on the way; answered
    CLOSE = 10  # the engine ends: store what tiers have not written, and end
    CAPTURE = 11  # the graphs of such steps


def digest(result: StepResult) -> int:
    """A number that differs, very likely, if two ranks sample different tokens."""
    runs = (np.array([request, *run], np.int64) for request, run in sorted(result.runs.items()))
    columns = [np.array(result.tokens, np.int64), *runs]
    if result.top_tokens is not None:
        columns.append(np.asarray(result.top_tokens.ids, np.int64).ravel())
    return crc32(np.concatenate(columns).tobytes())


def error_to_wire(rank: int, error: BaseException) -> dict[str, Any]:
    """An error with the rank's number in front. Errors of other libraries become an EngineError."""
    known = error if isinstance(error, EngineError) else EngineError(f"{type(error).__name__}: {error}")
    return known.to_wire() | {"text": f"rank {rank}: {known}"}
