"""The sampling parameters of a step's rows in staging buffers, and which launches they need."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch

from engine.execution.protocol import RARE, StepKind
from engine.sampling.penalties import SeenTokens
from engine.sampling.rows import COLUMNS, SamplingInputs

PENALTIES = slice(COLUMNS.index("repetition"), COLUMNS.index("frequency") + 1)
UNPENALIZED = np.array([[1.0], [0.0], [0.0]])


class SamplingFlags(NamedTuple):
    """How logits are processed; each flag is set if any row needs it."""

    filtered: bool  # top-k, top-p
    penalized: bool
    biased: bool
    logprobs: bool

    @classmethod
    def of(cls, inputs: SamplingInputs) -> "SamplingFlags":
        return cls(inputs.filtered, inputs.seen is not None, inputs.edits is not None, bool(inputs.logprobs))


def write_sampling(fields: Mapping[str, np.ndarray], inputs: SamplingInputs) -> None:
    """Write the rows' sampling parameters into the buffers."""
    columns, count = fields["columns"], len(inputs.numbers)
    columns[:, :count] = inputs.numbers.T
    if count < columns.shape[1]:  # padding samples like the first row, without penalties
        columns[:, count:] = inputs.numbers[:1].T
        columns[PENALTIES, count:] = UNPENALIZED
    write_logprob_counts(fields["asked"], inputs)
    if inputs.edits is not None:
        at, values = logit_biases(inputs)
        fields["bias_at"][:] = -1
        fields["bias_at"][: len(at)], fields["biases"][: len(at)] = at, values


def write_logprob_counts(asked: np.ndarray, inputs: SamplingInputs) -> None:
    """Write how many of the likeliest tokens each row requests, -1 for none."""
    asked.fill(-1)
    for row, count in inputs.logprobs:
        asked[row] = count


def logit_biases(inputs: SamplingInputs) -> tuple[np.ndarray, np.ndarray]:
    """Indices into the flattened [rows, vocab], and the values to add there."""
    assert inputs.edits is not None
    rows, ids, values = inputs.edits
    return rows * inputs.vocab + ids, values


def sampling_of(kind: StepKind, rows: int, vocab: int) -> SamplingInputs:
    """How a step of this kind samples: inputs that can be compiled, but not run."""
    counted, biased = (kind.sampling == each for each in RARE)
    edits = (np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(1, np.float32)) if biased else None
    return SamplingInputs(
        np.zeros((rows, len(COLUMNS))),
        vocab,
        seen=SeenTokens(1, vocab, torch.device("cpu")) if counted else None,
        edits=edits,
        logprobs=((0, 1),) if counted else (),
        filtered=kind.filtered,
    )
