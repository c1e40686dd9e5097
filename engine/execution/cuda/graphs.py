"""Steps as CUDA graphs: decodes from the inputs on the host to tokens on the host, and pieces of prompts.

A graph is a capture of a step's launches that is replayed as one (recording.py). It reads its inputs from
fixed addresses, so each batch size has its own staging buffers (staging.py), filled for each step and padded
to that size. Everything that changes between steps is a number in these buffers or in other fixed memory:
sampling parameters, block tables, last tokens. So requests join, leave and change without a new capture.

A step with pieces of prompts, with or without decodes beside them, has one graph for its number of tokens. It
ends with the hidden states, because few of the tokens are sampled after.
"""

from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from engine.attention import observers
from engine.execution.cuda.arrivals import Wait
from engine.execution.cuda.recording import Recorder, Recording
from engine.execution.cuda.sampling_fields import SamplingFlags, sampling_of, write_sampling
from engine.execution.cuda.sizes import CapturedGraphs, Graph, piece_sizes
from engine.execution.cuda.staging import BEHIND, Fields, StagingBuffers, upload
from engine.execution.protocol import Compilation, StepKind
from engine.kv.eviction import filled_blocks
from engine.kv.tables import TableMirror
from engine.models.adapters.bank import AdapterBank
from engine.models.layers.stage_link import StageEnds
from engine.sampling.penalties import SeenTokens
from engine.sampling.rows import COLUMNS, SamplingInputs
from engine.scheduling.step import Rows

SIZES = (1, 2, 4, *range(8, 513, 8))  # batch sizes of graphs
# The slot of a padding row is unused.
PADDING = {"ids": 0, "positions": 0, "places": -1, "slots": 0, "contexts": 0, "adapters": 0}
ADAPTERS = list(PADDING).index("adapters")
PER_GROUP = 2  # more rows of numbers for the places of each further group of layers: they begin at 16 bytes
BIASES = 2048  # maximum for all rows of a step; with more, sampling is not part of the graph


class MetadataBuilder(Protocol):
    """The attention's inputs for a step: lists of numbers in a buffer of fixed size."""

    numbers: int  # how many int32 values

    def holds(self, lengths: np.ndarray, contexts: np.ndarray) -> bool:
        """Whether rows with pieces of prompts fit, by their tokens and contexts, and a graph is faster."""

    def fill(self, numbers: np.ndarray, slots: np.ndarray, contexts: np.ndarray, lengths: np.ndarray) -> bool:
        """Write a step's lists from columns of its rows. Whether the context of a decode is split."""

    def metadata(
        self,
        numbers: Tensor,
        tables: Tensor,
        slots: Tensor,
        contexts: Tensor,
        *,
        cut: bool,
        decodes: bool,
        others: Sequence[tuple[Tensor, Tensor]] = (),
    ) -> Any: ...


class Stage(Protocol):
    """The device work of a step that is captured."""

    longest: int  # tokens of a step with a prompt that takes about as long to compute as to launch
    vocab: int
    adapters: AdapterBank | None  # that its launches add, at the places in the field of this name

    def work(self, tokens: int, *, pieces: bool = False, rows: int | None = None) -> MetadataBuilder:
        """`rows`: the most rows of one token beside pieces of prompts."""

    def start_compiling(self, steps: Mapping[Hashable, Callable[[], object]]) -> Compilation:
        """Run what launches steps, by their kinds, so that their kernels are compiled but not launched.

        None runs whose kernels are loaded because an earlier process has noted them.
        """

    def logits(self, fields: Mapping[str, Tensor], last_ids: Tensor, metadata: Any) -> Tensor:
        """[rows, vocab] for the tokens `ids`; where an id is -1, for `last_ids` of the row's slot.

        In a pipeline, a later stage reads `stream` instead, and an earlier one returns [rows, hidden].
        """

    def hidden(self, fields: Mapping[str, Tensor], last_ids: Tensor, metadata: Any, wait: Wait) -> Tensor:
        """[tokens, hidden], for the head. `wait`: is called before each layer."""

    def sample(
        self,
        logits: Tensor,
        fields: Mapping[str, Tensor],
        last_ids: Tensor,
        flags: SamplingFlags,
        seen: SeenTokens | None,
    ) -> tuple[Tensor, ...]:
        """Sample into the field `tokens` and into `last_ids`. Returns the data for Logprobs, if requested.

        `biases` are added at row * vocab + token (`bias_at`; -1: none). `asked`: how many of the likeliest
        tokens a row requests, -1 for none.
        """


