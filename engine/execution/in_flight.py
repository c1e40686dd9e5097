"""A step of the model while it is under way."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch

from engine.execution.results import SampledTokens
from engine.scheduling.step import Drafts, Masks, Rows

NOTHING = SampledTokens(torch.empty(0, dtype=torch.int64))

Sampled = Callable[["Masks | None"], SampledTokens]  # the rest of a step, once its logits are on the way


@dataclass(slots=True)
class InFlightStep:
    """A step on the device, and where its results will be."""

    rows: Rows  # those that sample
    began: float
    drafts: Mapping[int, Drafts]  # each of which was a row
    sample: Sampled | None = None  # None: no row draws, or all have
    sampled: SampledTokens = field(default_factory=lambda: NOTHING)  # on the host once `arrived`
    arrived: torch.cuda.Event | None = None  # None: they are there


class ModelInput(NamedTuple):
    """What the model computes in a step, drafts unrolled."""

    rows: Rows
    ids: np.ndarray
    single: int
    sampling_rows: Rows  # those that sample
    drafts: Mapping[int, Drafts]
