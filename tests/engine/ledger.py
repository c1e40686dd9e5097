"""A runner without a model, and the engine around it.

It keeps, for every cell of every block, the token whose keys would lie there. A row that reads a wrong,
stale or never written cell gets other tokens than it would alone, or an assertion.
"""

from collections.abc import Callable, Sequence
from hashlib import blake2b

import numpy as np

from engine.api.events import Bus
from engine.api.params import SPECULATION
from engine.api.request import Request
from engine.api.snapshot import Reads
from engine.execution.changes import Change, UseGraphs
from engine.execution.protocol import Likeliest, StepResult
from engine.execution.transfers import TransferRunner
from engine.kv.pool import BlockPool
from engine.kv.tables import BlockTables, TableMirror
from engine.kv.tiers.host import HostTier, Pairs
from engine.kv.tiers.tier import CompletedTransfer, Tier, Transfer, TransferEnd, TransferOrder
from engine.kv.window import Window
from engine.scheduling.policy import choose
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.settings import SchedulerSettings
from engine.scheduling.step import LAST, Masks, SlotSampling, Step, StepRow
from engine.serving.engine import Engine
from engine.serving.limits import Limits
from engine.serving.machine import EngineInfo
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


class LedgerBlocks:
    """Blocks of a ledger, for a tier."""

    def __init__(self, cells: np.ndarray, numbers: tuple[int, ...]) -> None:
        self.numbers, self._cells = numbers, cells

    def read(self) -> Callable[[], np.ndarray]:
        data = self._cells[list(self.numbers)].view(np.uint8)
        return lambda: data

    def write(self, data: np.ndarray) -> None:
        self._cells[list(self.numbers)] = np.ascontiguousarray(data).view(np.int64)

    def move(self, work: Callable[[], None]) -> Transfer:
        work()
        return CompletedTransfer(0.0001 * len(self.numbers))


class LedgerSpace:
    """Cells of the device, and others in host memory."""

    def __init__(self, blocks: int, host: int, size: int) -> None:
        self.cells, self.host = (np.full((count, size), EMPTY, np.int64) for count in (blocks, host))
        self.host_blocks = host

    def swap_out(self, pairs: Pairs) -> None:
        for block, host in pairs:
            self.host[host] = self.cells[block]

    def swap_in(self, pairs: Pairs) -> None:
        for host, block in pairs:
            self.cells[block] = self.host[host]


