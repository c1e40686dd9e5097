"""Random batches over a cache in four bits, and a small decoder over one."""

import numpy as np
import torch
from torch import Tensor

from engine.api.cache_spec import LayerSpec
from engine.attention.torch_backend import TorchAttention
from engine.kv.store import KVStore
from tests.attention.cases import Case, make_batch


def case_of(
    spec: LayerSpec, rows: list[tuple[int, int]], *, block_size: int = 16, dtype: torch.dtype, seed: int = 0
) -> Case:
    """Earlier tokens are written by the torch backend, over the bytes of other requests."""
    rng = torch.Generator().manual_seed(seed)
    needed = [-(-context // block_size) for _, context in rows]
    order = np.random.default_rng(seed).permutation(sum(needed) + 2)
    tables = [part.tolist() for part in np.split(order[: sum(needed)], np.cumsum(needed)[:-1])]
    store = KVStore(
        [spec], blocks=sum(needed) + 2, block_size=block_size, host_blocks=0, dtype=dtype,
        device=torch.device("cpu"), scheme="int4",
    )  # fmt: skip
    layer = store.layers[0]
    for tensor in layer.tensors():
        flat = tensor.view(-1).view(torch.uint8)
        flat.copy_(torch.randint(0, 256, flat.shape, dtype=torch.uint8, generator=rng))

    def numbers(tokens: int) -> tuple[Tensor, Tensor, Tensor]:
        sizes = (spec.heads, spec.key_dim), (spec.kv_heads, spec.key_dim), (spec.kv_heads, spec.value_dim)
        q, k, v = (torch.randn(tokens, *size, generator=rng) for size in sizes)
        k[..., 1] = k[..., 1] * 8 + 20  # a channel as other models have it
        return (q / 4).to(dtype), k.to(dtype), v.to(dtype)

    backend = TorchAttention()
    for (count, context), table in zip(rows, tables, strict=True):
        if context > count:
            earlier = make_batch([(context - count, context - count)], [table], block_size)
            backend.attend(*numbers(context - count), layer, backend.prepare(earlier))
    fresh = numbers(sum(count for count, _ in rows))
    return Case(make_batch(rows, tables, block_size), layer, *fresh)


def fused_and_plain(rows: list[tuple[int, int]]) -> tuple[Tensor, Tensor, list[Tensor], list[Tensor]]:
    """A small decoder's fused forward, and its plain one over the torch backend; both with their caches."""
    from engine.api.config import DecoderConfig, RopeSpec
    from engine.attention.base import attending
    from engine.attention.triton_backend import TritonAttention
    from engine.models.decoder import Decoder
    from engine.models.fused import FusedDecoder
    from engine.models.loader import random_weights

    spec = LayerSpec(heads=4, kv_heads=2, key_dim=32, value_dim=32, scale=0.2)
    config = DecoderConfig(
        family="qwen3", dtype="float32", hidden=64, layers=(spec,) * 2, vocab=50, max_context=128, mlp=64,
        norm_eps=1e-6, rope=RopeSpec(theta=1e6), tied=True, qk_norm=True,
    )  # fmt: skip
    model = Decoder(config, torch.float32).eval()
    random_weights(model, seed=0)
    case = case_of(spec, rows, dtype=torch.float32)
    mine, theirs = ([case.copy().layer for _ in config.layers] for _ in range(2))
    batch = case.batch
    ids = torch.arange(len(batch.positions)) * 7 % 50
    with torch.inference_mode():
        expected = model.forward(ids, batch.positions, attending(TorchAttention(), theirs, batch))
        backend = TritonAttention()
        fused = FusedDecoder(model, mine, backend)
        x = model.embedded(ids)
        got = fused.forward(x, batch.positions, batch.places, backend.prepare(batch))
    return got, expected, *([t for each in side for t in each.tensors()] for side in (mine, theirs))
