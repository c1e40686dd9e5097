"""Sums of the hidden states of prompt positions, from which embeddings are made."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.execution.results import to_host
from engine.scheduling.step import PromptSpan, Step

SpanRows = Sequence[tuple[int, int, PromptSpan]]  # request; index of the first position in the step


@dataclass(frozen=True, slots=True)
class SpanSums:
    """Of all spans of a step: on the device, or on the host once the copies are done."""

    rows: SpanRows
    values: Tensor  # [spans, hidden] float32

    def to_host(self) -> "SpanSums":
        return SpanSums(self.rows, to_host(self.values))

    def by_request(self) -> dict[int, np.ndarray]:
        return {request: values for (request, *_), values in zip(self.rows, self.values.numpy(), strict=True)}


def span_rows(step: Step) -> SpanRows:
    """Find the hidden states of a step that are summed."""
    if not step.spans:
        return ()
    begins = np.cumsum(step.rows.lengths) - step.rows.lengths
    return [
        (row.request, begin + span.first - row.start, span)
        for row, begin in zip(step.rows, begins.tolist(), strict=True)
        if (span := step.spans.get(row.request)) is not None
    ]


def sum_spans(hidden: Tensor, rows: SpanRows) -> SpanSums:
    """Sum each span in float32. `hidden`: of all tokens of the step, after the last norm."""
    sums = [hidden[at : at + span.length].sum(0, dtype=torch.float32) for _, at, span in rows]
    return SpanSums(rows, torch.stack(sums))
