"""Runs plans on a real model."""

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from engine.attention.base import AttentionBackend, Batch
from engine.cache.store import KVStore
from engine.cache.tables import BlockTables
from engine.config import KvSchemeName
from engine.errors import BadInput
from engine.events import TokenLogprob
from engine.grammar.grammars import Grammars
from engine.models.base import LanguageModel
from engine.request import Request
from engine.runner.batch import BatchBuilder
from engine.runner.drafting import Drafter, SmallModel, drafts_of
from engine.runner.graphs import DecodeSteps, Draws
from engine.runner.memory import MemoryMeter
from engine.runner.protocol import BAD, Fit, Likeliest, Outcome
from engine.runner.room import Room
from engine.runner.staging import upload
from engine.runner.traffic import measure, weights_read
from engine.runner.verification import ahead, rolled, unrolled
from engine.sampling.allowed import forbid
from engine.sampling.candidates import Candidates, candidates
from engine.sampling.logprobs import Logprobs
from engine.sampling.rows import COLUMNS, RowsView, SamplingRows
from engine.sampling.sampler import sample
from engine.scheduling.plan import Drafts, Plan, Row
from engine.snapshot import Reads, Speeds

if TYPE_CHECKING:
    from engine.runner.stage import GpuStage


@dataclass(slots=True)
class Launched:
    """A step on the device, and where its results will be."""

    rows: list[Row]  # those that sample
    tokens: Tensor  # on the host once `arrived`
    logprobs: Logprobs | None
    arrived: torch.cuda.Event | None  # None: they are there
    began: float
    swap_seconds: float
    candidates: Candidates | None = None  # on the host with the tokens
    drafts: Mapping[int, Drafts] = field(default_factory=dict)  # each of which was a row


@dataclass(frozen=True, slots=True)
class Drawn:
    """What a step draws, on the device."""

    tokens: Tensor  # of each row that samples; BAD where it had no number to draw from
    logprobs: Logprobs | None
    candidates: Candidates | None = None


