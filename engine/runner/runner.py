"""Runs plans on a real model."""

import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.attention.base import AttentionBackend, Batch
from engine.cache.store import KVStore
from engine.cache.tables import BlockTables
from engine.events import TokenLogprob
from engine.models.base import LanguageModel
from engine.request import Request
from engine.runner.batch import BatchBuilder
from engine.runner.protocol import BAD, Outcome
from engine.sampling.logprobs import Logprobs
from engine.sampling.rows import RowsView, SamplingRows
from engine.sampling.sampler import Sampled, sample
from engine.scheduling.plan import Plan, Row


@dataclass(slots=True)
class Launched:
    """A step on the device, and where its results will be."""

    rows: list[Row]  # those that sample
    tokens: Tensor  # on the host once `arrived`
    logprobs: Logprobs | None
    arrived: torch.cuda.Event | None  # None: they are there
    began: float
    swap_seconds: float


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
    ) -> None:
        slots = len(tables.grid)
        self.model, self.store, self.attention, self.device = model, store, attention, device
        self._requests, self._stop_ids = requests, stop_ids
        self._batches = BatchBuilder(requests, tables, block_size, device)
        self._sampling = SamplingRows(slots, model.config.vocab, device)
        self._stamps = [-1] * slots  # of what each slot's sampling is set for
        self._last_ids = torch.zeros(slots, dtype=torch.int64, device=device)

    @torch.inference_mode()
    def launch(self, plan: Plan) -> Launched:
        began = time.monotonic()
        swap_seconds = self._move_blocks(plan)
        rows = [row for row in plan.rows if row.samples]
        sampled = self._run(plan, rows) if plan.rows else None  # a plan may only move blocks
        if sampled is None:
            return Launched(rows, torch.empty(0, dtype=torch.int64), None, None, began, swap_seconds)
        slots = [row.slot for row in rows]
        self._last_ids[slots] = sampled.ids
        self._sampling.note(slots, sampled.ids)
        tokens, arrived = self._to_host(sampled.ids.masked_fill(sampled.bad, BAD))
        return Launched(rows, tokens, sampled.logprobs, arrived, began, swap_seconds)

    def collect(self, handle: Launched) -> Outcome:
        if handle.arrived is not None:
            handle.arrived.synchronize()
        logprobs = _logprobs(handle.rows, handle.tokens, handle.logprobs) if handle.logprobs else {}
        return Outcome(handle.tokens.tolist(), logprobs, time.monotonic() - handle.began, handle.swap_seconds)

    def ailing(self) -> str | None:
        """A CUDA error can be of the kind that no later call survives."""
        if self.device.type == "cuda":
            try:
                torch.cuda.synchronize(self.device)
            except RuntimeError as error:
                return f"the GPU is lost to this process: {error}"
        return None

    def memory(self) -> dict[str, int]:
        weights = {id(each): each.nbytes for each in (*self.model.parameters(), *self.model.buffers())}
        found = {
            "weights": sum(weights.values()),
            "cache": self.store.nbytes,
            "host_cache": self.store.host_nbytes,
        }
        if self.device.type == "cuda":
            free, total = torch.cuda.mem_get_info(self.device)
            found |= {"device_free": free, "device_total": total}
        return found

    def _run(self, plan: Plan, rows: list[Row]) -> Sampled | None:
        """A step of the model; a token for each of `rows`, if there are any."""
        batch = self._batches.build(plan, self._last_ids)
        hidden = self._forward(batch)
        if not rows:
            return None
        if len(rows) < len(hidden):
            hidden = hidden[batch.starts[1:][[row.samples for row in plan.rows]] - 1]
        return sample(self.model.logits(hidden), self._view(rows))

    def _forward(self, batch: Batch) -> Tensor:
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
        return swapped - began

    def _view(self, rows: list[Row]) -> RowsView:
        """How these rows are sampled, with whatever was changed since their last step."""
        indices = []
        for row in rows:
            request = self._requests[row.request]
            if self._stamps[row.slot] != request.stamp:
                self._set(row, request)
                self._stamps[row.slot] = request.stamp
            indices.append(row.start + row.length - request.prompt_len)
        return self._sampling.view([row.slot for row in rows], indices)

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

    def _to_host(self, tokens: Tensor) -> tuple[Tensor, torch.cuda.Event | None]:
        if self.device.type != "cuda":
            return tokens, None
        host = torch.empty(tokens.shape, dtype=tokens.dtype, pin_memory=True)
        host.copy_(tokens, non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record()
        return host, arrived


def _logprobs(rows: list[Row], tokens: Tensor, found: Logprobs) -> dict[int, tuple[TokenLogprob, ...]]:
    """By request, for those that asked."""
    columns = (found.chosen.tolist(), found.ranks.tolist(), found.ids.tolist(), found.values.tolist())
    return {
        rows[row].request: (
            TokenLogprob(
                int(tokens[row]), chosen, rank, tuple(zip(ids[:wanted], values[:wanted], strict=True))
            ),
        )
        for (row, wanted), chosen, rank, ids, values in zip(found.asked, *columns, strict=True)
    }
