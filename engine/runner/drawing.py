"""Tokens for the rows of a step: by kernels where they know how, else by the sampler of all devices."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from engine.grammar.grammars import Grammars
from engine.request import Request
from engine.runner.graphs import Draws, Stage, asked_of, biases_of
from engine.runner.protocol import BAD
from engine.runner.results import Drawn
from engine.runner.staging import upload
from engine.sampling.allowed import forbid
from engine.sampling.candidates import candidates
from engine.sampling.logprobs import Logprobs
from engine.sampling.rows import RowsView, SamplingRows, Wanted
from engine.sampling.sampler import sample
from engine.scheduling.plan import Row


class Drawing:
    """Owns how each slot samples, and what it has drawn last."""

    def __init__(
        self,
        *,
        requests: Mapping[int, Request],
        slots: int,
        vocab: int,
        stop_ids: frozenset[int],
        grammars: Grammars | None,
        device: torch.device,
    ) -> None:
        self._requests, self._stop_ids, self._grammars, self._device = requests, stop_ids, grammars, device
        self._sampling = SamplingRows(slots, vocab, device)
        self._stamps = [-1] * slots  # of what each slot's sampling is set for
        self.last_ids = torch.zeros(slots + 1, dtype=torch.int64, device=device)  # the last one is padding's

    def wanted(self, rows: Sequence[Row]) -> Wanted | None:
        """How the rows draw, for kernels; None where only the sampler knows how."""
        return self._sampling.wanted(*self._settle(rows))

    def view(self, rows: Sequence[Row], ahead: Sequence[tuple[int, int]] = ()) -> RowsView:
        """The same for the sampler. `ahead`: which drafts stand before a row, as (row, token)."""
        return self._sampling.view(*self._settle(rows), ahead)

    def by_stage(self, stage: Stage, logits: Tensor, slots: Tensor, wanted: Wanted) -> Drawn:
        """As the graphs draw."""
        fields, draws = {"tokens": torch.empty_like(slots), "slots": slots}, Draws.of(wanted)
        arrays = {"columns": np.ascontiguousarray(wanted.numbers.T)}
        if draws.logprobs:
            arrays["asked"] = asked_of(wanted, len(slots))
        if draws.biased:
            arrays["bias_at"], arrays["biases"] = biases_of(wanted)
        fields |= zip(arrays, upload(list(arrays.values()), self._device), strict=True)
        found = stage.draw(logits, fields, self.last_ids, draws, wanted.seen)
        return by_row(fields["tokens"], found, wanted)

    def by_sampler(
        self,
        logits: Tensor,
        slots: Tensor,
        rows: Sequence[Row],
        *,
        ahead: Sequence[tuple[int, int]] = (),
        logprobs: bool = True,
    ) -> Drawn:
        view = self.view(rows, ahead)
        if not logprobs:
            view = replace(view, logprobs=())
        self._keep_to_grammars(logits, rows)
        sampled = sample(logits, view)
        likeliest = candidates(logits, view) if view.candidates else None
        drawn = Drawn(sampled.ids.masked_fill(sampled.bad, BAD), sampled.logprobs, likeliest)
        # Last of all, so that a step without memory for the rest can be computed again.
        self.last_ids[slots] = sampled.ids
        self._sampling.note([row.slot for row in rows], sampled.ids)
        return drawn

    def guess(self, logits: Tensor, slots: Tensor, rows: list[Row]) -> Tensor:
        """Drawn as the tokens at these places will be."""
        return self.by_sampler(logits, slots, rows, logprobs=False).tokens.clamp(min=0)

    def recount(self, rows: Iterable[Row]) -> None:
        """Drafts were noted as if they were said: penalties begin anew from what is."""
        for row in rows:
            if self._requests[row.request].params.penalised:
                self._stamps[row.slot] = -1

    def _keep_to_grammars(self, logits: Tensor, rows: Sequence[Row]) -> None:
        """What a row's grammar forbids cannot be drawn, and is not among the likeliest tokens."""
        guided = self._sampling.guided([row.slot for row in rows])
        if guided and self._grammars is not None:
            requests = [self._requests[rows[at].request] for at in guided]
            forbid(logits, guided, np.stack([self._grammars.allowed(each) for each in requests]))

    def _settle(self, rows: Sequence[Row]) -> tuple[list[int], list[int]]:
        """The rows' slots, and which token of its reply each draws; what was changed since then is set."""
        indices = []
        for row in rows:
            request = self._requests[row.request]
            if self._stamps[row.slot] != request.stamp:
                self._set(row, request)
                self._stamps[row.slot] = request.stamp
            indices.append(row.start + row.length - request.prompt_len)
        return [row.slot for row in rows], indices

    def _set(self, row: Row, request: Request) -> None:
        on_device_only = row.start + row.length > len(request.tokens)
        self._sampling.set(
            row.slot,
            request.params,
            seed=request.seed,
            end_ids=sorted(request.params.enders(self._stop_ids)),
            tokens=request.tokens,
            prompt_len=request.prompt_len,
            pending=self.last_ids[row.slot : row.slot + 1] if on_device_only else None,
        )


def by_row(tokens: Tensor, found: Sequence[Tensor], wanted: Wanted) -> Drawn:
    """`found`: what kernels say of the likeliest tokens, of all rows, or nothing."""
    if not found:
        return Drawn(tokens)
    return Drawn(tokens, Logprobs(wanted.logprobs, tuple(row for row, _ in wanted.logprobs), *found))
