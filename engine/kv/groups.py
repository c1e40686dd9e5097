"""Groups of layers by the tokens that they keep: all, or those of a window. Each group has its own blocks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

from engine.api.cache_spec import CacheSpec
from engine.kv.window import GONE, Window

MOST = 8  # groups; each has its own block tables


@dataclass(frozen=True, slots=True)
class BlockGroups:
    """A request has one block in each group for every `block_size` tokens.

    In a request's list they take turns: the first block of each group, then the second of each. A block holds
    the tokens of the layers of one group. Groups have equally many layers of equal size, so any block can
    serve any group.
    """

    block_size: int
    windows: tuple[Window | None, ...] = (None,)  # of each group; None: it keeps all tokens
    layers: tuple[tuple[int, ...], ...] = ()  # of each group, the first being a largest; empty: all in one

    @property
    def count(self) -> int:
        return len(self.windows)

    @property
    def plain(self) -> bool:
        """Whether all layers keep all tokens."""
        return self.windows == (None,)

    @property
    def bounded(self) -> bool:
        """Whether a request can be longer than the cache."""
        return None not in self.windows

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size) * self.count

    def most(self, blocks: int) -> int:
        """The most blocks that a request holds at a time while its prompt of so many blocks is computed."""
        each = blocks // self.count
        return sum(each if window is None else min(each, window.peak) for window in self.windows)

    def tokens_in(self, blocks: int) -> int:
        """The longest request that a cache of so many blocks holds."""
        peaks = [window.peak for window in self.windows if window is not None]
        long = blocks - sum(peaks)
        if self.bounded and long >= 0:
            return 2**62
        whole = self.count - len(peaks)
        return max(blocks // self.count, long // whole if whole else 0) * self.block_size

    def keeps(self, at: int, position: int) -> bool:
        """Whether a token at `position`, or a later one, reads a request's block at the index `at`."""
        block, group = divmod(at, self.count)
        window = self.windows[group]
        return window is None or block < window.first or block >= window.start(position)

    def places(self, tokens: int, position: int) -> list[int]:
        """The indices of the blocks of so many tokens that one at `position` or a later one reads."""
        whole = range(self.blocks_for(tokens))
        return [*whole] if self.plain else [at for at in whole if self.keeps(at, position)]

    def spread(self, blocks: Sequence[int], tokens: int, position: int) -> list[int]:
        """The list of a request with so many tokens, from the blocks in these places."""
        listed = [GONE] * self.blocks_for(tokens)
        for at, block in zip(self.places(tokens, position), blocks, strict=False):
            listed[at] = block
        return listed

    def longest(self, most: int, there: Callable[[int], bool]) -> int:
        """From how many blocks of each group, up to `most`, a request can start.

        `there`: whether the block at an index was found.
        """
        whole = [group for group, window in enumerate(self.windows) if window is None]
        count = next(
            (at for at in range(most) if not all(there(at * self.count + group) for group in whole)), most
        )
        while count and (missing := self._missing(count, there)) is not None:
            count = missing  # a request that starts between the two would need it, too
        return count

    def _missing(self, count: int, there: Callable[[int], bool]) -> int | None:
        """The newest block that a request which starts after `count` blocks needs in a window and lacks."""
        found = None
        for group, window in enumerate(self.windows):
            if window is None:
                continue
            start = window.start(count * self.block_size)
            for at in chain(range(count - 1, start - 1, -1), range(min(window.first, count) - 1, -1, -1)):
                if not there(at * self.count + group):
                    found = at if found is None else max(found, at)
                    break
        return found


def grouped(specs: Sequence[CacheSpec], block_size: int, longest: int, piece: int) -> BlockGroups | None:
    """Group layers by what they keep. None: their blocks differ in size, or there would be too many groups.

    `longest`: the most tokens of a request. `piece`: the most tokens of a prompt in one step.
    """
    shapes = {(each.kv_heads, each.key_dim, each.value_dim, each.latent) for each in specs}
    if len(shapes) > 1 or any(each.state is not None or not each.has_keys for each in specs):
        return None
    kinds: dict[Window | None, list[int]] = {None: []}
    for index, spec in enumerate(specs):
        window = None
        if spec.reach is not None and spec.reach < longest:
            if spec.reach < block_size:
                return None
            window = Window(spec.reach, spec.kept if spec.window else 0, block_size, max(piece, spec.reach))
        kinds.setdefault(window, []).append(index)
    found = {window: layers for window, layers in kinds.items() if layers}
    size = min(map(len, found.values()))
    windows, groups = [], []
    for window, layers in found.items():
        for at in range(0, len(layers), size):
            windows.append(window)
            groups.append(tuple(layers[at : at + size]))
    if len(windows) > MOST:
        return None
    return BlockGroups(block_size, tuple(windows), tuple(groups) if len(groups) > 1 else ())
