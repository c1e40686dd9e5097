"""Replicas that compute nothing: time passes as a step's tokens and rows would take, so a trace of minutes is
replayed by the real router in a second, and choices of the router can be compared at any load.
"""

import heapq
import itertools
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from engine.api.commands import BlockNaming
from engine.fleet.router import Placement, Router

BLOCK = 16
STEP, ROW = 0.0025, 0.0003  # seconds of every step, and of each reply in it
MOST = 512  # tokens of prompts in a step


class Replayed(NamedTuple):
    found: float  # the share of prompt tokens that were in a cache
    firsts: list[float]  # seconds to each first token


@dataclass(slots=True)
class _Request:
    prompt: int  # tokens
    came: float
    route: Placement
    left: int = 0  # tokens to compute
    now: int = 0  # of those, in the running step
    replied: int = 0


@dataclass(slots=True)
class _Engine:
    """Its cache has the blocks of whole prompts, the least recently used of which go first."""

    blocks: int
    speed: float  # prompt tokens per second
    waiting: deque[_Request] = field(default_factory=deque)
    running: list[_Request] = field(default_factory=list)
    cache: OrderedDict[str, None] = field(default_factory=OrderedDict)
    busy: bool = False
    found: int = 0

    def begin(self) -> float:
        """Begin a step; return its seconds, 0 if there is nothing to do."""
        for each in self.running:
            each.now = min(each.left, MOST - sum(other.now for other in self.running if other is not each))
        while self.waiting and (room := MOST - sum(each.now for each in self.running)) > 0:
            request = self.waiting.popleft()
            known = list(itertools.takewhile(self.cache.__contains__, request.route.names))
            for name in known:
                self.cache.move_to_end(name)
            self.found += BLOCK * len(known)
            request.left = request.prompt - BLOCK * len(known)
            request.now = min(request.left, room)
            self.running.append(request)
        rows = sum(not each.left for each in self.running)
        tokens = sum(each.now for each in self.running)
        return STEP + tokens / self.speed + ROW * rows if self.running else 0.0

    def end(self) -> tuple[list[_Request], list[str], list[str]]:
        """End the step: requests that have their first token, and what the cache has and lacks now."""
        firsts, added = [], []
        for each in self.running:
            each.replied += not each.left
            if each.now and each.now == each.left:
                firsts.append(each)
                each.replied = 1
                added += [name for name in each.route.names if name not in self.cache]
                self.cache.update(dict.fromkeys(each.route.names))
                for name in each.route.names:
                    self.cache.move_to_end(name)
            each.left, each.now = each.left - each.now, 0
        dropped = [self.cache.popitem(last=False)[0] for _ in range(len(self.cache) - self.blocks)]
        return firsts, added, dropped


def replay(
    prompts: Sequence[Sequence[int]],
    router: Router,
    *,
    rate: float,
    replicas: int,
    blocks: int,
    speed: float,
    tokens: int,
) -> Replayed:
    """Prompts arrive evenly, `rate` a second; each gets a reply of `tokens`. `blocks`: of each cache."""
    naming = BlockNaming(root=(b"model", b"", "none", "none"), block_size=BLOCK, adapters=(), names=())
    engines = [_Engine(blocks, speed) for _ in range(replicas)]
    for number in range(replicas):
        router.put(number, naming)
    order = itertools.count().__next__
    events: list[
        tuple[float, int, int, Sequence[int] | None]
    ] = [  # when, replica that ends a step, or a prompt
        (number / rate, order(), -1, prompt) for number, prompt in enumerate(prompts)
    ]
    firsts = list[float]()

    def step(now: float, replica: int) -> None:
        engine = engines[replica]
        if not engine.busy and (seconds := engine.begin()):
            engine.busy = True
            heapq.heappush(events, (now + seconds, order(), replica, None))

    while events:
        now, _, replica, prompt = heapq.heappop(events)
        if prompt is not None:
            route = router.route(prompt)
            assert route is not None
            engines[route.replica].waiting.append(_Request(len(prompt), now, route))
            step(now, route.replica)
            continue
        engine = engines[replica]
        engine.busy = False
        begun, added, dropped = engine.end()
        router.report(replica, added, dropped)
        for each in begun:
            router.started(each.route)
            firsts.append(now - each.came)
        for each in _ended(engine, tokens):
            router.ended(each.route)
        step(now, replica)
    found = sum(each.found for each in engines)
    return Replayed(found / sum(map(len, prompts)), firsts)


def _ended(engine: _Engine, tokens: int) -> Iterator[_Request]:
    for each in [each for each in engine.running if each.replied >= tokens]:
        engine.running.remove(each)
        yield each
