"""The stage of a graph on a CPU: the model's own forward, from the numbers in the staging buffers."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from engine.attention.base import Batch
from engine.attention.torch_backend import TorchAttention
from engine.execution.cuda.arrivals import Wait
from engine.execution.cuda.sampling_fields import SamplingFlags
from engine.execution.protocol import Compilation
from engine.execution.runner import ModelRunner
from engine.models.adapters.bank import AdapterBank
from engine.models.decoder import Decoder
from engine.sampling.logprobs import read_logprobs
from engine.sampling.penalties import SeenTokens
from engine.sampling.rows import Edits, RowsView
from engine.sampling.sampler import sample
from engine.serving.engine import Engine
from tests.runner.graphs.observing import leave_for_heads, observers_in, observing


@dataclass
class Lists:
    """Attention work with two numbers a row: its context and its tokens. Other rows have 0."""

    tokens: int
    most: int | None = None  # pieces of prompts that it holds
    cut: bool = False

    @property
    def numbers(self) -> int:
        return 2 * self.tokens

    def holds(self, lengths: np.ndarray, contexts: np.ndarray) -> bool:
        return self.most is None or (lengths > 1).sum() <= self.most

    def fill(self, numbers: np.ndarray, slots: np.ndarray, contexts: np.ndarray, lengths: np.ndarray) -> bool:
        numbers[:] = 0
        numbers.reshape(2, -1)[:, : len(contexts)] = contexts, lengths
        self.cut = not self.cut  # both kinds of recording must work
        return self.cut

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
    ) -> tuple[Tensor, Tensor, Sequence[tuple[Tensor, Tensor]]]:
        return numbers.view(2, -1), tables, others


class PlainStage:
    """The model's own forward and the torch backend, with no input but the staging buffers."""

    longest = 0  # launching a large step is no wait

    def __init__(self, runner: ModelRunner) -> None:
        self.runner, self.attention = runner, TorchAttention()
        self.vocab = runner.model.config.vocab
        self.adapters: AdapterBank | None = runner.adapters
        self.adapted: list[int] = []  # the size of each forward with adapters
        self.sizes: list[int] = []  # of each forward of decodes
        self.pieces: list[int] = []  # of each forward with pieces of prompts
        self.most: int | None = None  # pieces of prompts in a step
        self.flags: list[SamplingFlags] = []  # of each call of `sample`
        self.mirror = torch.empty(0)

    def work(self, tokens: int, *, pieces: bool = False, rows: int | None = None) -> Lists:
        return Lists(tokens, self.most)

    def start_compiling(self, steps: Mapping[Hashable, Callable[[], object]]) -> Compilation:
        raise AssertionError("no kernel is compiled on a CPU")

    def logits(self, fields: Mapping[str, Tensor], last_ids: Tensor, metadata: Any) -> Tensor:
        self.sizes.append(len(fields["ids"]))
        hidden, model = self._forward(fields, last_ids, metadata), self.runner.model
        leave_for_heads(model, hidden, self.runner._drafts.states)
        return hidden if getattr(model.config, "after", 0) else model.logits(hidden)

    def hidden(self, fields: Mapping[str, Tensor], last_ids: Tensor, metadata: Any, wait: Wait) -> Tensor:
        self.pieces.append(len(fields["ids"]))
        return leave_for_heads(self.runner.model, self._forward(fields, last_ids, metadata, wait))

    def _forward(
        self, fields: Mapping[str, Tensor], last_ids: Tensor, metadata: Any, wait: Wait = None
    ) -> Tensor:
        (contexts, lengths), self.mirror, others = metadata
        rows, tokens = int((contexts > 0).sum()), int(lengths.sum())
        whole = zip(contexts[:rows].tolist(), lengths[:rows].tolist(), strict=True)
        each = [end - left for end, length in whole for left in reversed(range(length))]
        assert fields["contexts"].tolist() == each + [0] * (len(fields["ids"]) - tokens)
        assert (fields["places"][tokens:] == -1).all()
        ids, slots = fields["ids"], fields["slots"]
        starts = torch.zeros(rows + 1, dtype=torch.int32)
        starts[1:] = lengths[:rows].cumsum(0)
        tables = self.mirror[slots[starts[:-1]]]
        batch = Batch(
            ids=torch.where(ids < 0, last_ids[slots], ids),
            positions=fields["positions"],
            places=fields["places"][:tokens],
            starts=starts,
            contexts=contexts[:rows],
            tables=tables,
            single=int((lengths == 1).sum()),
            block_size=self.runner.store.layers[0].block_size,
            host_starts=starts.numpy(),
            host_contexts=contexts[:rows].numpy(),
            host_tables=tables.numpy(),
        )
        steps, layers = [self.attention.prepare(batch)], self.runner.store.layers
        for mirror, places in others:  # of the other groups of layers
            rows_of = mirror[slots[starts[:-1]]]
            assert (places[tokens:] == -1).all()
            group = replace(batch, tables=rows_of, host_tables=rows_of.numpy(), places=places[:tokens])
            steps.append(self.attention.prepare(group))

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            if wait is not None:
                wait(layer)
            out = torch.full_like(q, torch.nan)  # padding may hold anything
            step, given = steps[layers[layer].group], (q[:tokens], k[:tokens], v[:tokens])
            out[:tokens] = self.attention.attend(*given, layers[layer], step)
            return out

        attend = observing(attend, observers_in(fields), layers, self.mirror)
        model, stream, adapters = self.runner.model, fields.get("stream"), None
        if (of_tokens := fields.get("adapters")) is not None:
            self.adapted.append(len(ids))
            numbers = of_tokens.numpy().copy()
            adapters = self.runner.adapters.of_step(numbers, np.ones_like(numbers), upload_here)
        if stream is None and adapters is None:
            return model.forward(batch.ids, batch.positions, attend)
        if stream is not None:  # from an earlier stage of a pipeline
            stream = stream.clone()
        decoder = cast(Decoder, model)
        return decoder.forward(batch.ids, batch.positions, attend, adapters=adapters, stream=stream)

    def sample(
        self,
        logits: Tensor,
        fields: Mapping[str, Tensor],
        last_ids: Tensor,
        flags: SamplingFlags,
        seen: SeenTokens | None,
    ) -> tuple[Tensor, ...]:
        slots, rows = fields["slots"], int((fields["places"] >= 0).sum())  # padding has no slot
        self.flags.append(flags)
        view = RowsView(
            np.ascontiguousarray(fields["columns"].numpy().T),
            fields["columns"],
            slots if seen else None,
            seen,
            edits(fields, logits.shape[1]) if flags.biased else None,
            tuple((row, n) for row, n in enumerate(fields["asked"].tolist()) if n >= 0),
        ).part(0, rows)
        sampled = sample(logits[:rows], view)
        last_ids[slots[:rows]] = sampled.ids
        fields["tokens"][:rows] = sampled.ids.masked_fill(sampled.bad, -1)
        if seen is not None:
            strengths = view.columns[4:7] != torch.tensor([[1.0], [0.0], [0.0]])
            counted = strengths.any(0) & ~sampled.bad
            seen.add(slots[:rows][counted], sampled.ids[counted])
        if not flags.logprobs:
            return ()
        asked = [(row, min(20, logits.shape[1])) for row in range(rows)]
        found = read_logprobs(logits[:rows], sampled.ids, tuple(asked))
        return found.chosen, found.ranks, found.ids, found.values


def upload_here(arrays: Sequence[np.ndarray]) -> list[Tensor]:
    return [torch.from_numpy(each) for each in arrays]


def edits(fields: Mapping[str, Tensor], vocab: int) -> Edits:
    at = fields["bias_at"]
    used = at >= 0
    return Edits(at[used] // vocab, at[used] % vocab, fields["biases"][used])


def with_staging(engine: Engine) -> Engine:
    """Return the engine with its decode steps running through staging buffers."""
    staged(engine)
    return engine


def staged(engine: Engine) -> PlainStage:
    runner = engine.runner
    assert isinstance(runner, ModelRunner)
    stage = PlainStage(runner)
    runner.use_stages(None, stage)
    assert runner.graphs
    return stage
