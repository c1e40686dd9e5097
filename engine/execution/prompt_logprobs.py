"""The log-probabilities of prompt tokens, from the hidden states of the positions before them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.api.events import TokenLogprob
from engine.execution.cuda.staging import upload
from engine.execution.results import to_host
from engine.sampling.logprobs import rank_tokens
from engine.scheduling.step import PromptTargets, Step

SLICE = 256  # positions whose logits are in memory at a time: 4,096 of 150,000 tokens would take 2.4 GB

Ranked = tuple[Tensor, Tensor, Tensor, Tensor]  # as `rank_tokens` returns them
TargetRows = Sequence[tuple[int, int, PromptTargets]]  # request; index of the first position in the step


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """Of all targets of a step, end to end: on the device, or on the host once the copies are done."""

    rows: TargetRows
    columns: Ranked

    def to_host(self) -> "PromptLogprobs":
        chosen, ranks, ids, values = map(to_host, self.columns)
        return PromptLogprobs(self.rows, (chosen, ranks, ids, values))

    def by_request(self) -> dict[int, tuple[TokenLogprob, ...]]:
        chosen, ranks, ids, values = (column.tolist() for column in self.columns)
        found, at = {}, 0
        for request, _, (_, tokens, most) in self.rows:
            part = slice(at, at + len(tokens))
            pairs = zip(ids[part], values[part], strict=True)
            tops = [(*zip(top[:most], of_top[:most], strict=True),) for top, of_top in pairs]
            found[request] = (*map(TokenLogprob, tokens, chosen[part], ranks[part], tops),)
            at += len(tokens)
        return found


def target_rows(step: Step) -> TargetRows:
    """Find the hidden states of a step that precede its targets."""
    begins = np.cumsum(step.rows.lengths) - step.rows.lengths
    return [
        (row.request, begin + targets.first - 1 - row.start, targets)
        for row, begin in zip(step.rows, begins.tolist(), strict=True)
        if (targets := step.targets.get(row.request)) is not None
    ]


def ranker_on(device: torch.device) -> Callable[[Tensor, Tensor, int], Ranked]:
    """What ranks tokens on a device. On a GPU, a kernel that reads the logits once, and sorts nothing."""
    if device.type != "cuda":
        return rank_tokens
    # Imports Triton, which is only installed with a GPU.
    from engine.kernels.triton.sampling import top_logprobs

    return top_logprobs.rank_tokens


def read_prompts(logits: Callable[[Tensor], Tensor], hidden: Tensor, rows: TargetRows) -> PromptLogprobs:
    """Compute them in slices. `hidden`: of all tokens of the step; `logits`: the model's head."""
    places = np.concatenate([np.arange(at, at + len(targets.tokens)) for _, at, targets in rows])
    tokens = np.concatenate([np.array(targets.tokens, np.int64) for _, _, targets in rows])
    most = max(targets.most for _, _, targets in rows)
    sent = upload([places, tokens], hidden.device)
    rank = ranker_on(hidden.device)
    slices = [
        rank(logits(hidden[at]), following, most)
        for at, following in zip(sent[0].split(SLICE), sent[1].split(SLICE), strict=True)
    ]
    chosen, ranks, ids, values = (torch.cat(column) for column in zip(*slices, strict=True))
    return PromptLogprobs(rows, (chosen, ranks, ids, values))
