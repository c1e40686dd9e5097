"""Which steps run in a CUDA graph: decodes, and pieces of prompts with or without decodes beside them."""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from engine.attention.base import Batch
from engine.execution.cuda.arrivals import Wait
from engine.execution.cuda.graphs import DecodeSteps
from engine.execution.cuda.staging import upload
from engine.execution.draft.verification import tokens_ahead
from engine.execution.in_flight import InFlightStep, ModelInput, Sampled
from engine.execution.sampling_state import SamplingState, by_row

if TYPE_CHECKING:  # imports Triton, which is only installed with a GPU
    from engine.execution.cuda.stage import GpuStage


class Hidden(NamedTuple):
    """The hidden states of a step, and the rows that sample."""

    states: Tensor  # [tokens, hidden]
    ends: Tensor | None  # index of the last token of each row that samples; None: every token
    slots: Tensor  # of the rows that sample
    batch: Batch | None = None  # None: no drafter reads the states
    replayed: bool = False


class Replays(NamedTuple):
    steps: DecodeSteps
    sampling: SamplingState
    device: torch.device

    def decode(self, piece: ModelInput, launched: InFlightStep) -> bool:
        """Run a step of decodes, and set `launched.sample`. False: no graph can hold it."""
        if not piece.replayable(self.steps.sizes[-1]) or not self._adapts(piece):
            return False
        if not self.steps.pass_on(piece.rows, piece.ids):
            launched.sample = self._sampled(piece)
        return True

    def _sampled(self, piece: ModelInput) -> Sampled:
        """Rows that the kernels cannot sample are sampled after the graph."""
        rows = piece.rows
        inputs = self.sampling.kernel_inputs(rows, drafted=bool(piece.drafts))
        if inputs is not None and self.steps.may_sample(inputs):
            tokens, *found = self.steps.sample(rows, piece.ids, inputs)
            sampled = by_row(tokens, found, inputs)
            return lambda masks: sampled
        (slots,) = upload([rows.slots], self.device)
        return sampler(self.sampling, self.steps.logits(rows, piece.ids).float(), slots, piece)

    def _adapts(self, piece: ModelInput) -> bool:
        """Whether a graph can hold the step's adapters."""
        return self.steps.adapts or not piece.adapted

    def hidden(self, piece: ModelInput, wait: Wait, batch: Batch | None = None) -> Hidden | None:
        """Run the model up to its hidden states, valid until the next step. None: no graph holds it.

        `batch`: of the same step.
        """
        if not self._adapts(piece) or (states := self.steps.hidden(piece.rows, piece.ids, wait)) is None:
            return None
        samples = piece.rows.samples
        ends = np.cumsum(piece.rows.lengths)[samples] - 1
        slots, at = upload([piece.rows.slots[samples], ends], self.device)
        return Hidden(states, at, slots, batch, replayed=True)


def preparations(stage: "GpuStage | None", steps: DecodeSteps | None) -> tuple[int, int]:
    """How many compilations were started and how many graphs captured. A step that changes this is slow."""
    return stage.compilations if stage else 0, steps.captures if steps else 0


def sampler(sampling: SamplingState, logits: Tensor, slots: Tensor, piece: ModelInput) -> Sampled:
    """What samples these rows on any device, once there are masks."""
    before = tokens_ahead(piece.sampling_rows, piece.drafts) if piece.drafts else ()
    return lambda masks: sampling.by_sampler(logits, slots, piece.sampling_rows, ahead=before, masks=masks)
