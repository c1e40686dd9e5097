"""Which blocks a request drops once it holds its budget of tokens.

A block is scored by the attention that its tokens received (H2O, heavy hitters and recent tokens: Zhang et
al. 2023, arXiv 2306.14048), or by the norms of its keys, where a low norm means important (Devoto et al.
2024, arXiv 2406.11430). Both score whole blocks, over all heads and layers, because these share a block
table.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from engine.api.config import EvictionName
from engine.api.request import Evidence, Request
from engine.kv.window import GONE


@dataclass(frozen=True, slots=True)
class TokenBudget:
    """A request holds at most `peak` blocks. When they are full, the `piece` lowest-scored ones are evicted.

    The positions at which this happens are fixed, and so are the scores that count there. So the tokens alone
    determine what a request evicts, and recomputing it evicts the same blocks.
    """

    tokens: int
    sinks: int
    block_size: int
    policy: EvictionName = "norms"
    option: ClassVar[str] = "kv_budget"

    @property
    def what(self) -> str:
        return f"budget of {self.tokens} tokens"

    @property
    def peak(self) -> int:
        """The most blocks a request holds."""
        return self.tokens // self.block_size

    @property
    def piece(self) -> int:
        """How many blocks are evicted at once. Prompts are read in pieces of that length."""
        return max(1, self.peak // 4)

    @property
    def first(self) -> int:
        """The number of blocks at the front that are never evicted."""
        return -(-self.sinks // self.block_size)

    @property
    def recent(self) -> int:
        """The number of newest blocks that are not evicted: half of those that remain."""
        return max(1, (self.peak - self.piece - self.first) // 2)

    def due(self, position: int) -> bool:
        """Whether blocks are evicted before the token at `position` is computed."""
        past = position - self.peak * self.block_size
        return past >= 0 and past % (self.piece * self.block_size) == 0

    def until_due(self, position: int) -> int:
        """How many tokens from `position` on may be computed before blocks are evicted."""
        past, piece = position - self.peak * self.block_size, self.piece * self.block_size
        return -past if past < 0 else piece - past % piece

    def choose(self, scores: np.ndarray) -> np.ndarray:
        """The indices of the blocks to evict, in order, by the scores of all that are held."""
        middle = scores[self.first : len(scores) - self.recent]
        return np.sort(np.argsort(middle, kind="stable")[: self.piece]) + self.first


def filled_blocks(lengths: np.ndarray, contexts: np.ndarray, block_size: int) -> np.ndarray:
    """The blocks that the rows of a step fill: [count, 3], row by row.

    Of each, the index of its last token in the step, its row, and how many blocks the row has up to it.
    """
    before = contexts - lengths
    counts = contexts // block_size - before // block_size
    rows = np.repeat(np.arange(len(counts)), counts)
    nth = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    blocks = before[rows] // block_size + nth + 1
    tokens = (np.cumsum(lengths) - contexts)[rows] + blocks * block_size - 1
    return np.stack((tokens, rows, blocks), 1)


def totals(evidence: Evidence, full: int, held: int) -> np.ndarray:
    """The scores of the `held` blocks, with the reports of all blocks before `full`."""
    found = np.zeros(held)
    found[: len(evidence.totals)] = evidence.totals
    for block in sorted(evidence.reports):  # in a fixed order, because sums of floats depend on it
        if block < full:
            report = evidence.reports[block]
            found[: len(report)] += report
    return found


def evictions(request: Request, budget: TokenBudget) -> tuple[list[int], Evidence] | None:
    """The places of the blocks to evict before the request's next token, and what decides later ones.

    None: scores are missing.
    """
    at, size, evidence = request.launched, budget.block_size, request.evidence
    if evidence.at == at or request.known <= at or not budget.due(at):
        return [], evidence
    if not evidence.covers(full := at // size, size):
        return None
    places = [place for place, block in enumerate(request.blocks[:full]) if block != GONE]
    scores = totals(evidence, full, len(places))
    chosen = budget.choose(scores)
    return [places[index] for index in chosen], Evidence(at, np.delete(scores, chosen))
