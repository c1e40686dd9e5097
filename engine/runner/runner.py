"""Runs plans on a real model."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from engine.attention.base import AttentionBackend, Batch, attending
from engine.cache.store import KVStore
from engine.cache.tables import BlockTables
from engine.config import KvSchemeName
from engine.errors import BadInput, NoMemory
from engine.grammar.grammars import Grammars
from engine.models.base import LanguageModel
from engine.request import Request
from engine.runner.batch import BatchBuilder
from engine.runner.drafting import Drafter, SmallModel, drafts_of
from engine.runner.drawing import Drawing, by_row
from engine.runner.graphs import DecodeSteps, Draws
from engine.runner.load import LoadMeter
from engine.runner.memory import MemoryMeter
from engine.runner.moves import Seconds, mover_on, timed
from engine.runner.protocol import Fit, Outcome
from engine.runner.results import Drawn, likeliest_of, logprobs_of
from engine.runner.room import Room
from engine.runner.staging import upload
from engine.runner.traffic import measure, weights_read
from engine.runner.verification import ahead, rolled, unrolled
from engine.sampling.rows import Wanted
from engine.scheduling.plan import Drafts, Plan, Row
from engine.snapshot import Load, Reads, SchemeView, Speeds

if TYPE_CHECKING:
    from engine.runner.stage import GpuStage

LARGE = 10  # from so many bits on, steps of all sizes take the same kernels


@dataclass(slots=True)
class Launched:
    """A step on the device, and where its results will be."""

    rows: list[Row]  # those that sample
    drawn: Drawn  # on the host once `arrived`
    arrived: torch.cuda.Event | None  # None: they are there
    began: float
    swap_seconds: Seconds
    drafts: Mapping[int, Drafts] = field(default_factory=dict)  # each of which was a row


class ModelRunner:
    """Owns the model and the cache tensors."""

    def __init__(
        self,
        *,
        model: LanguageModel,
        store: KVStore,
        attention: AttentionBackend,
        requests: Mapping[int, Request],
        tables: BlockTables,
        block_size: int,
        stop_ids: frozenset[int],
        device: torch.device,
        drafters: Mapping[str, Drafter] = MappingProxyType({}),
        room: Room | None = None,
        grammars: Grammars | None = None,
    ) -> None:
        self._drafters = drafters
        self.model, self.attention, self.device, self._room = model, attention, device, room
        self._requests, self._tables, self._block_size = requests, tables, block_size
        self._batches = BatchBuilder(requests, tables, block_size, device)
        self._drawing = Drawing(
            requests=requests,
            slots=len(tables.grid),
            vocab=model.config.vocab,
            stop_ids=stop_ids,
            grammars=grammars,
            device=device,
        )
        self.graphs: bool | None = None
        self._speeds: Speeds | None = None
        self._load = LoadMeter.of(device)
        self._recordable = True  # whether a graph may hold the model's products
        self.store = store
        self._on_store()

    def _on_store(self) -> None:
        """What depends on the form of the cache."""
        self._stage = self._stage_on(self.device)
        self._rehearsed: set[object] = set()  # kinds of steps
        self._steps = None
        if self._stage is not None:
            self._steps = DecodeSteps(
                self._stage,
                requests=self._requests,
                tables=self._tables,
                block_size=self._block_size,
                last_ids=self._drawing.last_ids,
            )
        if (self._steps is None) is not (self.graphs is None):  # they came, or went
            self.graphs = None if self._steps is None else True
        self._memory = MemoryMeter(self.model, self.store, self.device)
        for drafter in self._drafters.values():
            drafter.serve(self.store)
        for each in (self.store, *self._beside()):
            each.mover = mover_on(self.device)

    def products_changed(self, *, recordable: bool) -> None:
        """Others stand in the model now. `recordable`: whether a graph may hold them."""
        self._recordable = recordable
        self._rehearsed.clear()
        if self._steps is not None:
            self._steps.forget()

    def blocks_with(self, more: int) -> int | None:
        """How many blocks fit if the cache has so many bytes more; None: their number is settled."""
        if self._room is None or any(isinstance(each, SmallModel) for each in self._drafters.values()):
            return None
        if self._room.blocks is not None:
            return None
        try:
            return replace(self._room, nbytes=self._room.nbytes + more).fit(self.store.scheme).blocks
        except BadInput:  # not even one
            return 0

    def widen(self, more: int) -> None:
        """The room of the cache has so many bytes more from now on."""
        if self._room is not None:
            self._room = replace(self._room, nbytes=self._room.nbytes + more)

    def resize(self, blocks: int, held: Sequence[int]) -> None:
        """So many blocks from now on; what is in those `held` stays."""
        self.store.resize(blocks, held)
        if self._steps is not None:
            self._steps.forget()

    def recache(self, scheme: KvSchemeName) -> Fit:
        """Another form of the cache, while nobody holds any of it; on failure the old form is made anew."""
        if self._room is None:
            raise BadInput("this engine's cache has one form, and keeps it")
        if problem := self._kv_problem(scheme):
            raise BadInput(problem)
        fit, before = self._room.fit(scheme), self.store.scheme
        self.store.clear()  # first, as there is seldom room for both
        self._stage = self._steps = None
        try:
            self.store.become(self._room.store(scheme))
        except (RuntimeError, MemoryError) as error:
            self.store.become(self._room.store(before))
            raise BadInput(f"no room for a cache of {scheme}: {error}; it stays {before}") from None
        finally:
            self._on_store()
        return fit

    def kv_schemes(self) -> tuple[SchemeView, ...]:
        return () if self._room is None else self._room.views(self._kv_problem)

    def _kv_problem(self, scheme: KvSchemeName) -> str | None:
        able = getattr(self.attention, "kv_schemes", ("none",))  # others' may be older than it
        if scheme in able:
            return None
        return f"attention {self.attention.name} serves a cache of {' or '.join(able)}, not {scheme}"

    @torch.inference_mode()
    def launch(self, plan: Plan) -> Launched:
        """Without memory for it, what is held in reserve is given back for a second try; then NoMemory."""
        began = time.monotonic()
        swap_seconds = self._move_blocks(plan)
        for _ in range(2):
            try:
                return self._compute(plan, began, swap_seconds)
            except torch.OutOfMemoryError as error:
                problem = str(error)
            # From here on nobody holds the error, and with it the tensors of the frames that it went through.
            self._drawing.recount(row for row in plan.rows if row.drafted)
            self._give_back_reserve()
        raise NoMemory(problem)

    def _compute(self, plan: Plan, began: float, swap_seconds: Seconds) -> Launched:
        if plan.drafts:
            plan = unrolled(self._with_drafts(plan))
        rows = [row for row in plan.rows if row.samples]
        drawn = self._run(plan, rows) if plan.rows else None  # a plan may only move blocks
        if drawn is None:
            return Launched(rows, Drawn(torch.empty(0, dtype=torch.int64)), None, began, swap_seconds)
        drawn, arrived = drawn.sent(), None
        if self.device.type == "cuda":
            arrived = torch.cuda.Event()
            arrived.record()
        return Launched(rows, drawn, arrived, began, swap_seconds, plan.drafts)

    def _give_back_reserve(self) -> None:
        """Recorded steps, which are recorded anew, and what torch keeps for tensors to come."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            if self._steps is not None:
                self._steps.forget()
            torch.cuda.empty_cache()

    def collect(self, handle: Launched) -> Outcome:
        if handle.arrived is not None:
            handle.arrived.synchronize()
        rows, drawn = handle.rows, handle.drawn
        logprobs = logprobs_of(rows, drawn.tokens, drawn.logprobs) if drawn.logprobs else {}
        likeliest = likeliest_of(rows, drawn.candidates) if drawn.candidates else None
        seconds = time.monotonic() - handle.began
        tokens, runs = rolled(drawn.tokens.tolist(), rows, handle.drafts)
        return Outcome(
            tokens,
            logprobs,
            runs=runs,
            seconds=seconds,
            swap_seconds=handle.swap_seconds(),
            likeliest=likeliest,
        )

    def ailing(self) -> str | None:
        """A CUDA error can be of the kind that no later call survives."""
        if self.device.type == "cuda":
            try:
                torch.cuda.synchronize(self.device)
            except RuntimeError as error:
                return f"the GPU is lost to this process: {error}"
        return None

    def memory(self) -> dict[str, int]:
        return self._memory.read()

    def load(self) -> Load | None:
        return self._load.read() if self._load else None

    def reads(self) -> Reads:
        return Reads(weights_read(self.model), self.store.read_per_token())

    def speeds(self) -> Speeds:
        if self._speeds is None:
            self._speeds = measure(self.device, self.store.dtype, weights_read(self.model))
        return self._speeds

    def _decode(self, steps: DecodeSteps, rows: list[Row]) -> Drawn:
        """A step of one token a row, in a graph; what its kernels do not know is sampled behind it."""
        wanted = self._drawing.wanted(rows)
        if wanted is not None and steps.may_draw(wanted):
            tokens, *found = steps.draw(rows, wanted)
            return by_row(tokens, found, wanted)
        (slots,) = upload([np.array([row.slot for row in rows])], self.device)
        return self._drawing.by_sampler(steps.logits(rows).float(), slots, rows)

    def _run(self, plan: Plan, rows: list[Row]) -> Drawn | None:
        """A step of the model; a token for each of `rows`, if there are any."""
        steps = self._steps if self.graphs and self._recordable else None
        if steps is not None and not plan.drafts and steps.takes(plan):
            return self._decode(steps, rows)
        laid = self._batches.build(plan, self._drawing.last_ids)
        stage, wanted = self._stage, self._for_kernels(plan, rows)

        def launches() -> Drawn | Tensor:
            """Tokens, or what others draw them from."""
            hidden = self._forward(laid.batch)
            if laid.ends is not None:
                hidden = hidden[laid.ends]
            if stage is None or wanted is None:
                return hidden
            return self._drawing.by_stage(stage, stage.head(hidden), laid.slots, wanted)

        if stage is not None:
            self._rehearse(stage, plan, wanted, launches)
        found = launches()
        if isinstance(found, Drawn):
            return found
        if not rows:
            return None
        before = ahead(rows, plan.drafts) if plan.drafts else ()
        drawn = self._drawing.by_sampler(self.model.logits(found), laid.slots, rows, ahead=before)
        self._drawing.recount(row for row in rows if row.request in plan.drafts)
        return drawn

    def _for_kernels(self, plan: Plan, rows: list[Row]) -> Wanted | None:
        """How these rows draw, if kernels draw for them."""
        if self._stage is None or not rows:
            return None
        wanted = self._drawing.wanted(rows)
        if wanted is not None and wanted.seen and plan.drafts:  # penalties have to see the drafts
            return None
        return wanted

    def _rehearse(
        self, stage: "GpuStage", plan: Plan, wanted: Wanted | None, launches: Callable[[], object]
    ) -> None:
        """The first step of a kind. Which kernels it takes depends on its size, nearly by powers of two."""
        size = min((plan.tokens - 1).bit_length(), LARGE)
        kind = (size, plan.single > 0, wanted and Draws.of(wanted))
        if kind not in self._rehearsed:
            stage.rehearse(launches)
            self._rehearsed.add(kind)

    def _with_drafts(self, plan: Plan) -> Plan:
        """The plan, with the drafts that models make in it."""
        made: dict[int, Drafts] = dict(plan.drafts)
        for kind, drafter in self._drafters.items():
            rows = [row for row in plan.rows if row.drafted and made[row.request].kind == kind]
            if rows:
                own = self._drawing
                found = drafts_of(drafter, rows, self._requests, self._batches, own.last_ids, own.guess)
                own.recount(rows)
                made |= {request: made[request]._replace(tokens=tokens) for request, tokens in found.items()}
        return replace(plan, drafts=made)

    def _forward(self, batch: Batch) -> Tensor:
        if self._stage is not None:
            return self._stage.forward(batch)
        attend = attending(self.attention, self.store.layers, batch)
        return self.model.forward(batch.ids, batch.positions, attend)

    def _move_blocks(self, plan: Plan) -> Seconds:
        """Swaps and copies; what the swaps took is known when the step is over."""

        def swap() -> None:
            self.store.swap_out(plan.swaps_out)
            self.store.swap_in(plan.swaps_in)

        took = timed(self.device, swap) if plan.swaps_out or plan.swaps_in else lambda: 0.0
        for each in (self.store, *self._beside()):
            each.copy(plan.copies)
        return took

    def _beside(self) -> list[KVStore]:
        """The caches of draft models, in the same blocks."""
        return [each.store for each in self._drafters.values() if isinstance(each, SmallModel)]

    def _stage_on(self, device: torch.device) -> "GpuStage | None":
        if device.type != "cuda":
            return None
        # Brings Triton, which is there where a GPU is.
        from engine.runner.stage import stage_for

        return stage_for(self.model, self.store, self.attention)
