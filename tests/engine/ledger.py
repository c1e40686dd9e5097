"""A runner without a model, and the engine around it.

It keeps, for every cell of every block, the token whose keys would lie there. A row that reads a wrong,
stale or never written cell gets other tokens than it would alone, or an assertion.
"""

from collections.abc import Callable, Sequence
from hashlib import blake2b

import numpy as np

from engine.cache.pool import BlockPool
from engine.cache.tables import BlockTables
from engine.core import Engine
from engine.events import Bus
from engine.limits import Limits
from engine.observe import Facts
from engine.params import SPECULATION
from engine.request import Request
from engine.runner.protocol import Likeliest, Outcome
from engine.scheduling.plan import Plan, Row
from engine.scheduling.policy import choose
from engine.scheduling.scheduler import Rules, Scheduler
from engine.scheduling.window import Window
from engine.snapshot import Reads
from engine.speculation.verify import run_of

VOCAB = 1000
EMPTY = -1


class PlainTokenizer:
    """Ids are their own text; nothing ends a reply but its length."""

    stop_ids: frozenset[int] = frozenset()

    def detokenizer(self, *, after: Sequence[int] = ()) -> "PlainTokenizer":
        return self

    def push(self, token: int) -> str:
        return f"{token} "

    def flush(self) -> str:
        return ""

    def copy(self) -> "PlainTokenizer":
        return self


