"""Products with experts' weights and the choice of experts in Triton's interpreter, against plain torch."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.cases import soak
from tests.kernels.interpreted import Interpreted
from tests.kernels.products.test_quantized import QuantizedWeight, kept

pytest.importorskip("triton", reason="no Triton here")

EXPERTS, CHOSEN = 5, 2
GROUPED = {"groups": 4, "chosen_groups": 2, "best": 2}


def numbers(*shape: int, seed: int, dtype: torch.dtype = torch.float16) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).mul(0.3).to(dtype)


def chosen(rows: int, experts: int = EXPERTS) -> Tensor:
    """Each row's experts, the third of which no row chooses."""
    draw = torch.Generator().manual_seed(rows)
    return torch.rand(rows, experts, generator=draw).index_fill_(1, torch.tensor(2), -1).topk(CHOSEN)[1].int()


def shares(rows: int) -> Tensor:
    return torch.rand(rows, CHOSEN, generator=torch.Generator().manual_seed(5))


@dataclass(frozen=True)
class Weights:
    """The weights of all experts as kernels take them, and the exact numbers."""

    given: tuple[Tensor, ...]
    exact: Tensor  # [experts, outputs, inputs] float32
    of: QuantizedWeight | None = None
    factor: Tensor | None = None

    def rounded(self, x: Tensor) -> Tensor:
        return x.float() if self.of is None else self.of.rounded(x)


def weights(kind: str, outputs: int, inputs: int) -> Weights:
    if kind == "plain":
        made = numbers(EXPERTS, outputs, inputs, seed=1)
        return Weights((made,), made.float())
    whole = kept(kind, EXPERTS * outputs, inputs)
    if not whole.in_nibbles:
        parts = tuple(each.unflatten(0, (EXPERTS, outputs)) for each in whole.given)
        return Weights(parts, whole.weight.unflatten(0, (EXPERTS, outputs)), whole)
    each = [kept(kind, outputs, inputs, seed=seed) for seed in range(EXPERTS)]
    given = tuple(torch.stack(parts) for parts in zip(*(one.given for one in each), strict=True))
    factors = [one.factor for one in each if one.factor is not None]
    factor = torch.stack(factors) if factors else None
    return Weights(given, torch.stack([one.weight for one in each]), each[0], factor)


def multiplied(
    kernels: Interpreted, x: Tensor, of: Weights, outputs: int, tiles: Any, rows: int, turn: int, **named: Any
) -> Tensor:
    from engine.kernels.triton.gemm.tma_gemm import Tiling

    how = Tiling(tiles.rows, 32, turn, warps=2, stages=2)
    if of.of is not None and of.of.in_nibbles:
        given = (*of.given, outputs, tiles, how, rows, of.factor)
        return kernels.call("experts.int4", "experts_int4", x, *given, **named)[0]
    if of.of is not None and of.of.rounds:
        (eight, steps), _ = kernels.call("gemm.quantize_fp8", "quantize_fp8", x, x.shape[1])
        weight, scale = of.given
        return kernels.call(
            "experts.gemm",
            "experts_gemm",
            eight,
            weight,
            tiles,
            how,
            rows,
            scale,
            steps,
            dtype=x.dtype,
            **named,
        )[0]
    weight, *scales = of.given
    return kernels.call("experts.gemm", "experts_gemm", x, weight, tiles, how, rows, *scales, **named)[0]


