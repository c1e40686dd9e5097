"""Runs small models as a GPU does; in a file of its own, since the interpreter's process imports it."""

import shutil
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import torch
from torch import Tensor

TAPS = (0, 1, 2)


def taps_of(rows: int) -> tuple[dict[int, Tensor], ...]:
    """What the layers of a model read: in its plain forward, in the fused one and in a step of a graph."""
    from engine.api.cache_spec import LayerSpec
    from engine.api.config import DecoderConfig, RopeSpec
    from engine.attention.base import attending
    from engine.attention.graph_work import GraphWork
    from engine.attention.torch_backend import TorchAttention
    from engine.attention.triton_backend import TritonAttention
    from engine.kv.store import KVStore
    from engine.models.decoder import Decoder
    from engine.models.fused import FusedDecoder
    from engine.models.loader import random_weights
    from tests.attention.cases import make_batch
    from tests.kernels.hybrids import replayed

    spec = LayerSpec(heads=2, kv_heads=1, key_dim=16, value_dim=16, scale=0.25)
    plain: dict[str, Any] = {
        "family": "llama", "dtype": "float32", "hidden": 32, "layers": (spec,) * 3, "vocab": 50,
        "max_context": 64, "mlp": 48, "norm_eps": 1e-6, "rope": RopeSpec(theta=1e4), "tied": True,
    }  # fmt: skip
    model = Decoder(DecoderConfig(**plain), torch.float32).eval()
    random_weights(model, seed=0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.3)
    room: dict[str, Any] = {"blocks": 8, "block_size": 16, "host_blocks": 0, "dtype": torch.float32}
    stores = [KVStore(model.caches, device=torch.device("cpu"), **room).layers for _ in range(3)]
    requests = list(range(rows))
    batch = make_batch([(1, 1)] * rows, [[each + 1, 0, 0] for each in requests], 16)
    ids = torch.arange(rows) * 7 + 3
    model.taps = dict.fromkeys(TAPS)
    with torch.inference_mode():
        model.forward(ids, batch.positions, attending(TorchAttention(), stores[0], batch))
        expected = dict(model.taps)
        fused = FusedDecoder(model, stores[1], TritonAttention())
        fused.forward(model.embedded(ids), batch.positions, batch.places, TritonAttention().prepare(batch))
        launched = dict(model.taps)
        replayed(
            FusedDecoder(model, stores[2], TritonAttention()), GraphWork, model.caches, batch, ids, requests
        )
    found = cast(dict[int, Tensor], model.taps)
    padded = {layer: read[:rows].clone() for layer, read in found.items()}
    return cast(dict[int, Tensor], expected), cast(dict[int, Tensor], launched), padded


def drafts_of(folder: Path) -> list[tuple[list[list[int]], list[tuple[int, tuple[int, ...]]]]]:
    """Two replies with a draft model, and its drafts: by torch, and by kernels with the buffers of graphs."""
    from engine.attention.triton_backend import TritonAttention
    from engine.execution.cuda.drafts import DraftReplays
    from engine.execution.cuda.stage import GpuStage
    from engine.execution.draft.drafting import SmallModel
    from engine.execution.runner import ModelRunner
    from tests.runner.rows.test_speculation import LETTERS, always_draft
    from tests.runner.small import GREEDY, ask, drain, engine_on, make

    for name, each in (("llama", folder / "model"), ("qwen2", folder / "small")):
        each.mkdir()
        make(name, each)
    shutil.copytree(folder / "small", folder / "model" / "draft")
    params = GREEDY.changed(max_tokens=9, speculate="draft", draft_tokens=3, logit_bias=LETTERS)
    found = []
    for by_kernels in (False, True):
        seen: list[tuple[int, tuple[int, ...]]] = []
        engine = always_draft(engine_on(folder / "model", max_running=4, prefix_cache=False))
        runner = engine.runner
        assert isinstance(runner, ModelRunner)
        if by_kernels:
            runner.use_stages(None, GpuStage(runner.model, runner.store, TritonAttention()))
            assert runner._steps is not None
            for small in runner._drafts.small:
                stage = GpuStage(small.model, small.store, TritonAttention())
                small.replays = DraftReplays(stage, runner._steps.beside(stage), runner._sampling_state)
        observe = SmallModel.observe

        def noted(small: Any, row: Any, drafts: Any, observe: Any = observe, seen: Any = seen) -> None:
            seen.append((row.start, drafts))
            observe(small, row, drafts)

        with patch.object(SmallModel, "observe", noted):
            outputs = [ask(engine, [1, *range(40, 48 + number)], params)[1] for number in range(2)]
            drain(engine)
        found.append(([each.reply for each in outputs], sorted(seen)))
    return found