def next_token(tokens: Sequence[int], seed: int) -> int:
    """What follows these tokens: any change in any of them, or of the seed, changes it."""
    digest = blake2b(np.asarray([seed % 2**63, *tokens], np.int64).tobytes(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % VOCAB


def alone(
    prompt: Sequence[int], count: int, seed: int = 0, alphabet: int = VOCAB, window: Window | None = None
) -> list[int]:
    """The oracle: the reply to a prompt, without any engine."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token([tokens[at] for at in visible(len(tokens), window)], seed) % alphabet)
    return tokens[len(prompt) :]


def rivals(tokens: Sequence[int], seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """What could follow these tokens: the likeliest tokens with their log-probabilities, as for beams."""
    draw = np.random.default_rng([seed, next_token(tokens, seed), len(tokens)])
    return draw.choice(VOCAB, count, replace=False), -np.sort(draw.exponential(1, count)).astype(np.float32)


def visible(length: int, window: Window | None) -> list[int]:
    """Which of so many tokens the last one sees."""
    oldest = 0 if window is None else max(0, length - window.size)
    return [*range(min(window.sinks, oldest) if window else 0), *range(oldest, length)]


class LedgerRunner:
    """Runs a plan on cells of integers, with the device's order: moves, then writes, then reads."""

    graphs: bool | None = None

    def __init__(
        self, requests: dict[int, Request], tables: BlockTables, blocks: int, host: int, size: int
    ) -> None:
        self.requests, self.tables, self.size = requests, tables, size
        self.cells = np.full((blocks, size), EMPTY, np.int64)
        self.host = np.full((max(host, 1), size), EMPTY, np.int64)
        self.last = np.full(len(tables.grid), EMPTY, np.int64)
        self.alphabet = VOCAB  # tokens that it says; of few, the same runs come again
        self.fails: Callable[[Plan], bool] = lambda plan: False  # whether a step raises at launch
        self.plans: list[Plan] = []
        self.window: Window | None = None

    def launch(self, plan: Plan) -> Outcome:
        self.plans.append(plan)
        if self.fails(plan):
            raise RuntimeError("told to fail")
        for block, host in plan.swaps_out:
            self.host[host] = self.cells[block]
        for host, block in plan.swaps_in:
            self.cells[block] = self.host[host]
        if plan.copies:
            froms, tos = map(list, zip(*plan.copies, strict=True))
            self.cells[tos] = self.cells[froms]
        assert [row.length == 1 for row in plan.rows] == [at < plan.single for at in range(len(plan.rows))]
        assert plan.tokens == sum(row.length for row in plan.rows)
        for row in plan.rows:
            request = self.requests[row.request]
            assert row.start + row.length < request.max_len, f"a token is computed that nobody needs: {row}"
            tokens = [*request.tokens, *self._drafts(plan, row)] if row.drafted else request.tokens
            for at in visible(row.start + 1, self.window):  # what its first token sees
                assert request.blocks[at // self.size] >= 0, f"{row} sees one that is gone: {request.blocks}"
            for at in range(row.start, row.start + row.length):
                token = tokens[at] if at < len(tokens) else self.last[row.slot]
                self.cells[self.tables.grid[row.slot, at // self.size], at % self.size] = token
        runs = {row.request: self._verify(row) for row in plan.rows if row.drafted}
        sampled = [
            runs[row.request][0]
            if row.drafted
            else self._sample(row.slot, row.start + row.length, self.requests[row.request].seed)
            for row in plan.rows
            if row.samples
        ]
        return Outcome(
            sampled, runs=runs, seconds=0.001, swap_seconds=0.0001, likeliest=self._likeliest(plan)
        )

    def _likeliest(self, plan: Plan) -> Likeliest | None:
        rows = [row for row in plan.rows if row.samples and self.requests[row.request].params.beams > 1]
        if not rows:
            return None
        params = [self.requests[row.request].params for row in rows]
        asked = [each.candidates(len(each.stop_ids)) for each in params]
        ids = np.zeros((len(rows), max(asked)), np.int64)
        values = np.full(ids.shape, -np.inf, np.float32)
        for at, (row, count) in enumerate(zip(rows, asked, strict=True)):
            seen, seed = self._seen(row.slot, row.start + row.length), self.requests[row.request].seed
            ids[at, :count], values[at, :count] = rivals(seen, seed, count)
        return Likeliest({row.request: at for at, row in enumerate(rows)}, ids, values)

    def _drafts(self, plan: Plan, row: Row) -> list[int]:
        """Those of the plan; or as a small model's would be, which is right two times in three."""
        drafts, request = plan.drafts[row.request], self.requests[row.request]
        assert row.length == 1 + row.drafted == 1 + drafts.length, f"a row and its drafts disagree: {row}"
        assert row.start + 1 == len(request.tokens), f"drafts behind a token that is not here: {row}"
        made = list(drafts.tokens)
        while len(made) < drafts.length:
            token = next_token([*request.tokens, *made], request.seed)
            made.append((token + (token % 3 == 0)) % self.alphabet)
        assert len(made) == drafts.length
        return made

    def _verify(self, row: Row) -> list[int]:
        seed, ends = self.requests[row.request].seed, range(row.start + 1, row.start + row.length + 1)
        table = self.tables.grid[row.slot]
        drafts = [int(self.cells[table[at // self.size], at % self.size]) for at in ends[:-1]]
        return run_of([self._sample(row.slot, end, seed) for end in ends], drafts)

    def _sample(self, slot: int, length: int, seed: int) -> int:
        self.last[slot] = next_token(self._seen(slot, length), seed) % self.alphabet
        return int(self.last[slot])

    def _seen(self, slot: int, length: int) -> list[int]:
        at = np.array(visible(length, self.window))
        seen = self.cells[self.tables.grid[slot, at // self.size], at % self.size]
        assert (seen != EMPTY).all(), f"slot {slot} reads cells that were never written: {seen}"
        return seen.tolist()

    def collect(self, handle: Outcome) -> Outcome:
        return handle

    def check_published(self, pool: BlockPool) -> None:
        """Whatever a request published and can still be found holds that request's tokens."""
        for request in self.requests.values():
            for at, key in enumerate(request.chain[: request.published]):
                if (block := pool.find(key)) is not None:
                    expected = request.tokens[at * self.size : (at + 1) * self.size]
                    assert self.cells[block].tolist() == expected, (
                        f"block {block} does not hold what its key says"
                    )

    def ailing(self) -> str | None:
        return None

    def memory(self) -> dict[str, int]:
        return {}

    def kv_schemes(self) -> tuple[()]:
        return ()

    def load(self) -> None:
        return None

    def reads(self) -> Reads:
        return Reads()


class Clock:
    """Time that passes only when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def ledger_engine(
    *,
    blocks: int = 64,
    host: int = 0,
    block_size: int = 16,
    slots: int = 8,
    step_tokens: int = 64,
    context: int = 512,
    depth: int = 0,
    policy: str = "fcfs",
    clock: Clock | None = None,
    alphabet: int = VOCAB,
    window: Window | None = None,
    **rules: object,
) -> Engine:
    clock = clock or Clock()
    bus, tables = Bus(), BlockTables(slots, blocks if window is None else -(-context // block_size))
    scheduler = Scheduler(
        pool=BlockPool(blocks, block_size),
        host=BlockPool(host, block_size),
        tables=tables,
        policy=choose(policy),
        rules=Rules(step_tokens=step_tokens, **rules),
        emit=bus.emit,
        clock=clock,
        window=window,
    )
    runner = LedgerRunner(scheduler.requests, tables, blocks, host, block_size)
    runner.alphabet, runner.window = alphabet, window
    return Engine(
        scheduler=scheduler,
        runner=runner,
        tokenizer=PlainTokenizer(),
        limits=Limits(
            context=context if window else min(context, blocks * block_size),
            vocab=VOCAB,
            waiting=100_000,
            speculation=SPECULATION,
        ),
        facts=Facts("ledger", "int", "none", "none", policy),
        bus=bus,
        depth=depth,
        seed=0,
        clock=clock,
    )


def drain(engine: Engine, most: int = 10_000) -> None:
    """Steps until all is done, with a check after every step."""
    for _ in range(most):
        progressed = engine.step()
        engine.scheduler.check()
        engine.runner.check_published(engine.scheduler.pool)
        if not engine.busy:
            return
        if not progressed:
            assert engine.pause() > 0, "stuck without a reason"
            engine.clock.now += engine.pause()
    raise AssertionError(f"not done after {most} steps")