@pytest.mark.parametrize(
    ("kind", "rows", "gate"),
    [
        ("plain", 1, "silu"), ("plain", 21, "clamped"), ("int8", 3, "silu"), ("fp8", 9, "silu"),
        ("int4-32", 3, "clamped"), ("nvfp4", 3, "silu"),
        *soak(
            ("nvfp4", 21, "clamped"), ("mxfp4", 3, "clamped"), ("mxfp4", 1, "silu"),
            ("plain", 3, "clamped"), ("plain", 40, "silu"), ("int8", 21, "clamped"), ("int8", 1, "silu"),
            ("fp8", 21, "clamped"), ("int4-64", 21, "silu"), ("int4-128", 1, "silu"),
        ),
    ],
)  # fmt: skip
def test_experts_of_rows(kernels: Interpreted, kind: str, rows: int, gate: str) -> None:
    """Both products of a layer. The rows of an expert are found by pair, by expert and in sorted tiles."""
    from engine.kernels.triton.experts.gemm import Gate

    ids, floats = chosen(rows), kind in ("nvfp4", "mxfp4")  # of which all groups are whole
    width, hidden = (64, 224) if floats else (40, 200)
    up, down = weights(kind, 2 * width, hidden), weights(kind, hidden, width)
    x, by = (
        numbers(rows, hidden, seed=0),
        torch.rand(rows, CHOSEN, generator=torch.Generator().manual_seed(5)),
    )
    biases = [
        numbers(EXPERTS, outputs, seed=7) if gate == "clamped" else None for outputs in (2 * width, hidden)
    ]
    how = Gate(alternating=True, alpha=1.7, limit=0.5) if gate == "clamped" else Gate()
    tiles, _ = kernels.call("experts.tiles", "expert_tiles", ids, EXPERTS, rows=16)
    assert (tiles.owners is not None) == (rows > 16)
    turn = 64 if kind in ("plain", "int8", "fp8") else 128
    act = multiplied(kernels, x, up, 2 * width, tiles, rows, turn, gate=how, bias=biases[0])
    assert act.shape == (rows * CHOSEN, width)
    parts = multiplied(kernels, act, down, hidden, tiles, rows, turn, pair_weights=by, bias=biases[1])
    assert parts.shape == (CHOSEN, rows, hidden) and parts.dtype is torch.float32

    own = ids.flatten().long()
    rounded = up.rounded(x).repeat_interleave(CHOSEN, 0)
    both = torch.einsum("poi,pi->po", up.exact[own], rounded)
    both = both if biases[0] is None else both + biases[0][own]
    expected = gated(both.half().float(), gate)
    torch.testing.assert_close(act.float(), expected, rtol=4e-3, atol=4e-3)
    out = torch.einsum("poi,pi->po", down.exact[own], down.rounded(act))
    out = out if biases[1] is None else out + biases[1][own]
    wanted = (out * by.view(-1, 1)).view(rows, CHOSEN, hidden).transpose(0, 1)
    torch.testing.assert_close(parts, wanted, rtol=4e-3, atol=4e-3)


def gated(both: Tensor, gate: str) -> Tensor:
    if gate == "silu":
        first, second = both.chunk(2, 1)
        return F.silu(first) * second
    first, second = both[:, ::2].clamp(max=0.5), both[:, 1::2].clamp(-0.5, 0.5)
    return (second + 1) * first * torch.sigmoid(1.7 * first)


@pytest.mark.parametrize(("rows", "tall"), [(40, 16), *soak((700, 16), (700, 64))])
def test_pairs_are_sorted_by_expert(kernels: Interpreted, rows: int, tall: int) -> None:
    """Every pair once, in order; tiles that no choice of experts needs have no owner."""
    ids = chosen(rows)
    tiles, _ = kernels.call("experts.tiles", "sort_pairs", ids, EXPERTS, tall)
    found = [[at for at in pairs if at >= 0] for pairs in tiles.pairs.tolist()]
    owners = tiles.owners.tolist()
    needed = sum(owner >= 0 for owner in owners)
    assert all(owner == -1 for owner in owners[needed:])
    for expert in range(EXPERTS):
        own = [found[at] for at in range(needed) if owners[at] == expert]
        assert [at for pairs in own for at in pairs] == (ids.flatten() == expert).nonzero().flatten().tolist()
        assert all(len(pairs) == tall for pairs in own[:-1])
    assert 2 not in owners, "no row chose it"


@pytest.mark.parametrize(
    ("experts", "changes"),
    [
        (
            12,
            {"sigmoid": True, "groups": 4, "chosen_groups": 2, "best": 2, "normalized": True, "scaling": 2.5},
        ),
        (8, {"normalized": True}),
        *soak((12, {"groups": 3, "chosen_groups": 2, "scaling": 16.0}), (60, {})),
    ],
)
def test_routing(kernels: Interpreted, experts: int, changes: dict[str, Any]) -> None:
    """The router's product, and the choice as the part makes it."""
    from engine.kernels.triton.experts.route import Routing

    x, weight = numbers(3, 200, seed=0), numbers(experts, 200, seed=1, dtype=torch.float32)
    logit_bias, bias = (numbers(experts, seed=seed, dtype=torch.float32) for seed in (2, 3))
    how = Routing(3, **changes)
    given = (logit_bias, bias) if how.sigmoid else (logit_bias, None)
    parts, _ = kernels.call("experts.route", "router_logits", x, weight)
    assert len(parts) > 1
    torch.testing.assert_close(parts.sum(0), x.float() @ weight.T, rtol=1e-5, atol=1e-5)
    (found, ids), _ = kernels.call("experts.route", "route", parts, how, *given)
    wanted, wanted_ids = expected_route(parts.sum(0), how, *given)
    assert torch.equal(ids.long(), wanted_ids)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


