"""Chooses the replica for a prompt: where little of it has to be computed, and little is computed before."""

import itertools
import threading
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from engine.api.commands import BlockNaming
from engine.kv import prefix

# Tokens to compute before a prompt that weigh as much as one of its own. Computing what another replica has
# also delays the prompts after it, and its blocks evict others.
QUEUED = 4
EVENNESS = 64  # tokens computed above the least of all replicas that weigh as much as one to compute


class Placement(NamedTuple):
    """The decision for one prompt. `Router.started` and `Router.ended` take it again."""

    number: int
    replica: int
    cached: int  # blocks of the prompt that are there, or are being computed there
    there: int  # those of them that are there now
    blocks: int  # whole blocks of the prompt
    best: int  # the most that any replica has of them
    missing: int  # tokens to compute
    names: tuple[str, ...]  # of the whole blocks


@dataclass(slots=True)
class _Replica:
    naming: BlockNaming
    cached: set[str]  # names that it has reported
    computed: int  # tokens of all its prompts that were not cached
    held: Counter[str] = field(default_factory=Counter)  # names in prompts of requests that have not ended
    live: dict[int, Placement] = field(default_factory=dict)  # routes of these, by number
    waiting: set[int] = field(default_factory=set)  # numbers of those without a first token
    queue: int = 0  # tokens to compute for these

    def found(self, names: Sequence[str]) -> int:
        """How many of a prompt's first blocks it has, or is computing."""
        for count, name in enumerate(names):
            if name not in self.cached and name not in self.held:
                return count
        return len(names)

    def there(self, names: Sequence[str]) -> int:
        """How many of a prompt's first blocks it has."""
        return next((count for count, name in enumerate(names) if name not in self.cached), len(names))

    def add(self, route: Placement) -> None:
        self.live[route.number] = route
        self.waiting.add(route.number)
        self.queue += route.missing
        self.computed += route.missing
        self.held.update(route.names)

    def start(self, route: Placement) -> None:
        if route.number in self.waiting:
            self.waiting.remove(route.number)
            self.queue -= route.missing

    def end(self, route: Placement) -> None:
        self.start(route)
        if self.live.pop(route.number, None) is None:
            return  # of an earlier process
        for name in route.names:
            self.held[name] -= 1
            if not self.held[name]:
                del self.held[name]

    def cost(self, missing: int) -> int:
        """Tokens to compute of a prompt, and a share of those before it. A running reply is like a block."""
        return self.queue // QUEUED + missing + len(self.live) * self.naming.block_size


class Router:
    """Knows which blocks each replica has, by the engines' own names, and what each has yet to compute.

    Methods may be called from any thread.
    """

    def __init__(self, apart: Collection[int] = ()) -> None:
        """`apart`: replicas among which `route` only chooses for prompts whose replies run elsewhere."""
        self._apart = frozenset(apart)
        self._gate = threading.Lock()
        self._replicas: dict[int, _Replica] = {}
        self._number = itertools.count().__next__

    def put(self, replica: int, naming: BlockNaming) -> None:
        """Add a replica, or replace what is known of its cache."""
        with self._gate:
            if (known := self._replicas.get(replica)) is None:
                peers = self._group(apart=replica in self._apart).values()
                computed = min((each.computed for each in peers), default=0)
                self._replicas[replica] = _Replica(naming, set(naming.names), computed)
            else:
                known.naming, known.cached = naming, set(naming.names)

    def remove(self, replica: int) -> None:
        """Stop sending prompts there. Its routes may still end, even after it was added again."""
        with self._gate:
            self._replicas.pop(replica, None)

    def report(self, replica: int, added: Iterable[str], dropped: Iterable[str]) -> None:
        """Note how a replica's cache has changed."""
        with self._gate:
            if (known := self._replicas.get(replica)) is not None:
                known.cached.difference_update(dropped)
                known.cached.update(added)

    def queue(self, replica: int) -> int:
        """Tokens that a replica has to compute before a new prompt."""
        with self._gate:
            known = self._replicas.get(replica)
            return known.queue if known else 0

    def route(
        self,
        tokens: Sequence[int],
        salt: bytes = b"",
        adapter: str = "",
        *,
        apart: bool = False,
        without: Collection[int] = (),
    ) -> Placement | None:
        """Choose a replica not in `without`, and count the prompt to its queue. None: there is none."""
        with self._gate:
            replicas = self._group(apart=apart)
            starts = {number: _start(each.naming, salt, adapter) for number, each in replicas.items()}
        chains = {each: _names(tokens, *each) for each in set(starts.values())}  # outside the lock: long
        with self._gate:
            routes = []
            for number, each in self._group(apart=apart).items():
                if number in starts and number not in without:
                    names = chains[starts[number]]
                    found, there = each.found(names), each.there(names)
                    missing = len(tokens) - found * each.naming.block_size
                    routes.append(Placement(-1, number, found, there, len(names), 0, missing, names))
            if not routes:
                return None
            chosen = min(routes, key=self._rank)
            chosen = chosen._replace(number=self._number(), best=max(each.cached for each in routes))
            self._replicas[chosen.replica].add(chosen)
            return chosen

    def _group(self, *, apart: bool) -> Mapping[int, _Replica]:
        return {number: each for number, each in self._replicas.items() if (number in self._apart) is apart}

    def _rank(self, route: Placement) -> tuple[int, int]:
        """The cost, and a share of what the replica has computed more than others.

        Otherwise the few blocks that all prompts begin with would keep them at one replica, whose cache
        then evicts what the others have room for.
        """
        replica = self._replicas[route.replica]
        least = min(each.computed for each in self._replicas.values())
        return replica.cost(route.missing) + (replica.computed - least) // EVENNESS, route.replica

    def started(self, route: Placement) -> None:
        """Note that a request has its first token, or will have none."""
        with self._gate:
            if (replica := self._replicas.get(route.replica)) is not None:
                replica.start(route)

    def ended(self, route: Placement) -> None:
        """Note that a request has ended."""
        with self._gate:
            if (replica := self._replicas.get(route.replica)) is not None:
                replica.end(route)


def _start(naming: BlockNaming, salt: bytes, adapter: str) -> tuple[bytes, int]:
    """The start of a chain of names, and the size of its blocks."""
    digest = dict(naming.adapters).get(adapter, b"")
    return prefix.root(*naming.root, salt, digest), naming.block_size


def _names(tokens: Sequence[int], start: bytes, block_size: int) -> tuple[str, ...]:
    """The names of a prompt's blocks that can be found: at least one token is left to compute."""
    chain: list[bytes] = []
    prefix.extend_chain(chain, start, tokens, block_size, (len(tokens) - 1) // block_size)
    return tuple(map(prefix.short, chain))
