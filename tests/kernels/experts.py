"""Feed-forwards of experts, and their terms by launches and by forward."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from engine.api.cache_spec import CacheSpec, LayerSpec
from engine.api.config import DecoderConfig, ExpertsSpec, RopeSpec
from engine.models.decoder import block, build_of
from engine.models.layers.moe import GroupedMoE
from engine.quant import fp8_linear, int4, int8
from engine.quant.fp4 import NUMBERS, Mxfp4Experts, Mxfp4Plain
from engine.quant.linear import Linear

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
    "WeighedInputMoE": (
        {"family": "llama4_text", "settings": {"normed": True, "floor": 8, "growth": 0.1}},
        {"chosen": 1, "shared": 32, "normalized": False},
    ),
    "GroupedMoE": ({"family": "deepseek_v2"}, GROUPED),
    "BiasedMoE": ({"family": "dots1"}, GROUPED | {"normalized": True}),
    "LoneBiasedMoE": ({"family": "lfm2_moe"}, {"scaling": 1.5}),
    "UngatedMoE": (
        {"family": "nemotron_h", "layers": (CacheSpec.of_nothing(),), "activation": "relu2"},
        GROUPED | {"normalized": True},
    ),
    "ClampedMoE": (
        {"family": "gpt_oss", "mlp_bias": True, "settings": {"alpha": 1.702, "limit": 1.0}}, {},
    ),
}  # fmt: skip


@dataclass(frozen=True)
class OnGpu:
    """A scheme that makes on any device what it makes on a GPU."""

    name: str

    def make(self, weight: Tensor, bias: Tensor | None) -> nn.Module:
        from engine.quant import gpu_products

        match self.name:
            case "int8":
                return gpu_products.Int8Product(*int8.quantized(weight), bias)
            case "fp8":
                return gpu_products.Fp8Product(*fp8_linear.quantized(weight), bias)
        return gpu_products.Int4Product(int4.grouped(weight, 32), bias, weight.shape[1], weight.dtype)


def small_floats(outputs: int, inputs: int) -> Tensor:
    """Numbers that mxfp4 holds, with scales near 1/8."""
    draw = torch.Generator().manual_seed(2)
    exponents = torch.randint(-5, -2, (outputs, inputs // 32), generator=draw)
    numbers = torch.tensor(NUMBERS)[torch.randint(0, 8, (outputs, inputs), generator=draw)]
    signs = torch.randint(0, 2, (outputs, inputs), generator=draw) * 2 - 1
    return torch.ldexp(numbers * signs, exponents.repeat_interleave(32, 1))


def feed_forward(kind: str, scheme: str, device: str) -> Any:
    changes, of_experts = KINDS[kind]
    assert CONFIG.experts is not None
    config = replace(CONFIG, **changes, experts=replace(CONFIG.experts, **of_experts))
    if kind == "GroupedMoE":
        part: Any = GroupedMoE(config, 0, build_of(config, torch.float16))
    else:
        part = block(config, 0, torch.float16).parts[-1]
    assert type(part).__name__ == kind
    draw = torch.Generator().manual_seed(1)
    for tensor in part.parameters():
        tensor.copy_(torch.randn(tensor.shape, generator=draw) * 0.3)
    part.to(device)
    how: Any = Mxfp4Plain("none") if scheme == "mxfp4" else OnGpu(scheme)
    for name, child in list(part.named_children()) if scheme != "none" else ():
        if isinstance(child, Linear) and child.quantizes:
            if scheme == "mxfp4":
                child.weight.copy_(small_floats(*child.weight.shape))
            made = child.finalized(how)
            setattr(part, name, made)
            if isinstance(made, Mxfp4Experts):
                assert torch.equal(made.dequantized(1), child.weight.view(6, -1, child.weight.shape[1])[1])
            else:
                assert scheme != "mxfp4"
    return part


def both_ways(kind: str, rows: int, scheme: str, device: str = "cpu") -> tuple[Tensor, Tensor]:
    """Return the stream after the part's launches, and after its forward."""
    from engine.kernels.triton.attention.tiles import GpuLimits
    from engine.models.layers.gpu import GpuKernels, GpuStep, Residual

    none: Any = None
    gpu = GpuKernels(GpuLimits(0, overlaps=False))
    with torch.inference_mode():
        part = feed_forward(kind, scheme, device)
        x = torch.randn(rows, 64, generator=torch.Generator().manual_seed(rows)).half().to(device)
        single = rows == 1 and part.takes_single(gpu)
        step = GpuStep(none, none, none, none, (), none, none, none, single=single, pdl=device == "cuda")
        found = part.fused(Residual(x.clone()), step, gpu)
        return found.total().cpu(), (x + part.forward(x, step)).cpu()
