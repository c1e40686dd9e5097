"""The forwards of a draft model as CUDA graphs beside the model's own, with the tokens left on the device."""

from typing import Protocol

import numpy as np
from torch import Tensor

from engine.execution.compiling import StepCompiler, sampling_kind
from engine.execution.cuda.graphs import DecodeSteps, Stage
from engine.execution.cuda.staging import upload
from engine.execution.sampling_state import SamplingState
from engine.sampling.rows import SamplingInputs
from engine.scheduling.step import Rows


class DraftStage(Stage, Protocol):
    def head(self, hidden: Tensor) -> Tensor:
        """[rows, hidden] -> [rows, vocab]"""


class DraftReplays:
    """Each call launches a forward and waits for nothing: the next one reads its tokens on the device."""

    def __init__(self, stage: DraftStage, steps: DecodeSteps, sampling: SamplingState) -> None:
        """`stage`: of `steps`."""
        self._stage, self._steps, self._sampling = stage, steps, sampling
        self._device, self._compiler = sampling.last_ids.device, StepCompiler()

    def sample(self, rows: Rows, ids: np.ndarray) -> bool:
        """Sample a token of each row, into the last tokens of the slots. False: no graph holds the rows."""
        inputs = self._sampling.draft_inputs(rows)
        if inputs is None or not self._steps.may_sample(inputs):
            return False
        if len(ids) == len(rows):
            self._steps.sample(rows, ids, inputs)
            return True
        if (states := self._steps.hidden(rows, ids)) is None:
            return False
        slots, ends = upload([rows.slots.copy(), np.cumsum(rows.lengths) - 1], self._device)
        if self._device.type == "cuda":
            given = states, ends, slots, inputs
            self._compiler.compile(self._stage, sampling_kind(inputs), self._sample_ends, *given)
        self._sample_ends(states, ends, slots, inputs)
        return True

    def cache(self, rows: Rows, ids: np.ndarray) -> bool:
        """Compute rows without sampling. False: no graph holds them."""
        return self._steps.hidden(rows, ids) is not None

    def _sample_ends(self, states: Tensor, ends: Tensor, slots: Tensor, inputs: SamplingInputs) -> None:
        self._sampling.by_stage(self._stage, self._stage.head(states[ends]), slots, inputs)