def expected_route(
    logits: Tensor, how: Any, logit_bias: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    logits = logits + logit_bias
    scores = logits.sigmoid() if how.sigmoid else logits.softmax(-1)
    choice = scores if bias is None else scores + bias
    if how.groups > 1:
        grouped = choice.unflatten(1, (how.groups, -1))
        best = grouped.topk(how.best)[0].sum(-1).topk(how.chosen_groups)[1]
        closed = torch.ones(grouped.shape[:2], dtype=torch.bool).scatter_(1, best, False)
        choice = grouped.masked_fill(closed[..., None], -torch.inf).flatten(1)
    ids = choice.topk(how.chosen)[1]
    kept = scores.gather(1, ids)
    return (kept / kept.sum(1, keepdim=True) if how.normalized else kept) * how.scaling, ids


def test_the_rows_of_each_expert_are_counted(kernels: Interpreted) -> None:
    """Except those without a place, which pad a graph."""
    from engine.kernels.triton.experts.route import Routing

    parts = numbers(1, 4, 6, seed=0, dtype=torch.float32)
    counts, places = torch.arange(6), torch.tensor([3, -1, 0, 9])
    for where, counted in ((places, places >= 0), (None, slice(None))):
        given = (parts, Routing(2), None, None, counts, where)
        (_, ids), (*_, after, _) = kernels.call("experts.route", "route", *given)
        assert torch.equal(after, counts + torch.bincount(ids[counted].flatten(), minlength=6))


def test_a_row_of_nan_chooses_experts_that_exist(kernels: Interpreted) -> None:
    from engine.kernels.triton.experts.route import Routing

    parts = torch.full((1, 2, 5), torch.nan)
    parts[:, 1] = torch.arange(5.0)
    (found, ids), _ = kernels.call("experts.route", "route", parts, Routing(2))
    assert found[0].isnan().any() and not found[1].isnan().any()
    assert ids.min() >= 0 and ids.max() < 5 and ids[1].tolist() == [4, 3]


@pytest.mark.parametrize(
    ("kind", "gate"), [("plain", "clamped"), ("int8", "silu"), *soak(("plain", "silu"), ("int8", "clamped"))]
)
def test_one_row_has_its_own_kernels(kernels: Interpreted, kind: str, gate: str) -> None:
    from engine.kernels.triton.experts.gemm import Gate
    from engine.kernels.triton.gemm.skinny_gemm import ProductTiling

    width, hidden, ids = 40, 200, chosen(1)
    up, down = weights(kind, 2 * width, hidden), weights(kind, hidden, width)
    x, by, biased = numbers(1, hidden, seed=0), shares(1), gate == "clamped"
    biases = [numbers(EXPERTS, outputs, seed=7) if biased else None for outputs in (2 * width, hidden)]
    how = Gate(alternating=True, alpha=1.7, limit=0.5) if biased else Gate()
    of, *scales = up.given
    cut = ProductTiling(16, 128, warps=4)
    act, _ = kernels.call(
        "experts.gemv", "experts_gate_up_gemv", x, of, ids, how, *scales, bias=biases[0], cut=cut
    )
    own = ids[0].long()
    both = up.exact[own] @ x[0].float() + (0 if biases[0] is None else biases[0][own])
    torch.testing.assert_close(act.float(), gated(both.half().float(), gate), rtol=4e-3, atol=4e-3)
    of, *scales = down.given
    residual = numbers(1, hidden, seed=9)
    found, _ = kernels.call(
        "experts.gemv", "experts_down_gemv", act, of, ids, by, *scales, bias=biases[1], residual=residual,
        cut=ProductTiling(64, 32, warps=4),
    )  # fmt: skip
    out = torch.einsum("poi,pi->po", down.exact[own], act.float())
    out = out + (0 if biases[1] is None else biases[1][own])
    wanted = (by @ out).half() + residual
    torch.testing.assert_close(found, wanted, rtol=4e-3, atol=4e-3)
