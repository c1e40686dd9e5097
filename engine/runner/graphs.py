"""Steps in which every row decodes one token: one copy to the device, one CUDA graph, one copy back.

A graph is a recording of a step's launches, replayed as one. It reads its numbers where they lay when it was
recorded, so each batch size has a form of its own (staging.py), filled anew for each step and padded to that
size. What changes from step to step is a number there or in memory that stays: how rows are sampled, which
blocks they hold, the tokens drawn last. So requests join, leave and change without a new recording.
"""

import logging
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from itertools import chain
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from engine.cache.tables import BlockTables
from engine.request import Request
from engine.runner.staging import Fields, Form, upload
from engine.sampling.rows import COLUMNS
from engine.scheduling.plan import Plan, Row

logger = logging.getLogger("minichat.engine")

SIZES = (1, 2, 4, *range(8, 513, 8))  # rows of a graph


class Draws(Enum):
    """What a graph does with the logits."""

    PLAIN = "plain"  # a token for each row, without top-k and top-p
    FILTERED = "filtered"  # the same with them
    NOT = "not"  # they are left to whoever samples what only few rows ask for


class Work(Protocol):
    """The part of attention: lists that it reads in a step, in a place of fixed size."""

    numbers: int  # how many, int32

    def fill(self, numbers: np.ndarray, slots: np.ndarray, contexts: np.ndarray) -> bool: ...

    def prepared(self, numbers: Tensor, tables: Tensor, *, cut: bool) -> Any: ...


class Stage(Protocol):
    """What is recorded: the device's work of such a step."""

    def work(self, rows: int) -> Work: ...

    def logits(self, fields: Mapping[str, Tensor], last_ids: Tensor, prepared: Any) -> Tensor:
        """[rows, vocab] for the tokens of `ids`, or of `last_ids` at a row's slot where those are -1."""

    def draw(self, logits: Tensor, fields: Mapping[str, Tensor], last_ids: Tensor, *, filtered: bool) -> None:
        """Tokens into the field `tokens`, and into `last_ids`."""


