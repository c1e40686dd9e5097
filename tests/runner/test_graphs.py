"""Decode steps through forms, carried out at once on a CPU: bit for bit what the plain runner says."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from engine.attention.base import Batch
from engine.attention.torch_backend import TorchAttention
from engine.core import Engine
from engine.params import SamplingParams
from engine.runner.graphs import DecodeSteps, Draws
from engine.runner.runner import ModelRunner
from engine.sampling.rows import RowsView
from engine.sampling.sampler import sample
from tests.runner.small import alone, ask, drain, engine_on, turn
from tests.runner.test_company import Workload, assert_nothing_changes, engine_for, workloads
from tests.runner.test_transformers import PROMPT, WAYS, assert_as_in_transformers


@dataclass
class Lists:
    """Work of attention that fills one number a row: its context. Rows beyond the step's hold none."""

    numbers: int
    cut: bool = False

    def fill(self, numbers: np.ndarray, slots: np.ndarray, contexts: np.ndarray) -> bool:
        numbers[:] = 0
        numbers[: len(contexts)] = contexts
        self.cut = not self.cut  # either kind of recording must do
        return self.cut

    def prepared(self, numbers: Tensor, tables: Tensor, *, cut: bool) -> tuple[Tensor, Tensor]:
        return numbers, tables


class PlainStage:
    """The model's own forward and the torch back end, from nothing but what a form holds."""

    def __init__(self, runner: ModelRunner) -> None:
        self.runner, self.attention = runner, TorchAttention()

    def work(self, rows: int) -> Lists:
        return Lists(rows)

    def logits(self, fields: Mapping[str, Tensor], last_ids: Tensor, prepared: Any) -> Tensor:
        contexts, mirror = prepared
        rows = int((contexts > 0).sum())
        assert (fields["places"][rows:] == -1).all()
        ids, slots = fields["ids"], fields["slots"]
        tables = mirror[slots[:rows]]
        starts = torch.arange(rows + 1, dtype=torch.int32)
        batch = Batch(
            ids=torch.where(ids < 0, last_ids[slots], ids),
            positions=fields["positions"],
            places=fields["places"][:rows],
            starts=starts,
            contexts=contexts[:rows],
            tables=tables,
            single=rows,
            block_size=self.runner.store.layers[0].block_size,
            host_starts=starts.numpy(),
            host_contexts=contexts[:rows].numpy(),
            host_tables=tables.numpy(),
        )
        step, layers = self.attention.prepare(batch), self.runner.store.layers

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            out = torch.full_like(q, torch.nan)  # padding may say anything
            out[:rows] = self.attention.attend(q[:rows], k[:rows], v[:rows], layers[layer], step)
            return out

        return self.runner.model.logits(self.runner.model.forward(batch.ids, batch.positions, attend))

    def draw(self, logits: Tensor, fields: Mapping[str, Tensor], last_ids: Tensor, *, filtered: bool) -> None:
        host = np.ascontiguousarray(fields["columns"].numpy().T)
        sampled = sample(logits, RowsView(host, fields["columns"]))
        last_ids[fields["slots"]] = sampled.ids
        fields["tokens"].copy_(sampled.ids.masked_fill(sampled.bad, -1))


def in_forms(engine: Engine) -> Engine:
    """The engine with its decode steps going through forms."""
    runner = engine.runner
    assert isinstance(runner, ModelRunner)
    runner._steps = DecodeSteps(
        PlainStage(runner),
        requests=engine.scheduler.requests,
        tables=engine.scheduler.tables,
        block_size=engine.scheduler.pool.block_size,
        last_ids=runner._last_ids,
    )
    runner.graphs = True
    return engine


@settings(max_examples=15)
@given(work=workloads)
def test_company_changes_nothing(llama: Path, work: Workload) -> None:
    assert_nothing_changes(in_forms(engine_for(llama, work)), llama, work)


@pytest.mark.parametrize(("name", "depth"), [("llama", 0), ("mistral", 1)])  # a form knows no families
@pytest.mark.parametrize("way", WAYS)
def test_logits_are_those_of_transformers(
    checkpoint: Callable[[str], tuple[Path, Any]], way: str, name: str, depth: int
) -> None:
    folder, theirs = checkpoint(name)
    run, config = WAYS[way]
    assert_as_in_transformers(theirs, PROMPT, run(in_forms(engine_on(folder, depth=depth, **config))))


@pytest.mark.parametrize("depth", [0, 1])
def test_rows_that_numbers_describe_join_and_leave(llama: Path, depth: int) -> None:
    """Of three or five rows some are padding; the tokens are those of each request alone."""
    kinds = ({}, {"top_k": 5}, {"top_p": 0.7}, {"min_p": 0.1}, {"temperature": 0.0})
    asked = [
        SamplingParams(**{"temperature": 0.9, "seed": 7, "max_tokens": 30, "ignore_eos": True} | kind)
        for kind in kinds
    ]
    engine = in_forms(engine_on(llama, depth=depth, max_running=7))
    heard = []
    for number, params in enumerate(asked):
        prompt = [1, *range(40, 55 + number)]
        heard.append((prompt, params, ask(engine, prompt, params)[1]))
        for _ in range(4):
            turn(engine)
    drain(engine)
    steps = engine.runner._steps
    assert {size for size, _, _ in steps._recordings} >= {1, 2, 4}
    assert {draws for _, draws, _ in steps._recordings} == {Draws.PLAIN, Draws.FILTERED}
    for prompt, params, said in heard:
        assert said.reply == alone(llama, prompt, params).reply
    assert (
        np.array_equal(steps._mirror.numpy()[:5], engine.scheduler.tables.grid[:5]) or steps._tables.written
    )


def test_recordings_may_be_forgotten(llama: Path) -> None:
    engine = in_forms(engine_on(llama))
    _, heard = ask(engine, PROMPT)
    for _ in range(5):
        turn(engine)
    engine.runner._steps.forget()
    drain(engine)
    assert heard.reply == alone(llama, PROMPT).reply