class LedgerRunner:
    """Runs a step on cells of integers, with the device's order: moves, then writes, then reads.

    It computes from nothing but steps. The requests are there to prove that what steps said of them is true.
    """

    graphs: bool | None = None

    def __init__(
        self,
        requests: dict[int, Request] | None,
        tables: BlockTables,
        cells: np.ndarray,
        tiers: Sequence[Tier] = (),
    ) -> None:
        """`requests` None: it believes what it is told. `cells`: [blocks, block_size]."""
        self.requests, self.truth, self.size = requests, tables, cells.shape[1]
        self.tables = TableMirror(*tables.grid.shape)
        self.cells = cells
        self.transfers = TransferRunner(tiers, lambda numbers: LedgerBlocks(cells, numbers))
        self.last = np.full(len(tables.grid), EMPTY, np.int64)
        self.sampling: dict[int, SlotSampling] = {}
        self.history: dict[int, list[int]] = {}
        self.alphabet = VOCAB  # tokens that it says; of few, the same runs come again
        self.fails: Callable[[Step], bool] = lambda step: False  # whether a step raises at launch
        self.steps: list[Step] = []
        self.window: Window | None = None

    def launch(self, step: Step) -> StepResult:
        self.steps.append(step)
        self._apply(step)
        if self.fails(step):
            raise RuntimeError("told to fail")
        if step.copies:
            froms, tos = map(list, zip(*step.copies, strict=True))
            self.cells[tos] = self.cells[froms]
        assert [row.length == 1 for row in step.rows] == [at < step.single for at in range(len(step.rows))]
        assert step.tokens == sum(row.length for row in step.rows)
        end = 0
        for row in step.rows:
            tokens = step.ids[end : end + row.length].tolist()
            end += row.length
            if self.requests is not None:
                self._check(row, tokens, self.requests[row.request])
            if row.drafted:
                tokens[1:] = self._drafts(step, row)
            for at, token in enumerate(tokens, row.start):
                said = self.last[row.slot] if token == LAST else token
                self.cells[self.tables.grid[row.slot, at // self.size], at % self.size] = said
        runs = {row.request: self._verify(row) for row in step.rows if row.drafted}
        sampled = [
            runs[row.request][0]
            if row.drafted
            else self._sample(row.slot, row.start + row.length, self.sampling[row.slot].seed)
            for row in step.rows
            if row.samples
        ]
        return StepResult(sampled, runs=runs, seconds=0.001, likeliest=self._likeliest(step))

    def transfer(self, order: TransferOrder) -> None:
        self.transfers.begin(order)

    def transferred(self, *, wait: bool = False) -> list[TransferEnd]:
        return self.transfers.ended(wait=wait)

    def _check(self, row: StepRow, tokens: list[int], request: Request) -> None:
        assert row.start + row.length < request.max_len, f"a token is computed that nobody needs: {row}"
        known = request.tokens[row.start : row.start + row.length - row.drafted]
        assert tokens[: len(known)] == known, f"{row} has tokens of another request"
        if row.drafted:
            assert row.start + 1 == len(request.tokens), f"drafts behind a token that is not here: {row}"
        for at in visible(row.start + 1, self.window):  # what its first token sees
            assert request.blocks[at // self.size] >= 0, f"{row} sees one that is gone: {request.blocks}"

    def skip(self, step: Step) -> None:
        self._apply(step)

    def apply(self, change: Change) -> None:
        assert isinstance(change, UseGraphs), change
        self.graphs = change.on

    def _apply(self, step: Step) -> None:
        """The changes that the step brings; then its rows are as the scheduler has them."""
        self.tables.apply(step.tables)
        self.sampling |= {each.slot: each for each in step.sampling}
        for each in step.history:
            known = self.history[each.slot][: each.at] if each.at else []
            self.history[each.slot] = [*known, *each.tokens]
        for row in step.rows if self.requests is not None else ():
            request = self.requests[row.request]
            blocks = -(-(row.start + row.length) // self.size)
            mine, theirs = (grid[row.slot, :blocks] for grid in (self.tables.grid, self.truth.grid))
            assert mine.tolist() == theirs.tolist(), f"{row} runs on a table of an earlier step"
            if row.samples:
                told = self.sampling[row.slot]
                assert told.params is request.params, f"{row} samples by parameters of an earlier step"
                assert (told.seed, told.origin) == (request.seed, request.prompt_len)

    def supply(self, handle: StepResult, masks: Masks) -> None:
        raise AssertionError("no request of the ledger has a grammar")

    def _likeliest(self, step: Step) -> Likeliest | None:
        rows = [row for row in step.rows if row.samples and self.sampling[row.slot].params.beams > 1]
        if not rows:
            return None
        params = [self.sampling[row.slot].params for row in rows]
        asked = [each.candidates(len(each.stop_ids)) for each in params]
        ids = np.zeros((len(rows), max(asked)), np.int64)
        values = np.full(ids.shape, -np.inf, np.float32)
        for at, (row, count) in enumerate(zip(rows, asked, strict=True)):
            seen, seed = self._seen(row.slot, row.start + row.length), self.sampling[row.slot].seed
            ids[at, :count], values[at, :count] = rivals(seen, seed, count)
        return Likeliest({row.request: at for at, row in enumerate(rows)}, ids, values)

    def _drafts(self, step: Step, row: StepRow) -> list[int]:
        """Those of the step; or as a small model's would be, which is right two times in three."""
        drafts = step.drafts[row.request]
        assert row.length == 1 + row.drafted == 1 + drafts.length, f"a row and its drafts disagree: {row}"
        made = list(drafts.tokens)
        if not made and self.requests is not None:
            known = self.requests[row.request].tokens
            assert self.history[row.slot] == known, f"{row} drafts behind tokens of another request"
        while len(made) < drafts.length:
            token = next_token([*self.history[row.slot], *made], self.sampling[row.slot].seed)
            made.append((token + (token % 3 == 0)) % self.alphabet)
        assert len(made) == drafts.length
        return made

    def _verify(self, row: StepRow) -> list[int]:
        seed, ends = self.sampling[row.slot].seed, range(row.start + 1, row.start + row.length + 1)
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

    def collect(self, handle: StepResult) -> StepResult:
        return handle

    def check_published(self, pool: BlockPool) -> None:
        """Whatever a request published and can still be found holds that request's tokens."""
        for request in (self.requests or {}).values():
            for at, key in enumerate(request.chain[: request.published]):
                if (block := pool.find(key)) is not None:
                    expected = request.tokens[at * self.size : (at + 1) * self.size]
                    assert self.cells[block].tolist() == expected, (
                        f"block {block} does not hold what its key says"
                    )

    def device_error(self) -> str | None:
        return None

    def memory(self) -> dict[str, int]:
        return {}

    def kv_schemes(self) -> tuple[()]:
        return ()

    def weight_schemes(self) -> tuple[()]:
        return ()

    def split(self) -> None:
        return None

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
    below: Sequence[Tier] = (),
    **rules: object,
) -> Engine:
    """`below`: tiers under the host's."""
    clock, space = clock or Clock(), LedgerSpace(blocks, host, block_size)
    tiers = (HostTier(space), *below)
    bus, tables = Bus(), BlockTables(slots, blocks if window is None else -(-context // block_size))
    scheduler = Scheduler(
        pool=BlockPool(blocks, block_size),
        tables=tables,
        policy=choose(policy),
        rules=SchedulerSettings(step_tokens=step_tokens, **rules),
        emit=bus.emit,
        clock=clock,
        window=window,
        tiers=tiers,
    )
    runner = LedgerRunner(scheduler.requests, tables, space.cells, tiers)
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
        info=EngineInfo("ledger", "int", "none", "none", policy),
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
