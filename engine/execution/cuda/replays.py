"""Which steps run in a CUDA graph: decodes, and short pieces of prompts, a row for each token."""

from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from engine.execution.compiling import StepCompiler
from engine.execution.cuda.graphs import DecodeSteps, SamplingFlags, Stage
from engine.execution.cuda.staging import upload
from engine.execution.draft.verification import tokens_ahead
from engine.execution.in_flight import InFlightStep, ModelInput, Sampled
from engine.execution.sampling_state import SamplingState, by_row
from engine.scheduling.step import Rows


class Replays(NamedTuple):
    steps: DecodeSteps
    sampling: SamplingState
    stage: Stage | None  # None: only the sampler samples after a graph
    compiler: StepCompiler
    device: torch.device
    prompts: bool  # whether tokens of one prompt may be rows of one graph

    def run(self, piece: ModelInput, launched: InFlightStep) -> bool:
        """Run the model and set `launched.sample`. False: no graph can hold the step."""
        most = self.steps.sizes[-1]
        if piece.replayable(most):
            launched.sample = self._decode(piece)
        elif self.prompts and (rows := piece.unrolled(most)) is not None:
            launched.sample = self._unrolled(piece, rows)
        else:
            return False
        return True

    def _decode(self, piece: ModelInput) -> Sampled:
        """Rows that the kernels cannot sample are sampled after the graph."""
        rows = piece.rows
        inputs = self.sampling.kernel_inputs(rows, drafted=bool(piece.drafts))
        if inputs is not None and self.steps.may_sample(inputs):
            tokens, *found = self.steps.sample(rows, piece.ids, inputs)
            sampled = by_row(tokens, found, inputs)
            return lambda masks: sampled
        (slots,) = upload([rows.slots], self.device)
        return sampler(self.sampling, self.steps.logits(rows, piece.ids).float(), slots, piece)

    def _unrolled(self, piece: ModelInput, rows: Rows) -> Sampled | None:
        """Few of the rows sample, so they do so after the graph."""
        logits = self.steps.logits(rows, piece.ids)
        if not len(piece.sampling_rows):
            return None
        ends = np.cumsum(piece.rows.lengths)[piece.rows.samples] - 1
        slots, at = upload([piece.sampling_rows.slots, ends], self.device)
        inputs = self.sampling.kernel_inputs(piece.sampling_rows, drafted=bool(piece.drafts))
        if self.stage is None or inputs is None:
            return sampler(self.sampling, logits[at].float(), slots, piece)
        launches = partial(self.sampling.by_stage, self.stage, logits[at], slots, inputs)
        kind = (len(slots) - 1).bit_length(), SamplingFlags.of(inputs)
        self.compiler.compile(self.stage, {kind: launches})
        sampled = launches()
        return lambda masks: sampled


def sampler(sampling: SamplingState, logits: Tensor, slots: Tensor, piece: ModelInput) -> Sampled:
    """What samples these rows on any device, once there are masks."""
    before = tokens_ahead(piece.sampling_rows, piece.drafts) if piece.drafts else ()
    return lambda masks: sampling.by_sampler(logits, slots, piece.sampling_rows, ahead=before, masks=masks)
