"""A model's log probabilities for every next token of a text, computed with the paged KV cache."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from engine.attention.base import Batch, attending
from engine.execution.runner import ModelRunner

STRETCH = 1024  # tokens read with one cache; a longer text restarts with an empty cache
PIECE = 128  # tokens per forward pass, which limits the memory for logits


@dataclass(slots=True)
class Score:
    """Sums over all tokens so far."""

    tokens: int = 0
    surprise: float = 0.0  # -log p of the text's own next token
    divergence: float = 0.0  # KL divergence from the reference, in nats
    agreed: int = 0  # positions with the same top token as the reference

    def add(self, found: Tensor, reference: Tensor, following: Tensor) -> None:
        """Add the log probabilities [tokens, vocab] of both models, and the text's next tokens."""
        self.tokens += len(found)
        self.surprise -= found.gather(1, following[:, None]).double().sum().item()
        terms = reference.exp() * (reference - found)
        self.divergence += torch.where(reference > -torch.inf, terms, 0.0).double().sum().item()
        self.agreed += int((found.argmax(1) == reference.argmax(1)).sum())

    @property
    def perplexity(self) -> float:
        return float(np.exp(self.surprise / self.tokens))

    @property
    def kl(self) -> float:
        return max(0.0, self.divergence / self.tokens)

    @property
    def top1(self) -> float:
        return self.agreed / self.tokens


@torch.inference_mode()
def read(runner: ModelRunner, ids: Sequence[int], stretch: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield, per piece of the text, the log probabilities [tokens, vocab] on the CPU and the next tokens.

    This overwrites the first KV blocks, so no request may hold any.
    """
    for begin in range(0, len(ids) - 1, stretch):
        part = ids[begin : begin + stretch + 1]
        for at in range(0, len(part) - 1, PIECE):
            following = torch.tensor(part[at + 1 : at + PIECE + 1])
            batch = _piece(part[at : at + len(following)], at, runner)
            attend = attending(runner.attention, runner.store.layers, batch)
            hidden = runner.model.forward(batch.ids, batch.positions, attend)
            yield runner.model.logits(hidden).log_softmax(-1).cpu(), following


def _piece(ids: Sequence[int], start: int, runner: ModelRunner) -> Batch:
    """Return a batch of one row, which uses the first KV blocks in order."""
    device, size = runner.device, runner.store.layers[0].block_size
    end = start + len(ids)
    starts, contexts = np.array([0, len(ids)], np.int32), np.array([end], np.int32)
    groups, tables = len(runner.store.groups), np.arange(-(-end // size), dtype=np.int32)[None]
    positions = torch.arange(start, end, device=device)
    batch = Batch(
        ids=torch.tensor(ids, device=device),
        positions=positions,
        places=positions,
        starts=torch.from_numpy(starts).to(device),
        contexts=torch.from_numpy(contexts).to(device),
        tables=torch.from_numpy(tables).to(device),
        single=int(len(ids) == 1),
        block_size=size,
        host_starts=starts,
        host_contexts=contexts,
        host_tables=tables,
    )
    most = len(runner.store.layers[0].keys) // groups  # blocks of each group
    batch.others = tuple(
        replace(batch, places=positions + most * size * at, tables=batch.tables + most * at,
                host_tables=tables + most * at)
        for at in range(1, groups)
    )  # fmt: skip
    return batch
