"""Blocks in transfer, and blocks that a request can start with."""

from dataclasses import dataclass
from typing import NamedTuple

from engine.api.request import Request, TierOffer
from engine.kv.tiers.tier import BlockName, TransferOrder
from engine.kv.window import held


@dataclass(slots=True)
class Moving:
    """A store or load in flight. It holds its device blocks as a request does."""

    order: TransferOrder
    blocks: list[int]  # of a store: all blocks its request had written, even those the tier already has
    request: Request | None  # the preempted request, or the one that waits for the load; None: cached blocks
    ordering: float = 0.0  # seconds that the call took, during which the engine's thread did nothing else


class FoundBlocks(NamedTuple):
    """The blocks a request can start with."""

    hits: list[int]  # device blocks, with GONE in place of those that are not needed, or loaded
    tokens: int  # the number of tokens covered by `hits` and by the blocks to load
    tier: str = ""  # the tier to load more from
    names: tuple[BlockName, ...] = ()
    offer: TierOffer | None = None  # what a tier had, loaded or not
    trimmed: int = 0  # the position whose windows the blocks cover

    def lacking(self, need: int, spare: int) -> str:
        """Why a request that needs more blocks than these waits. The cached ones of these are not spare."""
        beside = f" beside its {count} cached" if (count := len(held(self.hits))) else ""
        return f"needs {need} block{'s' * (need != 1)}{beside}, {max(spare, 0)} available"
