"""A step of the model in flight."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch

from engine.execution.results import SampledTokens
from engine.scheduling.step import Drafts, Masks, Rows

NOTHING = SampledTokens(torch.empty(0, dtype=torch.int64))

Sampled = Callable[["Masks | None"], SampledTokens]  # samples once the logits are launched


@dataclass(slots=True)
class InFlightStep:
    """A step on the device, and where its results will arrive."""

    rows: Rows  # the rows that sample
    began: float
    drafts: Mapping[int, Drafts]  # by request; each draft was unrolled into a row
    sample: Sampled | None = None  # None: no row samples, or all have
    sampled: SampledTokens = field(default_factory=lambda: NOTHING)  # on the host once `arrived` is done
    arrived: torch.cuda.Event | None = None  # None: the results are already there


class ModelInput(NamedTuple):
    """The model's input in a step, with drafts unrolled."""

    rows: Rows
    ids: np.ndarray
    single: int
    sampling_rows: Rows  # the rows that sample
    drafts: Mapping[int, Drafts]
