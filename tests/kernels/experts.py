"""Feed-forwards of experts, and their terms by launches and by forward."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from engine.api.config import DecoderConfig, ExpertsSpec, LayerSpec, RopeSpec
from engine.models.decoder import block, build_of
from engine.models.layers.moe import GroupedMoE

HEADS = LayerSpec(heads=1, kv_heads=1, key_dim=16, value_dim=16, scale=1.0)
CONFIG = DecoderConfig(
    family="qwen3_moe", dtype="float16", hidden=64, layers=(HEADS,), vocab=10, max_context=20, mlp=32,
    norm_eps=1e-5, rope=RopeSpec(theta=1e4), tied=True,
    experts=ExpertsSpec(count=6, chosen=2, width=32, normalized=True),
)  # fmt: skip
GROUPED = {"count": 8, "groups": 4, "chosen_groups": 2, "scaling": 1.5, "shared": 32, "normalized": False}
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # changes of the configuration, of the experts
    "MoE": ({}, {}),
    "ScaledSharedMoE": ({"family": "qwen2_moe"}, {"shared": 32}),
    "GroupedMoE": ({"family": "deepseek_v2"}, GROUPED),
    "BiasedMoE": ({"family": "dots1"}, GROUPED | {"normalized": True}),
    "ClampedMoE": (
        {"family": "gpt_oss", "mlp_bias": True, "settings": {"alpha": 1.702, "limit": 1.0}}, {},
    ),
}  # fmt: skip


def feed_forward(kind: str) -> Any:
    changes, of_experts = KINDS[kind]
    assert CONFIG.experts is not None
    config = replace(CONFIG, **changes, experts=replace(CONFIG.experts, **of_experts))
    if kind == "GroupedMoE":
        part: Any = GroupedMoE(config, 0, build_of(config, torch.float16))
    else:
        part = block(config, 0, torch.float16).feed_forward
    assert type(part).__name__ == kind
    draw = torch.Generator().manual_seed(1)
    for tensor in part.parameters():
        tensor.copy_(torch.randn(tensor.shape, generator=draw) * 0.3)
    return part


def both_ways(kind: str, rows: int) -> tuple[Tensor, Tensor]:
    """Return the stream after the part's launches, and after its forward."""
    from engine.kernels.triton.attention.tiles import GpuLimits
    from engine.models.layers.gpu import GpuKernels, GpuStep, Residual

    none: Any = None
    gpu = GpuKernels(GpuLimits(0, overlaps=False))
    with torch.inference_mode():
        part = feed_forward(kind)
        x = torch.randn(rows, 64, generator=torch.Generator().manual_seed(rows)).half()
        single = rows == 1 and part.takes_single(gpu)
        step = GpuStep(none, none, none, none, (), none, single=single, pdl=False)
        found = part.fused(Residual(x.clone()), step, gpu)
        return found.total(), x + part.forward(x, step)