class DecodeSteps:
    """Lays out, records and replays. On a CPU the same is carried out at once, without a recording."""

    def __init__(
        self,
        stage: Stage,
        *,
        requests: Mapping[int, Request],
        tables: BlockTables,
        block_size: int,
        last_ids: Tensor,
    ) -> None:
        self._stage, self._requests, self._tables = stage, requests, tables
        self._block_size, self._last_ids, self._device = block_size, last_ids, last_ids.device
        rows, width = tables.grid.shape
        self._sizes = [*(size for size in SIZES if size < rows), rows]
        self._mirror = torch.zeros(rows, width, dtype=torch.int32, device=self._device)
        self._nobody = rows  # the slot of padding
        self._forms: dict[int, tuple[Form, Work]] = {}
        self._recordings: dict[tuple[int, Draws, bool], Recording] = {}
        self._recorder = Recorder(self._device) if self._device.type == "cuda" else None

    def takes(self, plan: Plan) -> bool:
        return 0 < len(plan.rows) == plan.single and all(row.samples for row in plan.rows)

    def run(self, rows: Sequence[Row], slots: list[int], numbers: np.ndarray, draws: Draws) -> Tensor:
        """The tokens of the rows, -1 where one had no number to draw from; their logits, if it does not draw.

        `numbers` [rows, columns] as SamplingRows gives them.
        """
        self._copy_tables()
        count = len(rows)
        size = self._sizes[bisect_left(self._sizes, count)]
        if size not in self._forms:
            self._forms[size] = self._form(size)
        form, work = self._forms[size]
        cut = self._fill(form.blank(), rows, slots, numbers, work)
        form.send()
        key = (size, draws, cut)
        if key not in self._recordings:
            self._recordings[key] = Recording(self._recorder, self._launches(form, work, draws, cut))
        result = self._recordings[key].run()
        return result[:count]

    def forget(self) -> None:
        """Drops all recordings: a product is another one now, or a weight lies elsewhere."""
        self._recordings.clear()
        self._recorder = Recorder(self._device) if self._device.type == "cuda" else None

    def _form(self, size: int) -> tuple[Form, Work]:
        work = self._stage.work(size)
        fields: Fields = {
            name: ((size,), np.dtype(np.int64)) for name in ("ids", "positions", "places", "slots", "tokens")
        }
        fields["columns"] = ((len(COLUMNS), size), np.dtype(np.float64))
        fields["work"] = ((work.numbers,), np.dtype(np.int32))
        return Form(fields, self._device), work

    def _fill(
        self,
        fields: Mapping[str, np.ndarray],
        rows: Sequence[Row],
        slots: list[int],
        numbers: np.ndarray,
        work: Work,
    ) -> bool:
        """Writes a step into a form; says whether attention cuts any context."""
        count, requests = len(rows), self._requests
        of = np.array(slots)
        starts = np.fromiter((row.start for row in rows), np.int64, count)
        blocks, offsets = np.divmod(starts, self._block_size)
        known = (requests[row.request].tokens for row in rows)
        fields["ids"][:count] = [
            tokens[row.start] if row.start < len(tokens) else -1
            for row, tokens in zip(rows, known, strict=True)
        ]
        fields["positions"][:count] = starts
        fields["places"][:count] = self._tables.grid[of, blocks].astype(np.int64) * self._block_size + offsets
        fields["slots"][:count] = of
        fields["columns"][:, :count] = numbers.T
        for name, padding in (("ids", 0), ("positions", 0), ("places", -1), ("slots", self._nobody)):
            fields[name][count:] = padding
        fields["columns"][:, count:] = numbers[:1].T  # padding samples like the first row
        return work.fill(fields["work"], of, starts.astype(np.int32) + 1)

    def _launches(self, form: Form, work: Work, draws: Draws, cut: bool) -> Callable[[], Tensor]:
        fields, stage, last_ids = form.on_device, self._stage, self._last_ids
        prepared = work.prepared(fields["work"], self._mirror, cut=cut)

        def launches() -> Tensor:
            logits = stage.logits(fields, last_ids, prepared)
            if draws is Draws.NOT:
                return logits
            stage.draw(logits, fields, last_ids, filtered=draws is Draws.FILTERED)
            return fields["tokens"]

        return launches

    def _copy_tables(self) -> None:
        """What was written into the tables since the last time."""
        written = self._tables.written
        if not written:
            return
        slots = np.repeat(list(written), [end - begin for begin, end in written.values()])
        columns = np.fromiter(
            chain.from_iterable(range(*each) for each in written.values()), np.int64, len(slots)
        )
        at, to, blocks = upload([slots, columns, self._tables.grid[slots, columns]], self._device)
        self._mirror[at, to] = blocks
        written.clear()


class Recorder:
    """Where graphs are recorded, and the memory that they share: they never run at the same time."""

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device)
        self.pool = torch.cuda.graph_pool_handle()
        self.full = False  # no memory was left for another one


class Recording:
    """Launches: one by one the first time, which compiles what they need, and as a graph from then on."""

    def __init__(self, recorder: Recorder | None, launches: Callable[[], Tensor]) -> None:
        self._recorder, self._launches = recorder, launches
        self._warm = False
        self._graph: torch.cuda.CUDAGraph | None = None
        self._result: Tensor | None = None

    def run(self) -> Tensor:
        if self._graph is None and self._warm and self._recorder and not self._recorder.full:
            self._record(self._recorder)
        if self._graph is not None and self._result is not None:
            self._graph.replay()
            return self._result
        if self._recorder is None:
            return self._launches().clone()  # what lies in a form is overwritten before it is collected
        self._warm = True
        return self._aside(self._recorder)

    def _aside(self, recorder: Recorder) -> Tensor:
        """Runs on the stream of recordings, whose workspaces are made on the way."""
        now = torch.cuda.current_stream()
        recorder.stream.wait_stream(now)
        with torch.cuda.stream(recorder.stream):
            result = self._launches()
        now.wait_stream(recorder.stream)
        result.record_stream(now)
        return result

    def _record(self, recorder: Recorder) -> None:
        graph = torch.cuda.CUDAGraph()
        recorder.stream.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(recorder.stream):
                graph.capture_begin(pool=recorder.pool, capture_error_mode="thread_local")
                try:
                    self._result = self._launches()
                finally:
                    graph.capture_end()
        except torch.OutOfMemoryError as error:
            recorder.full, self._result = True, None
            logger.warning("no memory for another CUDA graph; such steps are launched one by one: %s", error)
        else:
            self._graph = graph
