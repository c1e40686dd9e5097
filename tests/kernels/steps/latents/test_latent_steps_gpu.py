"""Models that cache latents on a GPU: the fused forward against the plain one, and whole engines."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.api.cache_spec import LayerSpec
from engine.api.config import DecoderConfig, EngineConfig, LatentSpec, RopeSpec
from engine.api.params import SamplingParams
from engine.attention.base import attending
from engine.attention.torch_backend import TorchAttention
from engine.attention.triton_backend import TritonAttention
from engine.models.decoder import Decoder
from engine.models.loader import random_weights
from engine.start import start
from tests.kernels.cases import make_long_case
from tests.kernels.latents import layer_of
from tests.kernels.steps.test_stage_gpu import replies
from tests.runner.small import make

pytestmark = pytest.mark.cuda
GPU = torch.device("cuda")
SPEC = LayerSpec(heads=16, kv_heads=1, key_dim=576, value_dim=512, scale=192**-0.5, latent=True)
LITE = DecoderConfig(  # the attention of DeepSeek-V2-Lite
    family="deepseek_v2", dtype="bfloat16", hidden=2048, layers=(SPEC,) * 3, vocab=5000, max_context=9000,
    mlp=3072, norm_eps=1e-6, rope=RopeSpec(theta=1e4, interleaved=True), tied=True, dense=(0, 1, 2),
    latent=LatentSpec(rank=512, rotated=64, unrotated=128, value=128),
)  # fmt: skip
WIDE = replace(  # of DeepSeek-V3
    LITE, family="deepseek_v3", layers=(replace(SPEC, heads=128),) * 2, dense=(0, 1),
    latent=LatentSpec(rank=512, rotated=64, unrotated=128, value=128, query_rank=1536),
)  # fmt: skip


@pytest.mark.parametrize("config", [LITE, WIDE], ids=["16", "128"])
@pytest.mark.parametrize("rows", [1, 2, 8, 17, 32, 64, 130])
def test_the_fused_forward_equals_the_decoder(rows: int, config: DecoderConfig) -> None:
    """With prompts beside 17 and 64 rows: one that reads keys and values, and one that does not."""
    from engine.models.fused import FusedDecoder

    with GPU:
        model = Decoder(config, torch.bfloat16).eval()
    random_weights(model, seed=0)
    lengths = [(1, 40 + 613 * n % 8000) for n in range(rows)] + {17: [(30, 200)], 64: [(500, 600)]}.get(
        rows, []
    )
    case = make_long_case(config.layers[0], lengths, block_size=16, dtype=torch.bfloat16, device=GPU)
    keys, backend, batch = case.layer.keys.nan_to_num(0.0), TritonAttention(), case.batch
    mine, theirs = ([layer_of(spec, keys.clone()) for spec in config.layers] for _ in range(2))
    ids = torch.arange(len(batch.positions), device=GPU) * 7 % config.vocab
    with torch.inference_mode():
        expected = model.forward(ids, batch.positions, attending(TorchAttention(), theirs, batch))
        fused = FusedDecoder(model, mine, backend)
        found = fused.forward(model.embedded(ids), batch.positions, batch.places, backend.prepare(batch))
    assert not fused.plain
    error = (found.float() - expected.float()).norm(dim=1) / expected.float().norm(dim=1)
    assert error.max() < 3e-2, f"relative error {error.max():.1e} at token {error.argmax()}"
    for ours, plain in zip(mine, theirs, strict=True):
        assert (ours.keys.float() - plain.keys.float()).norm() < 2e-2 * plain.keys.float().norm()


@pytest.mark.parametrize("depth", [0, 1])
def test_replies_equal_those_of_the_torch_backend(tmp_path: Path, depth: int) -> None:
    """Greedy, in float32 and a small cache; rows join, leave and are preempted. Decodes run in graphs."""
    make("deepseek_v3", tmp_path)
    found = []
    for attention in ("torch", "auto"):
        config: dict[str, Any] = {"blocks": 24, "host_blocks": 8, "max_running": 9, "max_step_tokens": 64}
        engine = start(
            EngineConfig(
                model=str(tmp_path), device="cuda", attention=attention, depth=depth, seed=0, **config
            )
        )
        params = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
        found.append(replies(engine, 3, lambda number, params=params: params))  # type: ignore[misc]
        assert engine.runner.attention.name == ("triton" if attention == "auto" else "torch")
    same = sum(a == b for a, b in zip(*found, strict=True))
    assert same >= 19, f"{same} of 20 replies are the same"  # one may depend on the last bit of a number
