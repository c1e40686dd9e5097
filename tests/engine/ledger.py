"""A runner without a model, and an engine around it.

For every cell of every block it stores the token whose keys that cell would hold. A row that reads a wrong,
stale or unwritten cell gets different tokens than it would alone, or fails an assertion. With recurrent
states, a block has two more numbers: how many tokens the state after the last one written in it is of, and
their hash.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import reduce

import numpy as np

from engine.api.events import Bus
from engine.api.params import SPECULATION
from engine.api.request import Request
from engine.api.speeds import Reads
from engine.execution.changes import RunnerChange, UseGraphs
from engine.execution.protocol import PIECE_SIZES, BlockScores, Compilation, StepKind, StepResult, TopTokens
from engine.execution.transfers import TransferRunner
from engine.kv.eviction import TokenBudget
from engine.kv.groups import BlockGroups
from engine.kv.pool import BlockPool
from engine.kv.prefix import of_group
from engine.kv.tables import BlockTables, TableMirror
from engine.kv.tiers.host import HostTier
from engine.kv.tiers.tier import Tier, TransferEnd, TransferOrder
from engine.kv.window import Window
from engine.scheduling.policy import choose
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.settings import SchedulerSettings
from engine.scheduling.step import LAST, Masks, SlotSampling, Step, StepRow
from engine.serving.engine import Engine
from engine.serving.info import EngineInfo
from engine.serving.limits import Limits
from engine.speculation.verify import run_of
from tests.engine.oracle import VOCAB, block_scores, most_likely_tokens, next_token, visible
from tests.engine.oracle import alone as alone
from tests.engine.space import EMPTY, LedgerBlocks
from tests.engine.space import LedgerSpace as LedgerSpace

STATE = 2  # numbers of a state


class PlainTokenizer:
    """A tokenizer whose text is the token ids. No id ends a reply."""

    stop_ids: frozenset[int] = frozenset()

    def detokenizer(self, *, after: Sequence[int] = ()) -> "PlainTokenizer":
        return self

    def push(self, token: int) -> str:
        return f"{token} "

    def flush(self) -> str:
        return ""

    def copy(self) -> "PlainTokenizer":
        return self


class LedgerRunner:
    """Runs steps on cells of integers in the device's order: moves, then writes, then reads.

    Tokens are computed from steps alone. The requests serve to check that steps describe them correctly.
    """

    graphs: bool | None = None
    weights_scheme = "none"
    graph_sizes: Sequence[int] = ()
    piece_sizes: Sequence[int] = tuple(size for size in PIECE_SIZES if size <= 512)

    def __init__(
        self,
        requests: dict[int, Request] | None,
        tables: BlockTables,
        cells: np.ndarray,
        tiers: Sequence[Tier] = (),
        keeps_state: bool = False,
        groups: BlockGroups | None = None,
    ) -> None:
        """`requests` None: do not check steps against requests. `cells`: [blocks, numbers of a block]."""
        self.requests, self.truth, self.keeps_state = requests, tables, keeps_state
        self.size = cells.shape[1] - STATE * keeps_state
        self.groups = groups or BlockGroups(self.size)
        self.tables, self.cells = TableMirror(*tables.grid.shape, self.groups.count), cells
        self.transfers = TransferRunner(tiers, lambda numbers: LedgerBlocks(cells, numbers))
        self.follow = self.transfers.follow
        self.last = np.full(len(tables.grid), EMPTY, np.int64)
        self.sampling: dict[int, SlotSampling] = {}
        self.compiled: list[StepKind] = []
        self.captured: list[tuple[int, StepKind]] = []  # after how many steps
        self.compilations: list[Compilation] = []
        self.history: dict[int, list[int]] = {}
        self.alphabet = VOCAB  # the vocabulary it samples from; a small one makes runs of tokens repeat
        self.fails: Callable[[Step], bool] = lambda step: False  # whether a step raises at launch
        self.steps: list[Step] = []
        self.budget: TokenBudget | None = None
        self.skipped: dict[int, int] = {}  # by slot: tokens of evicted blocks

    def start_compiling(self, kinds: Sequence[StepKind]) -> Sequence[Compilation]:
        self.compiled += kinds
        return self.compilations

    def capture(self, kinds: Sequence[StepKind]) -> None:
        self.captured += [(len(self.steps), kind) for kind in kinds]

    def launch(self, step: Step) -> StepResult:
        self.steps.append(step)
        self._apply(step)
        if self.fails(step):
            raise RuntimeError("simulated failure")
        if step.copies:
            froms, tos = map(list, zip(*step.copies, strict=True))
            self.cells[tos] = self.cells[froms]
        assert [row.length == 1 for row in step.rows] == [at < step.single for at in range(len(step.rows))]
        assert step.tokens == sum(row.length for row in step.rows)
        end, scores = 0, list[BlockScores]()
        for row in step.rows:
            self.skipped[row.slot] = row.skipped
            tokens = step.ids[end : (end := end + row.length)].tolist()
            if self.requests is not None:
                self._check(row, tokens, self.requests[row.request])
            if row.drafted:
                tokens[1:] = self._drafts(step, row)
            tokens = [int(self.last[row.slot]) if token == LAST else token for token in tokens]
            for at, token in enumerate(tokens, row.start - row.skipped):
                for grid in self.tables.grids:
                    self.cells[grid[row.slot, at // self.size], at % self.size] = token
            if self.keeps_state:
                self._advance(row, tokens)
            scores += self._scores(row)
        runs = {row.request: self._verify(row) for row in step.rows if row.drafted}
        sampled = [
            runs[row.request][0]
            if row.drafted
            else self._sample(row.slot, row.start + row.length, self.sampling[row.slot].seed)
            for row in step.rows
            if row.samples
        ]
        return StepResult(sampled, runs=runs, seconds=0.001, top_tokens=self._top_tokens(step), scores=scores)

    def _advance(self, row: StepRow, tokens: Sequence[int]) -> None:
        """Carry the state before a row over its tokens, and store it in each block that has any of them."""
        table, count, state = self.tables.grid[row.slot], 0, 0
        if row.start:
            count, state = self.cells[table[(row.start - 1) // self.size], self.size :].tolist()
        assert count == row.start, f"{row} starts with the state after {count} tokens"
        for at, token in enumerate(tokens, row.start):
            state = hash((state, token))
            self.cells[table[at // self.size], self.size :] = at + 1, state
        seen = self._seen(row.slot, row.start + row.length)
        expected = reduce(lambda before, token: hash((before, token)), seen, 0)
        assert state == expected, f"{row} has a state of other tokens"

    def _scores(self, row: StepRow) -> Iterator[BlockScores]:
        """The scores of the blocks that the row fills."""
        for block in range(row.start // self.size, (row.start + row.length) // self.size):
            if self.budget is not None:
                seen = self._seen(row.slot, (block + 1) * self.size)
                yield BlockScores(row.request, block, np.array(block_scores(seen, self.size), np.float32))

    def transfer(self, order: TransferOrder) -> None:
        self.transfers.begin(order)

    def transferred(self, *, wait: bool = False) -> list[TransferEnd]:
        return self.transfers.ended(wait=wait)

    def _check(self, row: StepRow, tokens: list[int], request: Request) -> None:
        assert row.start + row.length < request.max_len, f"a token is computed that no request needs: {row}"
        known = request.tokens[row.start : row.start + row.length - row.drafted]
        assert tokens[: len(known)] == known, f"{row} has tokens of another request"
        if row.drafted:
            assert row.start + 1 == len(request.tokens), f"{row} drafts after a token that is not known yet"
        for group, window in enumerate(self.groups.windows if row.skipped == 0 else ()):
            for at in visible(row.start + 1, window):  # what its first token attends to
                block = request.blocks[at // self.size * self.groups.count + group]
                assert block >= 0, f"{row} reads a released block: {request.blocks}"

    def skip(self, step: Step) -> None:
        self._apply(step)

    def apply(self, change: RunnerChange) -> None:
        assert isinstance(change, UseGraphs), change
        self.graphs = change.on

    def _apply(self, step: Step) -> None:
        """Apply the changes in the step, then check that its rows match the scheduler's requests."""
        self.tables.apply(step.tables)
        self.sampling |= {each.slot: each for each in step.sampling}
        for each in step.history:
            known = self.history[each.slot][: each.at] if each.at else []
            self.history[each.slot] = [*known, *each.tokens]
        for row in step.rows if self.requests is not None else ():
            request = self.requests[row.request]
            blocks = -(-(row.start - row.skipped + row.length) // self.size)
            mine = np.stack([grid[row.slot, :blocks] for grid in self.tables.grids], 1).ravel().tolist()
            theirs = self.truth.listed(row.slot, blocks * self.groups.count)
            assert mine == theirs, f"{row} uses the block table of an earlier step"
            if row.samples:
                state = self.sampling[row.slot]
                assert state.params is request.params, f"{row} uses sampling parameters of an earlier step"
                assert (state.seed, state.origin) == (request.seed, request.prompt_len)

    def supply(self, handle: StepResult, masks: Masks) -> None:
        raise AssertionError("no request of the ledger has a grammar")

    def _top_tokens(self, step: Step) -> TopTokens | None:
        rows = [row for row in step.rows if row.samples and self.sampling[row.slot].params.beams > 1]
        if not rows:
            return None
        params = [self.sampling[row.slot].params for row in rows]
        asked = [each.candidates(len(each.stop_ids)) for each in params]
        ids = np.zeros((len(rows), max(asked)), np.int64)
        values = np.full(ids.shape, -np.inf, np.float32)
        for at, (row, count) in enumerate(zip(rows, asked, strict=True)):
            seen, seed = self._seen(row.slot, row.start + row.length), self.sampling[row.slot].seed
            ids[at, :count], values[at, :count] = most_likely_tokens(seen, seed, count)
        return TopTokens({row.request: at for at, row in enumerate(rows)}, ids, values)

    def _drafts(self, step: Step, row: StepRow) -> list[int]:
        """Return the drafts of the step, or make some that are right two times in three."""
        drafts = step.drafts[row.request]
        assert row.length == 1 + row.drafted == 1 + drafts.length, f"a row without its drafts: {row}"
        made = list(drafts.tokens)
        if not made and self.requests is not None:
            known = self.requests[row.request].tokens
            assert self.history[row.slot] == known, f"{row} drafts after tokens of another request"
        while len(made) < drafts.length:
            token = next_token([*self.history[row.slot], *made], self.sampling[row.slot].seed)
            made.append((token + (token % 3 == 0)) % self.alphabet)
        assert len(made) == drafts.length
        return made

    def _verify(self, row: StepRow) -> list[int]:
        seed, ends = self.sampling[row.slot].seed, range(row.start + 1, row.start + row.length + 1)
        table = self.tables.grid[row.slot]
        cells = [end - row.skipped for end in ends[:-1]]
        drafts = [int(self.cells[table[at // self.size], at % self.size]) for at in cells]
        return run_of([self._sample(row.slot, end, seed) for end in ends], drafts)

    def _sample(self, slot: int, length: int, seed: int) -> int:
        self.last[slot] = next_token(self._seen(slot, length), seed) % self.alphabet
        return int(self.last[slot])

    def _seen(self, slot: int, length: int) -> list[int]:
        """What the layers of all groups see together. They must see the same text."""
        length, found = length - self.skipped[slot], dict[int, int]()
        for grid, window in zip(self.tables.grids, self.groups.windows, strict=True):
            at = np.array(visible(length, window))
            seen = self.cells[grid[slot, at // self.size], at % self.size]
            assert (seen != EMPTY).all(), f"slot {slot} reads cells that were never written: {seen}"
            if self.groups.count == 1:
                return seen.tolist()
            for place, token in zip(at.tolist(), seen.tolist(), strict=True):
                assert found.setdefault(place, token) == token, f"slot {slot}: groups differ at {place}"
        return [found[place] for place in sorted(found)]

    def collect(self, handle: StepResult) -> StepResult:
        return handle

    def check_published(self, pool: BlockPool) -> None:
        """Check that every published block that can still be found holds the tokens of its request."""
        for request in (self.requests or {}).values():
            keys = [
                (at, key if not group else of_group(key, group))
                for at, key in enumerate(request.chain[: request.published])
                for group in range(self.groups.count)
            ]
            for at, key in keys:
                if (block := pool.find(key)) is not None:
                    expected = request.tokens[at * self.size : (at + 1) * self.size]
                    found = self.cells[block, : self.size].tolist()
                    assert found == expected, f"block {block} does not hold the tokens of its key"

    def enter_thread(self) -> None: ...

    def device_error(self) -> str | None:
        return None

    def memory(self) -> dict[str, int]:
        return {}

    def kv_schemes(self) -> tuple[()]:
        return ()

    def weight_schemes(self) -> tuple[()]:
        return ()

    def plan_weights(self, scheme: str) -> None:
        return None

    def split(self) -> None: ...

    def load(self) -> None: ...

    def experts(self) -> None: ...

    def reads(self) -> Reads:
        return Reads()


class Clock:
    """A clock that moves only when a test sets it."""

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
    groups: BlockGroups | None = None,
    budget: TokenBudget | None = None,
    below: Sequence[Tier] = (),
    keeps_state: bool = False,
    **rules: object,
) -> Engine:
    """`below` lists the tiers below host memory."""
    clock, space = clock or Clock(), LedgerSpace(blocks, host, block_size + STATE * keeps_state)
    tiers = () if budget else (HostTier(space), *below)
    if window is not None:
        groups = BlockGroups(block_size, (window,))
    groups = groups or BlockGroups(block_size)
    longest = context if budget else min(context, groups.tokens_in(blocks))
    width = -(-longest // block_size) if window or budget or groups.count > 1 else blocks
    bus, tables = Bus(), BlockTables(slots, width * groups.count, groups.count)
    scheduler = Scheduler(
        pool=BlockPool(blocks, block_size),
        tables=tables,
        policy=choose(policy),
        rules=SchedulerSettings(step_tokens=step_tokens, overlap=depth > 0, **rules),
        emit=bus.emit,
        clock=clock,
        groups=groups,
        budget=budget,
        tiers=tiers,
        keeps_state=keeps_state,
    )
    runner = LedgerRunner(scheduler.requests, tables, space.cells, tiers, keeps_state, groups)
    runner.alphabet, runner.budget = alphabet, budget
    return Engine(
        scheduler=scheduler,
        runner=runner,
        tokenizer=PlainTokenizer(),
        limits=Limits(longest, vocab=VOCAB, waiting=100_000, speculation=SPECULATION),
        info=EngineInfo("ledger", "int", "none", "none", policy),
        bus=bus,
        seed=0,
    )


def drain(engine: Engine, most: int = 10_000) -> None:
    """Step until all requests have ended, with a check after every step."""
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
