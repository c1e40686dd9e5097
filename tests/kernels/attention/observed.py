"""Steps of a small decoder that sum up attention by block, launched one by one and as in a graph."""

from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.api.cache_spec import KvSchemeName, LayerSpec
from engine.api.config import DecoderConfig, RopeSpec
from engine.attention.base import attending
from engine.attention.torch_backend import TorchAttention
from engine.execution.block_scores import FilledBlock, StepScores
from engine.execution.cuda.graphs import DecodeSteps
from engine.kv.eviction import filled_blocks
from engine.kv.store import KVStore
from engine.kv.tables import TableDelta, TableMirror
from engine.models.decoder import Decoder
from engine.models.loader import random_weights
from engine.scheduling.step import Rows, StepRow
from tests.attention.cases import make_batch

SPEC = LayerSpec(heads=4, kv_heads=2, key_dim=16, value_dim=16, scale=0.25)
CONFIG = DecoderConfig(
    family="qwen3", dtype="float32", hidden=64, layers=(SPEC,) * 2, vocab=50, max_context=128, mlp=64,
    norm_eps=1e-6, rope=RopeSpec(theta=1e6), tied=True, qk_norm=True,
)  # fmt: skip
SIZE, WIDTH, SLOTS, DTYPE = 16, 8, 6, torch.float32


def summed(
    rows: list[tuple[int, int]], kv: KvSchemeName, device: str = "cpu"
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Of each observer: what blocks receive by torch, by kernels, and by a graph's launches."""
    from engine.attention.triton_backend import TritonAttention
    from engine.execution.cuda.stage import GpuStage

    where = torch.device(device)
    model = Decoder(CONFIG, DTYPE).eval()
    random_weights(model, seed=0)
    rng, order = torch.Generator().manual_seed(3), np.random.default_rng(0).permutation(len(rows) * WIDTH)
    tables = order.reshape(-1, WIDTH).astype(np.int32)
    room: dict[str, Any] = {"blocks": order.size, "block_size": SIZE, "host_blocks": 0, "dtype": DTYPE}
    here, there = (
        KVStore(CONFIG.layers, device=each, scheme=kv, **room) for each in (torch.device("cpu"), where)
    )
    for layer in here.layers:
        write_random(layer, tables, rows, rng)
    for mine, theirs in zip(here.layers, there.layers, strict=True):
        for one, other in zip(mine.tensors(), theirs.tensors(), strict=True):
            other.view(torch.uint8).copy_(one.view(torch.uint8))

    stage = GpuStage(deepcopy(model).to(where), there, TritonAttention())

    batch = make_batch(rows, tables.tolist(), SIZE)
    batch.ids.copy_(torch.arange(len(batch.ids)) * 7 % 50)
    listed = filled_blocks(np.diff(batch.host_starts), batch.host_contexts, SIZE)
    filled = [FilledBlock(0, 0, token, batch.tables[row, :count]) for token, row, count in listed.tolist()]
    with torch.inference_mode():
        plain = StepScores("attention", here.layers, filled, listed, WIDTH)
        attend = attending(TorchAttention(), here.layers, batch)
        model.forward(batch.ids, batch.positions, plain.watching(attend))

        scores = StepScores("attention", there.layers, filled, listed, WIDTH)
        for name in ("ids", "positions", "places", "starts", "contexts", "tables"):
            setattr(batch, name, getattr(batch, name).to(where))
        batch.observers = scores.observing()
        stage.forward(batch)
        scores.finish(None)
        replayed = StepScores("attention", there.layers, filled, listed, WIDTH)
        replayed.finish(replay(stage, rows, tables, batch.ids.cpu().numpy(), where))
        if device != "cpu":
            torch.cuda.synchronize()
    return plain.totals, scores.totals, replayed.totals


def write_random(layer: Any, tables: np.ndarray, rows: list[tuple[int, int]], rng: torch.Generator) -> None:
    """Earlier tokens of each row, by the torch backend."""
    spec, backend = layer.spec, TorchAttention()
    for (count, context), table in zip(rows, tables.tolist(), strict=True):
        if (before := context - count) > 0:
            sizes = (spec.heads, spec.key_dim), (spec.kv_heads, spec.key_dim), (spec.kv_heads, spec.value_dim)
            q, k, v = (torch.randn(before, *size, generator=rng) for size in sizes)
            batch = make_batch([(before, before)], [table], SIZE)
            backend.attend(q, k, v, layer, backend.prepare(batch))


def replay(
    stage: Any, rows: list[tuple[int, int]], tables: np.ndarray, ids: np.ndarray, device: torch.device
) -> Tensor | None:
    """The totals of the last of equal steps. On a GPU, the first one is not captured."""
    slots = np.random.default_rng(1).permutation(SLOTS)[: len(rows)]
    mirror = TableMirror(SLOTS, WIDTH)
    cells = (slots[:, None] * WIDTH + np.arange(WIDTH)).ravel()
    mirror.apply(TableDelta(cells.astype(np.int64), tables.ravel()))
    last_ids = torch.zeros(SLOTS + 1, dtype=torch.int64, device=device)
    steps = DecodeSteps(stage, tables=mirror, block_size=SIZE, last_ids=last_ids, observed=WIDTH)
    given = [
        StepRow(0, slot, context - count, count, samples=True)
        for (count, context), slot in zip(rows, slots.tolist(), strict=True)
    ]
    run = steps.hidden if any(count > 1 for count, _ in rows) else steps.logits
    for _ in range(2 if device.type == "cpu" else 3):
        assert run(Rows.of(given), ids) is not None
    assert steps.received is not None
    return steps.received