class ModelRunner:
    """Owns the model, the cache tensors and the columns of what is sampled how."""

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
        slots = len(tables.grid)
        self._drafters = drafters
        self.model, self.attention, self.device, self._room = model, attention, device, room
        self._requests, self._stop_ids, self._grammars = requests, stop_ids, grammars
        self._tables, self._block_size = tables, block_size
        self._batches = BatchBuilder(requests, tables, block_size, device)
        self._sampling = SamplingRows(slots, model.config.vocab, device)
        self._stamps = [-1] * slots  # of what each slot's sampling is set for
        self._last_ids = torch.zeros(slots + 1, dtype=torch.int64, device=device)  # the last one is padding's
        self.graphs: bool | None = None
        self._speeds: Speeds | None = None
        self._recordable = True  # whether a graph may hold the model's products
        self.store = store
        self._on_store()

    def _on_store(self) -> None:
        """What depends on the form of the cache."""
        self._stage = self._stage_on(self.device)
        self._steps = None
        if self._stage is not None:
            self._steps = DecodeSteps(
                self._stage,
                requests=self._requests,
                tables=self._tables,
                block_size=self._block_size,
                last_ids=self._last_ids,
            )
        if (self._steps is None) is not (self.graphs is None):  # they came, or went
            self.graphs = None if self._steps is None else True
        self._memory = MemoryMeter(self.model, self.store, self.device)
        for drafter in self._drafters.values():
            drafter.serve(self.store)

    def products_changed(self, *, recordable: bool) -> None:
        """Others stand in the model now. `recordable`: whether a graph may hold them."""
        self._recordable = recordable
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
        if scheme not in (able := getattr(self.attention, "kv_schemes", ("none",))):
            name = self.attention.name
            raise BadInput(f"attention {name} serves a cache of {' or '.join(able)}, not {scheme}")
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

    @torch.inference_mode()
    def launch(self, plan: Plan) -> Launched:
        began = time.monotonic()
        swap_seconds = self._move_blocks(plan)
        if plan.drafts:
            plan = unrolled(self._with_drafts(plan))
        rows = [row for row in plan.rows if row.samples]
        drawn = self._run(plan, rows) if plan.rows else None  # a plan may only move blocks
        if drawn is None:
            return Launched(rows, torch.empty(0, dtype=torch.int64), None, None, began, swap_seconds)
        found = drawn.candidates
        if found is not None:
            found = Candidates(found.rows, self._sent(found.ids), self._sent(found.values))
        tokens, arrived = self._to_host(drawn.tokens)
        return Launched(rows, tokens, drawn.logprobs, arrived, began, swap_seconds, found, plan.drafts)

    def collect(self, handle: Launched) -> Outcome:
        if handle.arrived is not None:
            handle.arrived.synchronize()
        logprobs = _logprobs(handle.rows, handle.tokens, handle.logprobs) if handle.logprobs else {}
        likeliest = _likeliest(handle.rows, handle.candidates) if handle.candidates else None
        seconds = time.monotonic() - handle.began
        tokens, runs = rolled(handle.tokens.tolist(), handle.rows, handle.drafts)
        return Outcome(
            tokens,
            logprobs,
            runs=runs,
            seconds=seconds,
            swap_seconds=handle.swap_seconds,
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

    def reads(self) -> Reads:
        return Reads(weights_read(self.model), self.store.read_per_token())

    def speeds(self) -> Speeds:
        if self._speeds is None:
            self._speeds = measure(self.device, self.store.dtype, weights_read(self.model))
        return self._speeds

    def _decode(self, steps: DecodeSteps, rows: list[Row]) -> Drawn:
        """A step of one token a row, in a graph; what its numbers do not say is sampled behind it."""
        slots, indices = self._settle(rows)
        numbers = self._sampling.numbers(np.array(slots), indices)
        if self._sampling.by_numbers(slots):
            draws = Draws.FILTERED if self._filtered(numbers) else Draws.PLAIN
            return Drawn(steps.run(rows, slots, numbers, draws), None)
        logits = steps.run(rows, slots, numbers, Draws.NOT).float()
        (on_device,) = upload([np.array(slots)], self.device)
        return self._sample(logits, on_device, self._view(rows), rows)

    def _filtered(self, numbers: np.ndarray) -> bool:
        """Whether any row has top-k or top-p, which the drawing kernels skip where none has."""
        top_k, top_p = (numbers[:, COLUMNS.index(name)] for name in ("top_k", "top_p"))
        return bool((top_k < self.model.config.vocab).any() or (top_p < 1.0).any())

    def _run(self, plan: Plan, rows: list[Row]) -> Drawn | None:
        """A step of the model; a token for each of `rows`, if there are any."""
        steps = self._steps if self.graphs and self._recordable else None
        if steps is not None and not plan.drafts and steps.takes(plan):
            return self._decode(steps, rows)
        laid = self._batches.build(plan, self._last_ids)
        hidden = self._forward(laid.batch)
        if not rows:
            return None
        if laid.ends is not None:
            hidden = hidden[laid.ends]
        if self._stage is not None and self._sampling.by_numbers(self._settle(rows)[0]):
            return self._draw(self._stage, self._stage.head(hidden), laid.slots, rows)
        view = self._view(rows, ahead(rows, plan.drafts) if plan.drafts else ())
        drawn = self._sample(self.model.logits(hidden), laid.slots, view, rows)
        self._recount(row for row in rows if row.request in plan.drafts)
        return drawn

    def _with_drafts(self, plan: Plan) -> Plan:
        """The plan, with the drafts that models make in it."""
        made: dict[int, Drafts] = dict(plan.drafts)
        for kind, drafter in self._drafters.items():
            rows = [row for row in plan.rows if row.drafted and made[row.request].kind == kind]
            if rows:
                found = drafts_of(drafter, rows, self._requests, self._batches, self._last_ids, self._guess)
                self._recount(rows)
                made |= {request: made[request]._replace(tokens=tokens) for request, tokens in found.items()}
        return replace(plan, drafts=made)

    def _guess(self, logits: Tensor, slots: Tensor, rows: list[Row]) -> Tensor:
        """Drawn as the tokens at these places will be."""
        view = replace(self._view(rows), logprobs=())
        return self._sample(logits, slots, view, rows).tokens.clamp(min=0)

    def _recount(self, rows: Iterable[Row]) -> None:
        """Drafts were noted as if they were said: penalties begin anew from what is."""
        for row in rows:
            if self._requests[row.request].params.penalised:
                self._stamps[row.slot] = -1

    def _draw(self, stage: "GpuStage", logits: Tensor, slots: Tensor, rows: list[Row]) -> Drawn:
        """As the graphs draw."""
        own, indices = self._settle(rows)
        numbers = self._sampling.numbers(np.array(own), indices)
        fields = {"tokens": torch.empty_like(slots), "slots": slots}
        (fields["columns"],) = upload([np.ascontiguousarray(numbers.T)], self.device)
        stage.draw(logits, fields, self._last_ids, filtered=self._filtered(numbers))
        return Drawn(fields["tokens"], None)

    def _sample(self, logits: Tensor, slots: Tensor, view: RowsView, rows: list[Row]) -> Drawn:
        self._keep_to_grammars(logits, rows)
        sampled = sample(logits, view)
        likeliest = candidates(logits, view) if view.candidates else None
        self._last_ids[slots] = sampled.ids
        self._sampling.note([row.slot for row in rows], sampled.ids)
        return Drawn(sampled.ids.masked_fill(sampled.bad, BAD), sampled.logprobs, likeliest)

    def _keep_to_grammars(self, logits: Tensor, rows: list[Row]) -> None:
        """What a row's grammar forbids cannot be drawn, and is not among the likeliest tokens."""
        guided = self._sampling.guided([row.slot for row in rows])
        if guided and self._grammars is not None:
            requests = [self._requests[rows[at].request] for at in guided]
            forbid(logits, guided, np.stack([self._grammars.allowed(each) for each in requests]))

    def _forward(self, batch: Batch) -> Tensor:
        if self._stage is not None:
            return self._stage.forward(batch)
        prepared, layers, attention = self.attention.prepare(batch), self.store.layers, self.attention

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return attention.attend(q, k, v, layers[layer], prepared)

        return self.model.forward(batch.ids, batch.positions, attend)

    def _move_blocks(self, plan: Plan) -> float:
        """Swaps and copies; returns the seconds that the swaps took."""
        began = time.monotonic()
        self.store.swap_out(plan.swaps_out)
        self.store.swap_in(plan.swaps_in)
        swapped = time.monotonic()
        self.store.copy(plan.copies)
        for drafter in self._drafters.values():
            if isinstance(drafter, SmallModel):
                drafter.store.copy(plan.copies)
        return swapped - began

    def _view(self, rows: list[Row], ahead: Sequence[tuple[int, int]] = ()) -> RowsView:
        return self._sampling.view(*self._settle(rows), ahead)

    def _settle(self, rows: list[Row]) -> tuple[list[int], list[int]]:
        """The rows' slots, and which token of its reply each draws; what was changed since then is set."""
        indices = []
        for row in rows:
            request = self._requests[row.request]
            if self._stamps[row.slot] != request.stamp:
                self._set(row, request)
                self._stamps[row.slot] = request.stamp
            indices.append(row.start + row.length - request.prompt_len)
        return [row.slot for row in rows], indices

    def _set(self, row: Row, request: Request) -> None:
        on_device_only = row.start + row.length > len(request.tokens)
        self._sampling.set(
            row.slot,
            request.params,
            seed=request.seed,
            end_ids=sorted(request.params.enders(self._stop_ids)),
            tokens=request.tokens,
            prompt_len=request.prompt_len,
            pending=self._last_ids[row.slot : row.slot + 1] if on_device_only else None,
        )

    def _stage_on(self, device: torch.device) -> "GpuStage | None":
        if device.type != "cuda":
            return None
        # Brings Triton, which is there where a GPU is.
        from engine.runner.stage import stage_for

        return stage_for(self.model, self.store, self.attention)

    def _to_host(self, tokens: Tensor) -> tuple[Tensor, torch.cuda.Event | None]:
        host = self._sent(tokens)
        if self.device.type != "cuda":
            return host, None
        arrived = torch.cuda.Event()
        arrived.record()
        return host, arrived

    def _sent(self, values: Tensor) -> Tensor:
        """On the host, where they are once the device has come so far."""
        if self.device.type != "cuda":
            return values
        host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        return host.copy_(values, non_blocking=True)


def _likeliest(rows: list[Row], found: Candidates) -> Likeliest:
    places = {rows[row].request: place for place, row in enumerate(found.rows)}
    return Likeliest(places, found.ids.numpy(), found.values.numpy())


def _logprobs(rows: list[Row], tokens: Tensor, found: Logprobs) -> dict[int, tuple[TokenLogprob, ...]]:
    """By request, for those that asked."""
    columns = (found.chosen.tolist(), found.ranks.tolist(), found.ids.tolist(), found.values.tolist())
    said: dict[int, tuple[TokenLogprob, ...]] = {}
    for (row, wanted), chosen, rank, ids, values in zip(found.asked, *columns, strict=True):
        likely = zip(ids[:wanted], values[:wanted], strict=True)
        top = tuple(pair for pair in likely if pair[1] > -math.inf)  # a grammar may leave fewer
        request = rows[row].request
        said[request] = (*said.get(request, ()), TokenLogprob(int(tokens[row]), chosen, rank, top))
    return said
