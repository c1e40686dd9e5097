"""A small model whose layers have blocks in two groups, and the same model with blocks of all layers."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.api.cache_spec import KvSchemeName
from engine.api.config import RopeSpec
from engine.attention.base import Batch
from engine.attention.torch_backend import TorchAttention
from engine.kv.store import KVStore, bits
from tests.attention.cases import make_batch
from tests.kernels.hybrids import DENSE, KEYS, SIZE, STEPS, TABLES

WINDOW, SHARE = 5, 8  # tokens, and blocks of each group
LEFT = 2 * SHARE  # a block of garbage, in place of those that have left the window
CONFIG = replace(DENSE, family="qwen3", layers=(replace(KEYS, window=WINDOW), KEYS), rope=RopeSpec(theta=1e6))
# Parts that read the same norm: they run as plain torch around the attention's kernels.
AROUND = replace(CONFIG, family="cohere", qk_norm=False, rope=RopeSpec(theta=1e6, interleaved=True))
MODELS = {"chained": CONFIG, "plain": AROUND}
GROUPS = ((1,), (0,))


def grouped_batch(batch: Batch, tables: list[list[int]]) -> Batch:
    """The same step with a second group, whose blocks are those after the first one's."""
    rows = []
    for row, table in enumerate(tables):
        count = int(batch.host_starts[row + 1] - batch.host_starts[row])
        oldest = int(batch.host_contexts[row]) - count - WINDOW + 1
        rows.append([LEFT if (at + 1) * SIZE <= oldest else SHARE + block for at, block in enumerate(table)])
    moved = np.array(rows, np.int32)
    batch.others = (
        replace(batch, tables=torch.from_numpy(moved), host_tables=moved, places=batch.places + SHARE * SIZE),
    )
    return batch


def steps(name: str, family: str, scheme: KvSchemeName) -> tuple[Tensor, Tensor, list[Tensor], list[Tensor]]:
    """The output of the fused forward over two groups, and of the plain one over one. Then both caches."""
    from engine.attention.base import attending
    from engine.attention.triton_backend import TritonAttention
    from engine.models.decoder import Decoder
    from engine.models.fused import FusedDecoder
    from engine.models.loader import random_weights

    model = Decoder(MODELS[family], torch.float32).eval()
    random_weights(model, seed=0)
    torch.manual_seed(0)
    room: dict[str, Any] = {"block_size": SIZE, "host_blocks": 0, "dtype": torch.float32, "scheme": scheme}
    cpu = torch.device("cpu")
    mine = KVStore(model.caches, device=cpu, blocks=LEFT + 1, groups=GROUPS, **room)
    theirs = KVStore(model.caches, device=cpu, blocks=SHARE, **room)
    with torch.inference_mode():
        batch = make_batch([(20, 20), (17, 17), (33, 33), (40, 40)], TABLES, SIZE)
        attend = attending(TorchAttention(), theirs.layers, batch)
        model.forward(torch.arange(len(batch.positions)) * 3 % 50, batch.positions, attend)
    pairs = list(zip(_halves(mine), ([*each.tensors()] for each in theirs.layers), strict=True))
    for ours, plain in pairs:
        for tensor, other in zip(ours, plain, strict=True):
            bits(tensor).copy_(bits(other))
    for tensor in mine.memory[0].tensors():
        if tensor.is_floating_point():
            tensor[LEFT] = torch.nan
    rows, requests = STEPS[name]
    tables = [TABLES[each] for each in requests]
    ids = torch.arange(sum(count for count, _ in rows)) * 7 % 50
    with torch.inference_mode():
        batch = make_batch(rows, tables, SIZE)
        expected = model.forward(ids, batch.positions, attending(TorchAttention(), theirs.layers, batch))
        fused, backend = FusedDecoder(model, mine.layers, TritonAttention()), TritonAttention()
        batch = grouped_batch(batch, tables)
        if name == "prompts":
            found = fused.forward(model.embedded(ids), batch.positions, batch.places, backend.prepare(batch))
        else:
            found = _replayed(fused, model.caches, batch, ids, requests, packed=scheme != "none")
        assert bool(fused.plain) == (family == "plain")
    return found, expected, *([t for side in pairs for t in side[at]] for at in (0, 1))


def _halves(store: KVStore) -> list[list[Tensor]]:
    """The tensors of each layer, of its group's blocks only."""
    return [
        [tensor[SHARE * each.group : SHARE * (each.group + 1)] for tensor in each.tensors()]
        for each in store.layers
    ]


def _replayed(
    fused: Any, specs: Any, batch: Batch, ids: Tensor, requests: list[int], *, packed: bool
) -> Tensor:
    """Run a step of a graph that has room for another token. A row of its tables has both groups."""
    from engine.attention.graph_work import GraphWork

    count, lengths = len(ids), np.diff(batch.host_starts)
    size = count if count == 1 else count + 1
    slots, [other] = np.array([4, 2, 1, 0])[requests], batch.others
    mirror = torch.zeros(size + 5, 8, dtype=torch.int32)
    mirror[slots, :3], mirror[slots, 4:7] = batch.tables[:, :3], other.tables[:, :3]
    pieces = bool(lengths.max() > 1)
    work = GraphWork(specs, size, torch.float32, torch.device("cpu"), pieces=pieces, packed=packed)
    numbers = np.full(work.numbers, 99, np.int32)
    cut = work.fill(numbers, slots, batch.host_contexts, lengths)
    slot, positions, contexts = torch.zeros(3, size, dtype=torch.int64)
    slot[:count], positions[:count] = torch.from_numpy(np.repeat(slots, lengths)), batch.positions
    contexts[:count] = batch.positions + 1
    places = torch.full((2, size), -1)
    places[0, :count], places[1, :count] = batch.places, other.places
    x = torch.full((size, fused.model.config.hidden), torch.nan)
    x[:count] = fused.model.embedded(ids)
    prepared = work.metadata(
        torch.from_numpy(numbers), mirror[:, :4], slot, contexts,
        cut=cut, decodes=bool(lengths.min() == 1), others=[(mirror[:, 4:], places[1])],
    )  # fmt: skip
    found: Tensor = fused.forward(x, positions, places[0], prepared)
    return found[:count]
