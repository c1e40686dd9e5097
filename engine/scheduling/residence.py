"""Which blocks each tier has, and which of them requests rely on."""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from engine.kv.tiers.tier import BlockName, front


class TierBlock(NamedTuple):
    """A block in a tier."""

    tier: str
    name: BlockName


class Residence:
    """Counts what relies on each stored block, and orders the others by their last use."""

    def __init__(self) -> None:
        self._retained: Counter[TierBlock] = Counter()  # by preempted requests and by loads in flight
        self._storing: set[TierBlock] = set()
        self._lost: set[TierBlock] = set()  # contents may be wrong; not forgotten by the tier yet
        self._idle: dict[str, OrderedDict[BlockName, None]] = {}  # by tier, least recently used first

    def expects(self, tier: str, name: BlockName) -> bool:
        """Whether something relies on the block in this tier, or stores it there."""
        place = TierBlock(tier, name)
        return self._retained[place] > 0 or place in self._storing

    def usable(self, tier: str, names: Sequence[BlockName]) -> Sequence[BlockName]:
        """The prefix of `names` whose blocks are neither being stored nor lost."""
        if not (self._storing or self._lost):
            return names
        busy = self._storing | self._lost
        return names[: front(names, lambda name: TierBlock(tier, name) not in busy)]

    def idle(self, tier: str) -> int:
        """How many blocks of the tier no request relies on."""
        return len(self._idle.get(tier, ()))

    def take_idle(self, tier: str, count: int, keep: Sequence[BlockName]) -> tuple[BlockName, ...]:
        """Forget the `count` least recently used blocks that no request relies on, other than `keep`."""
        idle = self._idle.get(tier, OrderedDict())
        spared = set(keep)
        taken = tuple(islice((name for name in idle if name not in spared), count))
        for name in taken:
            del idle[name]
        return taken

    def retain(self, tier: str, names: Iterable[BlockName]) -> None:
        idle = self._idle.get(tier, OrderedDict())
        for name in names:
            self._retained[TierBlock(tier, name)] += 1
            idle.pop(name, None)

    def release(self, tier: str, names: Iterable[BlockName]) -> list[BlockName]:
        """Undo one `retain`. Returns the names that nothing relies on now."""
        for name in names:
            self._retained[TierBlock(tier, name)] -= 1
        return self.unused(tier, names)

    def storing(self, tier: str, names: Iterable[BlockName]) -> None:
        self._storing.update(TierBlock(tier, name) for name in names)

    def stored(self, tier: str, names: Iterable[BlockName]) -> list[BlockName]:
        """Note the end of a store. Returns the names that nothing relies on."""
        self._storing.difference_update(TierBlock(tier, name) for name in names)
        return self.unused(tier, names)

    def lose(self, tier: str, names: Iterable[BlockName]) -> None:
        """Note that the blocks' contents may be wrong, so that nothing finds them."""
        self._lost.update(TierBlock(tier, name) for name in names)

    def settle(self, tier: str, names: Sequence[BlockName], *, keep: bool) -> tuple[BlockName, ...]:
        """Sort unused names: the lost ones are returned, the others become idle if `keep`."""
        idle, lost = self._idle.setdefault(tier, OrderedDict()), []
        for name in names:
            if (place := TierBlock(tier, name)) in self._lost:
                self._lost.remove(place)
                lost.append(name)
                idle.pop(name, None)
            elif keep:
                idle[name] = None
        return tuple(lost)

    def clear(self) -> None:
        for names in (self._retained, self._storing, self._lost, self._idle):
            names.clear()

    def check(self, retained: Counter[TierBlock], storing: set[TierBlock]) -> None:
        """Raise AssertionError unless these are the retained names and those being stored."""
        assert retained == self._retained, "retained names and requests disagree"
        assert storing == self._storing, "names being stored and transfers disagree"
        assert self._lost <= retained.keys() | storing, "a lost name is never forgotten"
        idle = set(self._idle_places())
        assert not idle & (retained.keys() | storing), "a name in use is counted as idle"

    def _idle_places(self) -> Iterator[TierBlock]:
        return (TierBlock(tier, name) for tier, names in self._idle.items() for name in names)

    def unused(self, tier: str, names: Iterable[BlockName]) -> list[BlockName]:
        """The names that nothing relies on and nothing stores."""
        unused = []
        for name in names:
            place = TierBlock(tier, name)
            if self._retained[place] <= 0:
                del self._retained[place]
                if place not in self._storing:
                    unused.append(name)
        return unused
