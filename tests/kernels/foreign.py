"""A small model that transformers runs: its steps with our attention kernels, and plain."""

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.api.config import ModelPlace
from engine.attention.torch_backend import TorchAttention
from engine.kv.store import KVStore
from tests.attention.cases import make_batch
from tests.kernels.hybrids import BLOCKS, SIZE, STEPS, TABLES
from tests.models.tiny import plain_attend

SHAPE: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "initializer_range": 0.15, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
SLOTS = np.array([4, 2, 1, 0])


def foreign(model_type: str, quantization: str = "none") -> Any:
    from engine.models.registry import load_model

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(SHAPE | {"model_type": model_type}))
        place = ModelPlace(model_type, Path(folder))
        return load_model(place, dummy=True, dtype="float32", quantization=quantization)


def steps(name: str, model_type: str) -> tuple[Tensor, Tensor]:
    """The logits of a step as a GPU runs it, as in a graph where it can be, and of the plain forward."""
    from engine.attention.base import attending
    from engine.attention.triton_backend import TritonAttention
    from engine.execution.cuda.stage import GpuStage

    model = foreign(model_type)
    room: dict[str, Any] = {"blocks": BLOCKS, "block_size": SIZE, "host_blocks": 0, "dtype": torch.float32}
    mine, theirs = (KVStore(model.config.layers, device=torch.device("cpu"), **room) for _ in range(2))
    for each, same in zip(mine.layers, theirs.layers, strict=True):
        for tensor, other in zip(each.tensors(), same.tensors(), strict=True):
            other.copy_(tensor.normal_())
    rows, requests = STEPS[name]
    batch = make_batch(rows, [TABLES[each] for each in requests], SIZE)
    batch.ids.copy_(torch.arange(len(batch.positions)) * 7 % 50)
    stage = GpuStage(model, mine, TritonAttention())
    with torch.inference_mode():
        attend = attending(TorchAttention(), theirs.layers, batch)
        expected = model.logits(model.forward(batch.ids, batch.positions, attend))
        if name == "prompts":
            return stage.head(stage.forward(batch)), expected
        return replayed(stage, batch, requests), expected


def replayed(stage: Any, batch: Any, requests: list[int]) -> Tensor:
    """Run a step of a graph with room for another token. Half of the ids are only on the device."""
    count, lengths = len(batch.ids), np.diff(batch.host_starts)
    slots, size, pieces = SLOTS[requests], count + 1, bool(lengths.max() > 1)
    tables, last_ids = torch.zeros(size + 5, 3, dtype=torch.int32), torch.zeros(size + 6, dtype=torch.int64)
    tables[slots] = batch.tables[:, :3]
    work = stage.work(size, pieces=pieces)
    numbers = np.full(work.numbers, 99, np.int32)
    cut = work.fill(numbers, slots, batch.host_contexts, lengths)
    names = ("ids", "positions", "places", "slots", "contexts")
    fields = {name: torch.full((size,), -1 if name == "places" else 0) for name in names}
    for name in ("ids", "positions", "places"):
        fields[name][:count] = getattr(batch, name)
    fields["slots"][:count] = torch.from_numpy(np.repeat(slots, lengths))
    fields["contexts"][:count] = batch.positions + 1
    if not pieces and len({*requests}) == len(requests):
        last_ids[slots] = batch.ids
        fields["ids"][: count // 2] = -1
    where = torch.from_numpy(numbers), tables, fields["slots"], fields["contexts"]
    metadata = work.metadata(*where, cut=cut, decodes=bool(lengths.min() == 1))
    if pieces:
        found: Tensor = stage.head(stage.hidden(fields, last_ids, metadata, None))
    else:
        found = stage.logits(fields, last_ids, metadata)
    return found[:count]


def tried(model_type: str) -> tuple[str, Tensor, Tensor]:
    """What the trial of a capture says, its last logits, and those of the plain forward."""
    from contextlib import nullcontext

    from engine.attention.triton_backend import TritonAttention
    from engine.execution.cuda.foreign import TrialInputs, why_not_captured
    from engine.execution.cuda.stage import GpuStage

    model, device = foreign(model_type), torch.device("cpu")
    room: dict[str, Any] = {"blocks": BLOCKS, "block_size": SIZE, "host_blocks": 0, "dtype": torch.float32}
    store = KVStore(model.config.layers, device=device, **room)
    stage = GpuStage(model, store, TritonAttention())
    inputs, seen = TrialInputs(stage, store, device, model.config.max_context), list[tuple[Tensor, Tensor]]()

    def launches() -> tuple[Tensor, ...]:
        seen.append((inputs.fields["ids"].clone(), inputs.fields["positions"].clone()))
        return (stage.logits(inputs.fields, inputs.last_ids, inputs.metadata),)

    problem = why_not_captured(launches, launches, inputs.fill, nullcontext())
    ids, positions = (torch.stack([seen[0][at], seen[-1][at]], 1).flatten() for at in (0, 1))
    with torch.inference_mode():
        found = launches()[0]
        attend = plain_attend(model.config.layers, [2] * len(found))
        return problem, found, model.logits(model.forward(ids, positions, attend))[1::2]
