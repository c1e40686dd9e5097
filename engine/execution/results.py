"""Sampled tokens and log-probabilities: their copy to the host, and their form for the engine."""

import math
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from engine.api.events import TokenLogprob
from engine.execution.protocol import TopTokens
from engine.sampling.candidates import Candidates
from engine.sampling.logprobs import Logprobs
from engine.scheduling.step import Rows


class SampledTokens(NamedTuple):
    """On the device, or on the host once the copies are done."""

    tokens: Tensor  # of each row that samples; BAD if its logits were NaN
    logprobs: Logprobs | None = None
    candidates: Candidates | None = None

    def to_host(self) -> "SampledTokens":
        """Start copying to the host. The contents are valid once the device has reached the copies."""
        likely, found = self.logprobs, self.candidates
        if likely is not None:
            columns = map(to_host, (likely.chosen, likely.ranks, likely.ids, likely.values))
            likely = Logprobs(likely.requested, likely.places, *columns)
        if found is not None:
            found = replace(found, ids=to_host(found.ids), values=to_host(found.values))
        return SampledTokens(to_host(self.tokens), likely, found)


def to_host(values: Tensor) -> Tensor:
    if not values.is_cuda:
        return values
    host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    return host.copy_(values, non_blocking=True)


def top_tokens_of(rows: Rows, found: Candidates) -> TopTokens:
    places = {rows[row].request: place for place, row in enumerate(found.rows)}
    return TopTokens(places, found.ids.numpy(), found.values.numpy())


def logprobs_of(rows: Rows, tokens: Tensor, found: Logprobs) -> dict[int, tuple[TokenLogprob, ...]]:
    """By request, for those that asked for log-probabilities."""
    columns = [each.tolist() for each in (found.chosen, found.ranks, found.ids, found.values)]
    by_request: dict[int, tuple[TokenLogprob, ...]] = {}
    for (row, count), place in zip(found.requested, found.places, strict=True):
        chosen, rank, ids, values = (column[place] for column in columns)
        likely = zip(ids[:count], values[:count], strict=True)
        top = tuple(pair for pair in likely if pair[1] > -math.inf)  # a grammar may allow fewer
        request = rows[row].request
        by_request[request] = (
            *by_request.get(request, ()),
            TokenLogprob(int(tokens[row]), chosen, rank, top),
        )
    return by_request
