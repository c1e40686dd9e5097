"""A step of the model in flight."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from engine.execution.block_scores import NO_SCORES, StepScores
from engine.execution.draft.verification import group_runs
from engine.execution.pooling import SpanRows, SpanSums
from engine.execution.prompt_logprobs import PromptLogprobs, TargetRows
from engine.execution.protocol import StepResult
from engine.execution.results import SampledTokens, logprobs_of, top_tokens_of
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
    sampled: SampledTokens = NOTHING  # on the host once `arrived` is done
    prompts: PromptLogprobs | None = None  # on the host once `arrived` is done
    sums: SpanSums | None = None  # on the host once `arrived` is done
    scores: StepScores = NO_SCORES  # on the host once `arrived` is done
    arrived: torch.cuda.Event | None = None  # None: the results are already there
    compiled: bool = False  # whether its launch compiled kernels or captured a graph

    def mark_arrival(self, device: torch.device) -> None:
        """The results launched so far will have arrived when the device reaches this point."""
        if device.type == "cuda":
            self.arrived = torch.cuda.Event()
            self.arrived.record()

    def result(self) -> StepResult:
        """Wait for the results."""
        if self.arrived is not None:
            self.arrived.synchronize()
        rows, sampled = self.rows, self.sampled
        logprobs = logprobs_of(rows, sampled.tokens, sampled.logprobs) if sampled.logprobs else {}
        top_tokens = top_tokens_of(rows, sampled.candidates) if sampled.candidates else None
        seconds = time.monotonic() - self.began
        tokens, runs = group_runs(sampled.tokens.tolist(), rows, self.drafts)
        prompts = self.prompts.by_request() if self.prompts else {}
        sums = self.sums.by_request() if self.sums else {}
        scores = self.scores.on_host() if self.scores.filled else ()
        return StepResult(tokens, logprobs, seconds, top_tokens, runs, prompts, sums, scores, self.compiled)


class ModelInput(NamedTuple):
    """The model's input in a step, with drafts unrolled."""

    rows: Rows
    ids: np.ndarray
    single: int
    sampling_rows: Rows  # the rows that sample
    drafts: Mapping[int, Drafts]
    targets: TargetRows = ()
    spans: SpanRows = ()

    def replayable(self, most: int) -> bool:
        """Whether a graph of at most `most` rows can hold it: each decodes one token."""
        if self.sampling_rows is not self.rows or self.single != len(self.rows) or len(self.rows) > most:
            return False
        return not self.spans

    @property
    def adapted(self) -> bool:
        """Whether a row has an adapter."""
        return self.rows.rare and bool(self.rows.adapters.any())
