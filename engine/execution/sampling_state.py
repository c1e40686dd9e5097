"""Samples tokens for the rows of a step: with kernels if they can, else with the generic sampler."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from engine.execution.cuda.graphs import Stage
from engine.execution.cuda.sampling_fields import SamplingFlags, logit_biases, write_logprob_counts
from engine.execution.cuda.staging import upload
from engine.execution.protocol import BAD
from engine.execution.results import SampledTokens
from engine.sampling.candidates import candidates
from engine.sampling.logprobs import Logprobs
from engine.sampling.mask import mask_logits
from engine.sampling.rows import RowsView, SamplingInputs, SamplingRows
from engine.sampling.sampler import sample
from engine.scheduling.step import Masks, Rows, SlotSampling


class SamplingState:
    """Owns each slot's sampling parameters and last token. Steps deliver the changes."""

    def __init__(self, *, slots: int, vocab: int, stop_ids: frozenset[int], device: torch.device) -> None:
        self._stop_ids, self._device = stop_ids, device
        self._sampling = SamplingRows(slots, vocab, device)
        self._origins = np.zeros(slots, np.int64)  # where each slot's reply starts
        self._changed: dict[int, SlotSampling] = {}
        self.last_ids = torch.zeros(slots + 1, dtype=torch.int64, device=device)  # the last entry: padding

    def apply(self, changes: Iterable[SlotSampling]) -> None:
        """Apply changes from the next rows on. Applied again after drafting, which counted drafts as text."""
        for each in changes:
            self._changed[each.slot] = each

    def inputs(self, rows: Rows) -> SamplingInputs | None:
        """The sampling inputs for kernels; None if only the sampler supports them."""
        return self._sampling.inputs(*self._settle(rows))

    def kernel_inputs(self, rows: Rows, *, drafted: bool) -> SamplingInputs | None:
        """The same; None also if penalties have to count drafts."""
        inputs = self.inputs(rows)
        return None if inputs is not None and inputs.seen and drafted else inputs

    def draft_inputs(self, rows: Rows) -> SamplingInputs | None:
        """The same for rows of a draft model, without log-probabilities."""
        inputs = self.inputs(rows)
        return inputs and inputs._replace(logprobs=())

    def view(self, rows: Rows, ahead: Sequence[tuple[int, int]] = ()) -> RowsView:
        """The same for the sampler. `ahead`: drafts that precede a row, as (row, token)."""
        return self._sampling.view(*self._settle(rows), ahead)

    def by_stage(self, stage: Stage, logits: Tensor, slots: Tensor, inputs: SamplingInputs) -> SampledTokens:
        """Sample as the graphs do."""
        fields, flags = {"tokens": torch.empty_like(slots), "slots": slots}, SamplingFlags.of(inputs)
        arrays = {"columns": np.ascontiguousarray(inputs.numbers.T)}
        if flags.logprobs:
            arrays["asked"] = np.empty(len(slots), np.int32)
            write_logprob_counts(arrays["asked"], inputs)
        if flags.biased:
            arrays["bias_at"], arrays["biases"] = logit_biases(inputs)
        fields |= zip(arrays, upload(list(arrays.values()), self._device), strict=True)
        found = stage.sample(logits, fields, self.last_ids, flags, inputs.seen)
        return by_row(fields["tokens"], found, inputs)

    def by_sampler(
        self,
        logits: Tensor,
        slots: Tensor,
        rows: Rows,
        *,
        ahead: Sequence[tuple[int, int]] = (),
        logprobs: bool = True,
        masks: Masks | None = None,
    ) -> SampledTokens:
        """Sample. Can be called again with the same logits after running out of memory."""
        view, of = self.view(rows, ahead), rows.slots.tolist()
        if not logprobs:
            view = replace(view, logprobs=())
        if masks is not None and masks.slots:  # empty: the rows have ended
            place = {slot: at for at, slot in enumerate(of)}
            mask_logits(logits, [place[slot] for slot in masks.slots], masks.bits)
        sampled = sample(logits, view)
        top_tokens = candidates(logits, view) if view.candidates else None
        tokens = SampledTokens(sampled.ids.masked_fill(sampled.bad, BAD), sampled.logprobs, top_tokens)
        # Done last, so that the step can be recomputed if memory runs out before.
        self.last_ids[slots] = sampled.ids
        self._sampling.note(of, sampled.ids)
        return tokens

    def guess(self, logits: Tensor, slots: Tensor, rows: Rows) -> Tensor:
        """Sample drafts with the same random numbers as the tokens at these positions."""
        return self.by_sampler(logits, slots, rows, logprobs=False).tokens.clamp(min=0)

    def _settle(self, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        """The rows' slots, and the index in its reply of the token each samples. Applies changes first."""
        while self._changed:
            slot, change = next(iter(self._changed.items()))
            self._set(change)
            del self._changed[slot]  # not earlier: if memory runs out, it is set again
        slots = rows.slots
        return slots, rows.ends - self._origins[slots]

    def _set(self, change: SlotSampling) -> None:
        slot = change.slot
        self._origins[slot] = change.origin
        self._sampling.set(
            slot,
            change.params,
            seed=change.seed,
            end_ids=sorted(change.params.enders(self._stop_ids)),
            tokens=change.tokens,
            prompt_len=change.origin,
            pending=self.last_ids[slot : slot + 1] if change.pending else None,
        )


def by_row(tokens: Tensor, found: Sequence[Tensor], inputs: SamplingInputs) -> SampledTokens:
    """`found`: what the kernels return about the likeliest tokens of all rows, or nothing."""
    if not found:
        return SampledTokens(tokens)
    return SampledTokens(tokens, Logprobs(inputs.logprobs, tuple(row for row, _ in inputs.logprobs), *found))
