"""Small models with linear attention: the same step fused, also as in a graph, and plain."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.api.cache_spec import CacheSpec, LayerSpec, StateSpec
from engine.api.config import DecoderConfig, ExpertsSpec, LatentSpec, RopeSpec
from engine.attention.torch_backend import TorchAttention
from engine.kernels import switches
from engine.kv.store import KVStore
from tests.attention.cases import make_batch

STATE = CacheSpec.of_state(StateSpec(heads=4, key_heads=2, key_dim=16, value_dim=24, taps=4))
KEYS = LayerSpec(heads=4, kv_heads=2, key_dim=32, value_dim=32, scale=0.2)
DENSE = DecoderConfig(
    family="qwen3_5_text", dtype="float32", hidden=64, layers=(STATE, KEYS), vocab=50, max_context=128,
    mlp=64, norm_eps=1e-6, rope=RopeSpec(theta=1e6, share=0.25), tied=True, qk_norm=True,
)  # fmt: skip
TAPS = CacheSpec.of_state(StateSpec(heads=1, key_heads=1, key_dim=0, value_dim=64, taps=3))
BOTH = replace(KEYS, state=STATE.state)
MULTIPLIED = {
    "norm": "none",
    "state_out_bias": False,
    "factors": {"ssm_in": 0.8, "ssm_out": 1.3, "attention_in": 1.2, "attention_out": 0.6},
    "state_factors": (0.9, 1.1, 0.7, 1.3, 0.8),
    "mlp_factors": (0.9, 1.2),
}
EXPERTS = ExpertsSpec(count=4, chosen=2, width=32, shared=32)
SPACE = CacheSpec.of_state(StateSpec(heads=4, key_heads=2, key_dim=16, value_dim=24, taps=4))
MAMBA = replace(
    DENSE, family="bamba", layers=(SPACE, KEYS), qk_norm=False, rope=RopeSpec(theta=1e4),
    settings={"conv_bias": True, "state_bias": False, "steps": (0.0, math.inf)},
)  # fmt: skip
SCALED = replace(
    MAMBA, family="granitemoehybrid", dense=(0, 1), residual_scale=0.3, embed_scale=2.0,
    settings=MAMBA.settings | {"conv_bias": False},
)  # fmt: skip
LATENT = LayerSpec(heads=4, kv_heads=1, key_dim=46, value_dim=40, scale=0.25, latent=True)
LATENTS = replace(
    DENSE, family="deepseek_v2", layers=(LATENT, LATENT), qk_norm=False, rope=RopeSpec(theta=1e4), dense=(0,),
    latent=LatentSpec(rank=40, rotated=6, unrotated=6, value=8),
)  # fmt: skip
MODELS = {
    "dense": DENSE,
    "experts": replace(DENSE, family="qwen3_next", experts=EXPERTS),
    "mamba": MAMBA,
    "lone": replace(
        MAMBA, family="nemotron_h", layers=(SPACE, CacheSpec.of_nothing(), KEYS), dense=(1,), unrotated=(2,),
        activation="relu2", settings=MAMBA.settings | {"steps": (0.5, math.inf)},
    ),
    "lone-experts": replace(
        MAMBA, family="nemotron_h", layers=(SPACE, CacheSpec.of_nothing(), KEYS), activation="relu2",
        experts=replace(EXPERTS, normalized=True, scaling=1.5),
    ),
    "convolutions": replace(
        DENSE, family="lfm2", layers=(TAPS, KEYS), rope=RopeSpec(theta=1e6), settings={"conv_bias": False},
    ),
    "beside": replace(
        MAMBA, family="falcon_h1", layers=(BOTH, BOTH), settings=MAMBA.settings | MULTIPLIED,
    ),
    "states": replace(MAMBA, family="mamba2", layers=(SPACE, SPACE)),
    "scaled": SCALED,
    "scaled-experts": replace(SCALED, dense=(), experts=EXPERTS),
    "latents": replace(LATENTS, experts=replace(EXPERTS, groups=2, chosen_groups=1, scaling=1.5)),
    "latents-of-queries": replace(
        LATENTS, family="deepseek_v3", rope=RopeSpec(theta=1e4, interleaved=True), dense=(0, 1),
        latent=LatentSpec(rank=40, rotated=6, unrotated=10, value=12, query_rank=20),
        layers=(replace(LATENT, heads=20),) * 2,
    ),
    "normed-terms": replace(
        DENSE, family="gemma3_text", layers=(replace(KEYS, window=6), KEYS), activation="gelu_tanh",
        rope=RopeSpec(theta=1e6), local_rope=RopeSpec(theta=1e4), local=(0,), embed_scale=8.0,
    ),
    "gelu": replace(DENSE, family="gemma", layers=(KEYS,), activation="gelu_tanh", rope=RopeSpec(theta=1e4)),
    "clamped": replace(
        DENSE, family="gpt_oss", layers=(KEYS, KEYS), qk_norm=False, rope=RopeSpec(theta=1e4), qkv_bias=True,
        out_bias=True, mlp_bias=True, experts=replace(EXPERTS, shared=0),
        settings={"alpha": 1.702, "limit": 1.0},
    ),
    "biased": replace(SCALED, out_bias=True, settings=MAMBA.settings | {"state_bias": True}),
}  # fmt: skip
SIZE, BLOCKS = 16, 12
TABLES = [[0, 1, 0], [2, 0, 0], [3, 4, 0], [5, 6, 7]]
# The tokens of each row and the position after them, and of which request it is. All but the first run as in
# a graph. Rows of one request are a token and its drafts.
STEPS = {
    "prompts": ([(1, 20), (1, 1), (17, 17), (19, 40)], [0, 1, 2, 3]),
    "decodes": ([(1, 20), (1, 1), (1, 17), (1, 33)], [0, 1, 2, 3]),
    "drafts": ([(1, 20), (1, 15), (1, 16), (1, 17)], [0, 1, 1, 1]),
    "pieces": ([(1, 20), (1, 15), (1, 16), (17, 17), (19, 40)], [0, 1, 1, 2, 3]),
    "piece": ([(19, 40)], [3]),
    "one": ([(1, 20)], [0]),
}


def steps(name: str, family: str) -> tuple[Tensor, Tensor, list[Tensor], list[Tensor]]:
    """The output of the fused forward, and of the plain one; both with their caches."""
    from engine.attention.base import attending
    from engine.attention.graph_work import GraphWork
    from engine.attention.triton_backend import TritonAttention
    from engine.models.decoder import Decoder
    from engine.models.fused import FusedDecoder
    from engine.models.layers.norm import OffsetNorm
    from engine.models.loader import random_weights

    for switch in ("ONE_ROW", "WITH_BIAS", "NORMED_TERMS", "GELU"):
        setattr(switches, switch, True)  # in the tests' own process
    model = Decoder(MODELS[family], torch.float32).eval()
    random_weights(model, seed=0)
    torch.manual_seed(0)
    for parameter in model.parameters():
        if parameter.dim() < 2:
            parameter.normal_(0, 0.3)
    room: dict[str, Any] = {"blocks": BLOCKS, "block_size": SIZE, "host_blocks": 0, "dtype": torch.float32}
    mine, theirs = (KVStore(model.caches, device=torch.device("cpu"), **room).layers for _ in range(2))
    for each, same in zip(mine, theirs, strict=True):
        for tensor, other in zip(each.tensors(), same.tensors(), strict=True):
            other.copy_(tensor.normal_())
    rows, requests = STEPS[name]
    batch = make_batch(rows, [TABLES[each] for each in requests], SIZE)
    ids = torch.arange(len(batch.positions)) * 7 % 50
    with torch.inference_mode():
        expected = model.forward(ids, batch.positions, attending(TorchAttention(), theirs, batch))
        for owner in list(model.modules()):  # as on a GPU, where `finalize` does this
            for child_name, child in list(owner.named_children()):
                if isinstance(child, OffsetNorm):
                    setattr(owner, child_name, child.widened())
        backend = TritonAttention()
        fused = FusedDecoder(model, mine, backend)
        single = all(fused._takes_single(block) for block in model.blocks)
        assert single == (family not in ("beside", "normed-terms", "gelu"))
        if name == "prompts":
            found = fused.forward(model.embedded(ids), batch.positions, batch.places, backend.prepare(batch))
        else:
            found = replayed(fused, GraphWork, model.caches, batch, ids, requests)
        assert bool(fused.plain) == (family == "beside")
    return found, expected, *([t for each in side for t in each.tensors()] for side in (mine, theirs))


def replayed(
    fused: Any, work_of: Any, specs: Any, batch: Any, ids: Tensor, requests: Sequence[int]
) -> Tensor:
    """Run a step of a graph that has room for another token."""
    count, lengths = len(ids), np.diff(batch.host_starts)
    size = count if count == 1 else count + 1
    slots = np.array([4, 2, 1, 0])[requests]
    tables = torch.zeros(size + 5, 3, dtype=torch.int32)
    tables[slots] = batch.tables[:, :3]
    pieces = bool(lengths.max() > 1)
    work = work_of(specs, size, torch.float32, torch.device("cpu"), pieces=pieces)
    assert work.holds(lengths[lengths > 1], batch.host_contexts[lengths > 1])
    numbers = np.full(work.numbers, 99, np.int32)
    cut = work.fill(numbers, slots, batch.host_contexts, lengths)
    each_slot, positions, places = (torch.full((size,), fill, dtype=torch.int64) for fill in (0, 0, -1))
    each_slot[:count], positions[:count] = torch.from_numpy(np.repeat(slots, lengths)), batch.positions
    places[:count] = batch.places
    x = torch.full((size, fused.model.config.hidden), torch.nan)
    x[:count] = fused.model.embedded(ids)
    contexts = torch.zeros(size, dtype=torch.int64)
    contexts[:count] = batch.positions + 1
    where = torch.from_numpy(numbers), tables, each_slot, contexts
    prepared = work.metadata(*where, cut=cut, decodes=bool(lengths.min() == 1))
    found: Tensor = fused.forward(x, positions, places, prepared)
    return found[:count]
