"""Finds the blocks of a request's prefix in the tiers below the device."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from engine.api.request import Request
from engine.kv.manager import KVManager
from engine.kv.tiers.tier import BlockName, Tier
from engine.kv.window import GONE

Loadable = Callable[[str, Sequence[BlockName]], Sequence[BlockName]]  # the prefix that a tier could load


class Below(NamedTuple):
    """Blocks of a tier that a request could continue from."""

    tier: Tier
    tokens: int  # covered by `hits` and by the blocks of these names
    names: tuple[BlockName, ...]
    hits: list[int]  # device blocks
    trimmed: int


def below(
    kv: KVManager,
    request: Request,
    hits: list[int],
    cached: bool,
    tiers: Iterable[Tier],
    loadable: Loadable,
) -> Below | None:
    """The longest continuation of the prefix beyond `hits` that a tier has; on a tie, the upper tier's.

    `cached`: whether blocks of other requests count.
    """
    if request.stored is None and not cached:
        return None
    search = _in_order if kv.groups.plain else _with_windows
    found, most = None, len(hits) // kv.group_count * kv.pool.block_size
    for tier in tiers:
        each = search(kv, request, hits, tier, loadable)
        if each is not None and each.tokens > most:
            found, most = each, each.tokens
    return found


def _in_order(
    kv: KVManager, request: Request, hits: list[int], tier: Tier, loadable: Loadable
) -> Below | None:
    """The names that follow the hits, as far as the tier has them."""
    stored = request.stored
    names: Sequence[BlockName] = request.chain[: kv.reusable(request)]
    if stored is not None:
        names = stored.names[: kv.blocks_for(request.launched)]
    rest = names[len(hits) :]
    count = tier.holds(loadable(tier.name, rest))
    tokens = (len(hits) + count) * kv.pool.block_size
    if stored is not None:
        tokens = min(tokens, request.launched)
    return Below(tier, tokens, tuple(rest[:count]), hits, tokens)


def _with_windows(
    kv: KVManager, request: Request, hits: list[int], tier: Tier, loadable: Loadable
) -> Below | None:
    """A request whose blocks have left windows resumes with all that it held, or starts like others."""
    if (stored := request.stored) is not None:
        if tier.holds(loadable(tier.name, stored.names)) < len(stored.names):
            return None
        return Below(tier, request.launched, stored.names, [], stored.trimmed)
    size, chain = kv.pool.block_size, request.chain

    def there(at: int) -> bool:
        if kv.cached(request, at) is not None:
            return True
        return tier.holds(loadable(tier.name, [kv.key(chain, at)])) > 0

    tokens = kv.groups.longest(kv.reusable(request), there) * size
    found = kv.found(request, tokens)
    lacking = (at for at in kv.groups.places(tokens, tokens) if found[at] == GONE)
    return Below(tier, tokens, tuple(kv.key(chain, at) for at in lacking), found, tokens)