class DecodeSteps:
    """Fills, captures and replays steps. On a CPU, runs the launches directly."""

    def __init__(
        self,
        stage: Stage,
        ends: StageEnds | None = None,
        *,
        tables: TableMirror,
        block_size: int,
        last_ids: Tensor,
        observed: int = 0,
        beside: "DecodeSteps | None" = None,
    ) -> None:
        """`ends`: of a stage of a pipeline. `observed`: see `most_observed`.

        `beside`: steps of another model with the same blocks and slots.
        """
        self._ends = ends or StageEnds(None)
        self.piece_sizes = piece_sizes(stage.longest)
        most = max(len(tables.grid), self.piece_sizes[-1])  # tokens of a graph
        self._streams = self._ends.blank(most)  # what an earlier stage has computed
        self._stage, self._tables = stage, tables
        self._block_size, self._last_ids, self._device = block_size, last_ids, last_ids.device
        rows, width = tables.grid.shape
        self.sizes = [*(size for size in SIZES if size < rows), rows]
        self._captured = CapturedGraphs(self.sizes, self.piece_sizes)
        blank = partial(torch.zeros, rows, width, dtype=torch.int32, device=self._device)
        self._mirror: Tensor = beside._mirror if beside else blank()
        others = len(tables.grids) - 1
        self._padding = np.array([*(PADDING | {"slots": rows}).values(), *[-1] * PER_GROUP * others])[:, None]
        self._forms: dict[tuple[int, bool, bool], tuple[StagingBuffers, MetadataBuilder]] = {}
        self._recordings: dict[Graph, Recording] = {}
        groups = observed * observers.groups_in(block_size)
        # The totals of the last step's observers (attention/observers.py).
        self.received = torch.zeros(self._observers(most), groups, device=self._device) if observed else None
        self._recorder: Recorder | None = beside._recorder if beside else self._new_recorder()
        self._beside: list[DecodeSteps] = []

    def beside(self, stage: Stage) -> "DecodeSteps":
        """Steps of another model, prepared and forgotten with these. No two run at the same time."""
        steps = partial(DecodeSteps, stage, tables=self._tables, beside=self)
        self._beside.append(steps(block_size=self._block_size, last_ids=self._last_ids))
        return self._beside[-1]

    @property
    def adapts(self) -> bool:
        """Whether rows may have adapters."""
        return self._stage.adapters is not None

    @property
    def captures(self) -> int:
        """How many graphs were captured since the last change of the weights."""
        return self._recorder.captures if self._recorder else 0

    def sample(self, rows: Rows, ids: np.ndarray, inputs: SamplingInputs) -> tuple[Tensor, ...]:
        """The rows' tokens, -1 where logits were NaN; then what `Stage.sample` returns."""
        return self._run(rows, rows, ids, inputs)

    def logits(self, rows: Rows, ids: np.ndarray) -> Tensor:
        return self._run(rows, rows, ids, None)[0]

    def pass_on(self, rows: Rows, ids: np.ndarray) -> bool:
        """In a stage before the last one, run the step and send what it computes to the next stage.

        False in the last stage, which samples instead.
        """
        return not self._ends.samples and self._ends.leave(self.logits(rows, ids))

    def may_sample(self, inputs: SamplingInputs) -> bool:
        return inputs.edits is None or len(inputs.edits[0]) <= BIASES

    def hidden(self, rows: Rows, ids: np.ndarray, wait: Wait = None) -> Tensor | None:
        """The hidden states of a step with pieces, valid until the next one. None: no graph holds it.

        In a pipeline, a stage before the last one has its own stream instead.
        """
        count = len(ids)
        if count > self.piece_sizes[-1]:
            return None
        size = self._captured.size_of_pieces(count)
        _, work = self._form(size, None, pieces=True)
        if not work.holds(rows.lengths, rows.contexts):
            return None
        return self._run(each_token(rows), rows, ids, None, pieces=size, wait=wait)[0]

    def _run(
        self,
        tokens: Rows,
        rows: Rows,
        ids: np.ndarray,
        inputs: SamplingInputs | None,
        *,
        pieces: int = 0,
        wait: Wait = None,
    ) -> tuple[Tensor, ...]:
        """`tokens`: a row for each token of `rows`. `pieces`: the size of a graph with pieces of prompts."""
        count, flags = len(tokens), None if inputs is None else SamplingFlags.of(inputs)
        self._ends.enter(count, self._streams)
        size = pieces or self._captured.size_of_batch(count, flags)
        form, work = self._form(size, flags, pieces=pieces > 0)
        fields = form.next_fields()
        self._fill(fields, tokens, ids)
        cut = work.fill(fields["work"], rows.slots, rows.contexts, rows.lengths)
        if inputs is not None:
            write_sampling(fields, inputs)
        self._send_table_changes(fields["news"])
        decodes = not pieces or bool((rows.lengths == 1).any())
        adapters = self._stage.adapters if rows.rare and rows.adapters.any() else None
        if adapters is not None:
            fields["rows"][ADAPTERS, :count] = np.repeat(adapters.places(rows.adapters), rows.lengths)
        observed = self.received is not None and self._observe(fields["observers"], rows)
        adapted, layout = adapters is not None, adapters and adapters.layout
        graph = Graph(size, flags, cut, pieces > 0, decodes, wait is not None, adapted, layout, observed)
        graph = self._captured.instead_of(graph)
        found = self._recording(graph, None if inputs is None else inputs.seen, wait).run()
        self._tables.sent()  # not earlier: a step that runs out of memory is launched again
        self._note(graph)
        sampled = form.advance()
        found = found if inputs is None else (sampled, *found)
        return found if count == size else tuple(each[:count] for each in found)

    def start_compiling(self, kinds: Sequence[StepKind], wait: Wait = None) -> list[Compilation]:
        """`wait`: of those that wait; without one, there are none."""
        if self._recorder is None:
            return []
        missing = [(graph, each) for graph, each in self._recordings_of(kinds, wait) if not each.compiled]
        launches: dict[Hashable, Callable[[], object]] = {graph: each.launches for graph, each in missing}
        launches |= self._rare(kinds)
        with self._recorder.launching():
            compilation = self._stage.start_compiling(launches)
        for _, recording in missing:
            recording.compiled = True
        return [compilation, *(found for each in self._beside for found in each.start_compiling(kinds))]

    def _rare(self, kinds: Sequence[StepKind]) -> Iterator[tuple[Graph, Callable[[], object]]]:
        """Launches of the kinds that no recording is kept of."""
        for kind in kinds if self._ends.samples else ():
            if kind.sampling:
                inputs = sampling_of(kind, kind.rows, self._stage.vocab)
                graph = self._graph_of(kind)._replace(flags=SamplingFlags.of(inputs))
                form = self._form(graph.size, graph.flags, pieces=False)
                yield graph, self._launches(*form, graph, inputs.seen, None)

    def capture(self, kinds: Sequence[StepKind], wait: Wait = None) -> None:
        """Capture steps whose kernels are compiled: others would wait for the compiler."""
        for graph, recording in self._recordings_of(kinds, wait):
            if recording.compiled:
                recording.capture()
                self._note(graph)
        for each in self._beside:
            each.capture(kinds)

    def forget(self) -> None:
        """Drop all captures, because a weight or product has been replaced."""
        self._recorder = self._new_recorder()
        for each in (self, *self._beside):
            each._recordings.clear()
            each._captured.forget()
            each._recorder = self._recorder

    def _new_recorder(self) -> Recorder | None:
        return Recorder(self._device) if self._device.type == "cuda" else None

    def _note(self, graph: Graph) -> None:
        if self._recorder is not None:
            self._captured.note(graph)

    def _recordings_of(self, kinds: Sequence[StepKind], wait: Wait) -> Iterator[tuple[Graph, Recording]]:
        mine = (kind for kind in kinds if not kind.sampling and (self.adapts or not kind.adapted))
        graphs = [self._graph_of(kind) for kind in mine if wait is not None or not kind.waits]
        if self.received is not None:
            graphs += [each._replace(observed=True) for each in graphs]
        return ((each, self._recording(each, None, wait if each.waits else None)) for each in graphs)

    def _graph_of(self, kind: StepKind) -> Graph:
        tokens = kind.rows + kind.prompt
        adapters = self._stage.adapters if kind.adapted else None
        layout = adapters and adapters.layout
        if not kind.pieces:
            filtered = SamplingFlags(kind.filtered, penalized=False, biased=False, logprobs=False)
            flags = filtered if self._ends.samples else None  # an earlier stage has one graph for both
            size = self.sizes[bisect_left(self.sizes, tokens)]
            return Graph(size, flags, kind.long, adapted=kind.adapted, layout=layout)
        size, decodes = self.piece_sizes[bisect_left(self.piece_sizes, tokens)], kind.rows > 0
        return Graph(size, None, kind.long, True, decodes, kind.waits, kind.adapted, layout)

    def _recording(self, graph: Graph, seen: SeenTokens | None, wait: Wait = None) -> Recording:
        if graph not in self._recordings:
            form = self._form(graph.size, graph.flags, pieces=graph.pieces)
            launches = self._launches(*form, graph, seen, wait)
            compile = partial(self._stage.start_compiling, {graph: launches})
            self._recordings[graph] = Recording(self._recorder, launches, compile)
        return self._recordings[graph]

    def _form(
        self, size: int, flags: SamplingFlags | None, *, pieces: bool
    ) -> tuple[StagingBuffers, MetadataBuilder]:
        key = (size, flags is not None and flags.biased, pieces)
        if key not in self._forms:
            self._forms[key] = self._new_form(*key)
        return self._forms[key]

    def _new_form(self, size: int, biased: bool, pieces: bool) -> tuple[StagingBuffers, MetadataBuilder]:
        work = self._stage.work(size, pieces=pieces, rows=len(self._tables.grid) if pieces else None)
        fields: Fields = {"rows": ((len(self._padding), size), np.dtype(np.int64))}
        if not pieces:
            fields["columns"] = ((len(COLUMNS), size), np.dtype(np.float64))
            fields["asked"] = ((size,), np.dtype(np.int32))
        fields["work"] = ((work.numbers,), np.dtype(np.int32))
        if self.received is not None:
            fields["observers"] = ((1 + self._observers(size), observers.FIELDS), np.dtype(np.int32))
        if biased:
            fields["bias_at"] = ((BIASES,), np.dtype(np.int64))
            fields["biases"] = ((BIASES,), np.dtype(np.float32))
        form = StagingBuffers(fields, size, self._mirror, max(BEHIND, self._ends.stages))
        form.on_device |= dict(zip(PADDING, form.on_device["rows"], strict=False))
        if self.received is not None:
            form.on_device["received"] = self.received[: self._observers(size)]
        if self._streams is not None:
            form.on_device["stream"] = self._streams[:size]
        return form, work

    def _fill(self, fields: Mapping[str, np.ndarray], rows: Rows, ids: np.ndarray) -> None:
        """Write rows of one token each into the buffers."""
        count, slots, starts, contexts = len(rows), rows.slots, rows.starts, rows.contexts
        blocks, offsets = np.divmod(contexts - 1, self._block_size)
        grid, *others = self._tables.grids
        places = grid[slots, blocks].astype(np.int64) * self._block_size + offsets
        numbers = fields["rows"]
        for row, values in enumerate((ids, starts, places, slots, contexts, 0)):
            numbers[row, :count] = values
        for at, grid in enumerate(others):
            places = grid[slots, blocks].astype(np.int64) * self._block_size + offsets
            numbers[len(PADDING) + PER_GROUP * at, :count] = places
        numbers[:, count:] = self._padding

    def _observers(self, tokens: int) -> int:
        """The most blocks that so many tokens fill."""
        return min(tokens, len(self._tables.grid) + tokens // self._block_size)

    def _observe(self, listed: np.ndarray, rows: Rows) -> bool:
        """Write the rows' observers. Whether there are any."""
        filled = filled_blocks(rows.lengths, rows.contexts, self._block_size)
        observers.write_observers(listed, filled, rows.slots[filled[:, 1]])
        return len(filled) > 0

    def _launches(
        self, form: StagingBuffers, work: MetadataBuilder, graph: Graph, seen: SeenTokens | None, wait: Wait
    ) -> Callable[[], tuple[Tensor, ...]]:
        fields, stage, last_ids, flags = dict(form.on_device), self._stage, self._last_ids, graph.flags
        if not graph.adapted:
            del fields["adapters"]
        if not graph.observed:
            fields.pop("observers", None)
        tables, *others = self._mirror.split(self._tables.grids[0].shape[1], 1)
        places = fields["rows"][len(PADDING) :: PER_GROUP]
        where = fields["work"], tables, fields["slots"], fields["contexts"]
        groups = list(zip(others, places, strict=True))
        metadata = work.metadata(*where, cut=graph.cut, decodes=graph.decodes, others=groups)

        def launches() -> tuple[Tensor, ...]:
            form.copy_in()
            if graph.pieces:
                found: tuple[Tensor, ...] = (stage.hidden(fields, last_ids, metadata, wait),)
            else:
                logits = stage.logits(fields, last_ids, metadata)
                found = (logits,) if flags is None else stage.sample(logits, fields, last_ids, flags, seen)
            form.copy_out()
            return found

        return launches

    def _send_table_changes(self, news: np.ndarray) -> None:
        """Send table cells written since the last step: in the buffers, or separately if they are many."""
        news[0] = -1
        cells, blocks = self._tables.unsent()
        if 0 < len(cells) <= news.shape[1]:
            news[:, : len(cells)] = cells, blocks
        elif len(cells):
            at, values = upload([cells, blocks], self._device)
            self._mirror.view(-1)[at] = values


def each_token(rows: Rows) -> Rows:
    """A row of one token for each token of these rows."""
    lengths = rows.lengths
    begins = np.cumsum(lengths) - lengths
    wide = np.repeat(rows.numbers, lengths, axis=0)
    wide[:, 2] += np.arange(len(wide)) - np.repeat(begins, lengths)
    wide[:, 3] = 1
    return Rows(wide)
