"""The kernels of models that cache latents, compiled without a GPU; see test_compiles.py."""

from dataclasses import replace

import pytest

from engine.api.cache_spec import LayerSpec
from engine.api.config import DecoderConfig, ExpertsSpec, LatentSpec, RopeSpec
from engine.kernels import switches
from tests.cases import soak
from tests.kernels.steps.test_compiles import SMALL, compiled, decode, pieces, prompts

pytest.importorskip("triton", reason="no Triton here")

__all__ = ["compiled"]  # a fixture

LATENT = LayerSpec(heads=16, kv_heads=1, key_dim=576, value_dim=512, scale=0.1, latent=True)
LATENTS = replace(  # the shape of DeepSeek-V2-Lite
    SMALL, family="deepseek_v2", hidden=2048, layers=(LATENT, LATENT), mlp=10944, dense=(0,), qk_norm=False,
    tied=False, rope=RopeSpec(theta=1e4, interleaved=True),
    latent=LatentSpec(rank=512, rotated=64, unrotated=128, value=128),
    experts=ExpertsSpec(count=64, chosen=6, width=1408, shared=2816),
)  # fmt: skip
LATENTS_OF_QUERIES = replace(  # of DeepSeek-V3, with fewer experts
    LATENTS, family="deepseek_v3", hidden=7168, layers=(replace(LATENT, heads=128),) * 2, mlp=18432,
    latent=LatentSpec(rank=512, rotated=64, unrotated=128, value=128, query_rank=1536),
    experts=ExpertsSpec(
        count=16, chosen=8, width=2048, shared=2048, groups=4, chosen_groups=2, normalized=True, scaling=2.5
    ),
)  # fmt: skip


@pytest.mark.parametrize(
    ("compiled", "config", "rows", "scheme"),
    [
        (90, LATENTS, 1, "none"),
        *soak(
            (90, LATENTS, 8, "none"), (90, LATENTS, 128, "none"), (90, LATENTS, 1, "int8"),
            (90, LATENTS, 4, "int4"), (90, LATENTS, 1, "int4"), (90, LATENTS, 40, "fp8"),
            (90, LATENTS_OF_QUERIES, 1, "none"),
            (90, LATENTS_OF_QUERIES, 16, "fp8"), (80, LATENTS, 8, "none"), (120, LATENTS, 8, "none"),
            (100, LATENTS_OF_QUERIES, 40, "none"),
        ),
    ],
    indirect=["compiled"],
)  # fmt: skip
def test_latents_that_decode(
    compiled: dict[str, int],
    config: DecoderConfig,
    rows: int,
    scheme: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(switches, "ONE_ROW", True)
    decode(config, rows, scheme, "none")
    alone = rows == 1 and scheme == "none" and config is LATENTS
    assert {"_absorb", "_by_head", "_attend_latents"} <= compiled.keys()
    assert ("_routed_down" if alone else "_router_logits") in compiled


@pytest.mark.parametrize("compiled", [90, *soak(80, 100, 120)], indirect=True)
@pytest.mark.parametrize("config", [LATENTS, *soak(LATENTS_OF_QUERIES)], ids=["few", "many"])
def test_latents_with_prompts(compiled: dict[str, int], config: DecoderConfig) -> None:
    prompts("none", config)
    assert "_attend_latents" in compiled


@pytest.mark.soak  # test_compiles.py has pieces of a model without latents
@pytest.mark.parametrize("compiled", [90, 80, 100, 120], indirect=True)
@pytest.mark.parametrize("config", [LATENTS, LATENTS_OF_QUERIES], ids=["few", "many"])
def test_pieces_of_prompts_in_graphs(compiled: dict[str, int], config: DecoderConfig) -> None:
    pieces(config, 64, "none")
    assert "_attend_latents" in compiled


@pytest.mark.parametrize("compiled", [90, *soak(80, 100, 120)], indirect=True)
def test_prompts_that_read_keys_and_values(compiled: dict[str, int]) -> None:
    prompts("none", LATENTS, longest=900)
    assert {"_attend", "_attend_latents"} <= compiled.keys()  # of prompts, and of rows of one token
    assert "_absorb" not in compiled
