"""One row of a mixture of experts by its kernels, and in plain torch."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Shape:
    experts: int = 6
    chosen: int = 3
    hidden: int = 96
    width: int = 40
    shared: int = 0  # the width of an expert for all rows
    gate: str = "silu"
    biased: bool = False
    sigmoid: bool = False
    normalized: bool = True
    scaling: float = 1.0
    turns: int = 0  # 0: the usual ones
    dtype: torch.dtype = torch.float16

    @property
    def outputs(self) -> int:
        """Of gate and up, for each number of the width."""
        return 1 if self.gate == "relu2" else 2


SHAPES = {
    "plain": Shape(),
    "turns": Shape(turns=7, hidden=64, normalized=False, scaling=2.5),
    "shared": Shape(shared=80, turns=3),
    "narrow shared": Shape(shared=56, turns=16, experts=5, chosen=2, width=37, hidden=45),
    "clamped": Shape(gate="clamped", biased=True, normalized=False, turns=4),
    "squared": Shape(gate="relu2", shared=48, sigmoid=True, scaling=1.5, hidden=72),
}


def made(shape: Shape, seed: int, device: str = "cpu") -> dict[str, Any]:
    draw = torch.Generator(device).manual_seed(seed)

    def numbers(*sizes: int, like: torch.dtype = shape.dtype) -> Tensor:
        x = torch.randn(*sizes, generator=draw, device=device)
        return (x * sizes[-1] ** -0.5).to(like) if len(sizes) > 1 else x.to(like)

    hidden, width, both = shape.hidden, shape.width, shape.outputs
    wide = {"like": torch.float32}
    return {
        "x": numbers(hidden)[None],
        "norm": numbers(hidden) * 0.1 + 1,
        "router": numbers(shape.experts, hidden, **wide) * 2,
        "logit_bias": numbers(shape.experts, **wide) if shape.biased else None,
        "choice_bias": numbers(shape.experts, **wide) * 0.1 if shape.sigmoid else None,
        "up": numbers(shape.experts, both * width, hidden),
        "up_bias": numbers(shape.experts, both * width) if shape.biased else None,
        "down": numbers(shape.experts, hidden, width),
        "down_bias": numbers(shape.experts, hidden) if shape.biased else None,
        "shared_up": numbers(both * shape.shared, hidden) if shape.shared else None,
        "shared_down": numbers(hidden, shape.shared) if shape.shared else None,
        "counts": torch.arange(shape.experts, device=device),
        "places": torch.zeros(1, dtype=torch.int64, device=device),
    }


def routing(shape: Shape) -> Any:
    from engine.kernels.triton.experts.route import Routing

    return Routing(shape.chosen, shape.sigmoid, normalized=shape.normalized, scaling=shape.scaling)


def launched(shape: Shape, w: dict[str, Any], x: Tensor, *, pdl: bool = False) -> tuple[Tensor, ...]:
    """Return the row with its experts' outputs, and what is made before it."""
    from engine.kernels.triton.experts import one_row
    from engine.kernels.triton.experts.gemm import Gate

    gates = {"silu": {}, "clamped": {"alternating": True, "alpha": 1.7, "limit": 0.5}}
    gate = Gate(**gates.get(shape.gate, {"squared": True}))
    cut = one_row.RowTiling(shape.turns, warps=4, stages=2) if shape.turns else None
    with torch.inference_mode():
        logits, normed = one_row.norm_router(x, w["norm"], 1e-5, w["router"], w["logit_bias"], pdl=pdl)
        scores = one_row.Scores(logits, routing(shape), w["choice_bias"])
        act = one_row.routed_gate_up(
            normed, w["up"], scores, gate, bias=w["up_bias"], shared=w["shared_up"], counts=w["counts"],
            places=w["places"], pdl=pdl, cut=cut,
        )  # fmt: skip
        out = one_row.routed_down(
            act, w["down"], scores, x, bias=w["down_bias"], shared=w["shared_down"], pdl=pdl, cut=cut
        )
    return out, normed, logits, act, w["counts"]


def expected(shape: Shape, w: dict[str, Any], x: Tensor, normed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the row in float32, the logits and the chosen experts, given the normed row."""
    from tests.kernels.products.test_experts import expected_route

    h = normed.float()
    logits = h @ w["router"].T + (0 if w["logit_bias"] is None else w["logit_bias"])
    none = torch.zeros_like(logits)
    weights, ids = expected_route(logits, routing(shape), none, w["choice_bias"])

    def fed(up: Tensor, bias: Tensor | None) -> Tensor:
        both = F.linear(h, up.float(), None if bias is None else bias.float()).to(shape.dtype).float()
        if shape.gate == "relu2":
            return F.relu(both).square()
        if shape.gate == "silu":
            first, second = both.chunk(2, 1)
            return F.silu(first) * second
        first, second = both[:, ::2].clamp(max=0.5), both[:, 1::2].clamp(-0.5, 0.5)
        return (second + 1) * first * torch.sigmoid(1.7 * first)

    out = x.float()
    for weight, expert in zip(weights[0].tolist(), ids[0].tolist(), strict=True):
        biases = [None if w[name] is None else w[name][expert].float() for name in ("up_bias", "down_bias")]
        act = fed(w["up"][expert], biases[0]).to(shape.dtype).float()
        out = out + F.linear(act, w["down"][expert].float(), biases[1]) * weight
    if shape.shared:
        out = out + fed(w["shared_up"], None).to(shape.dtype).float() @ w["shared_down"].float().T
    return out, logits, ids[0]
