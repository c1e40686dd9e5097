"""The pooled hidden state of a prompt, which the steps compute chunk by chunk."""

import numpy as np

from engine.api.request import Request
from engine.scheduling.step import PromptSpan


class PromptPool:
    """The sum of a prompt's hidden states, up to the end of each chunk.

    A chunk that was in flight at a preemption may be computed twice, the second time as part of a longer
    one. Its sum is added to the one before it, so nothing is counted twice.
    """

    __slots__ = ("_sums",)

    def __init__(self) -> None:
        self._sums: dict[int, np.ndarray] | None = None  # by end position; most requests have none

    def add(self, span: PromptSpan, total: np.ndarray) -> None:
        sums = self._sums = {} if self._sums is None else self._sums
        before = sums.get(span.first)
        sums[span.first + span.length] = total if before is None else before + total

    def vector(self, request: Request) -> bytes:
        """The prompt's vector, once its last position has been added."""
        assert self._sums is not None
        total = self._sums[request.prompt_len]
        if request.params.pooling == "mean":
            total = total / np.float32(request.prompt_len)
        return total.astype("<f4").tobytes()
