"""One row times an FP8 weight, like skinny_gemm.gemv, in one wave of programs with several turns each.

A turn has a few outputs. Their weights, and those of the next turn, are loaded before a program waits for the
previous kernel; the row is normed and rounded once. Weights are read in words of four numbers: between turns
the compiler would keep each byte in a register of its own.
"""
# mypy: disable-error-code="no-untyped-def, assignment"
# Triton interprets a kernel's annotations itself, so only constexpr parameters are annotated.

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.triton.gemm.quantize_fp8 import fp8_scale
from engine.kernels.triton.gemm.skinny_gemm import ENOUGH, ProductTiling, rms_scaled, silu_mul
from engine.kernels.triton.launch import launch, power

FEWEST, LONGEST, MOST = 2048, 4096, 16384  # inputs; up to LONGEST four warps hold a row

# $0 to $3 are the four FP8 numbers of $4 as floats.
FOUR = tl.constexpr("""{
    .reg .b16 l, h, a, b, c, d; .reg .b32 low, high;
    mov.b32 {l, h}, $4;
    cvt.rn.f16x2.e4m3x2 low, l;
    cvt.rn.f16x2.e4m3x2 high, h;
    mov.b32 {a, b}, low;
    mov.b32 {c, d}, high;
    cvt.f32.f16 $0, a;
    cvt.f32.f16 $1, b;
    cvt.f32.f16 $2, c;
    cvt.f32.f16 $3, d;
}""")


@triton.jit
def _words(words, output, at, OUTPUTS: tl.constexpr, WORDS: tl.constexpr):
    mask = (output < OUTPUTS)[:, None] & (at < WORDS)[None, :]
    return tl.load(words + output.to(tl.int64)[:, None] * WORDS + at[None, :], mask=mask, other=0)


@triton.jit
def _by_place(x, at, WORDS: tl.constexpr):
    """The first, second, third and fourth numbers of all words, in float32."""
    four = tl.load(x + at[:, None] * 4 + tl.arange(0, 4)[None, :], mask=(at < WORDS)[:, None], other=0.0)
    even, odd = tl.split(tl.reshape(four, [at.shape[0], 2, 2]))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first.to(tl.float32), second.to(tl.float32), third.to(tl.float32), fourth.to(tl.float32)


@triton.jit
def _rounded(value, finer):
    return (value * finer).to(tl.float8e4nv).to(tl.float32)


@triton.jit
def _summed(words, x0, x1, x2, x3):
    w0, w1, w2, w3 = tl.inline_asm_elementwise(
        FOUR, "=f,=f,=f,=f,r", [words], dtype=(tl.float32, tl.float32, tl.float32, tl.float32),
        is_pure=True, pack=1,
    )  # fmt: skip
    return tl.sum(w0 * x0[None, :] + w1 * x1[None, :] + w2 * x2[None, :] + w3 * x3[None, :], 1)


@triton.jit
def _gemv_in_turns(
    out, x, words, weight_scale, norm_weight, residual, eps,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, TURNS: tl.constexpr,
    NORM: tl.constexpr, GATED: tl.constexpr, ADD: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    WORDS: tl.constexpr = INPUTS // 4
    step = tl.num_programs(0) * ROWS
    output = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    at = tl.arange(0, WIDE)
    dtype = x.dtype.element_ty
    of_up = words + OUTPUTS * WORDS
    now = _words(words, output, at, OUTPUTS, WORDS)
    ahead = _words(words, output + step, at, OUTPUTS, WORDS)
    now_up = now
    ahead_up = ahead
    if GATED:
        now_up = _words(of_up, output, at, OUTPUTS, WORDS)
        ahead_up = _words(of_up, output + step, at, OUTPUTS, WORDS)
    if NORM:
        s0, s1, s2, s3 = _by_place(norm_weight, at, WORDS)
    if PDL:
        tl.extra.cuda.gdc_wait()

    x0, x1, x2, x3 = _by_place(x, at, WORDS)
    if NORM:
        shrink = tl.rsqrt(tl.sum(x0 * x0 + x1 * x1 + x2 * x2 + x3 * x3) / INPUTS + eps)
        x0 = rms_scaled(x0, s0, shrink, norm_weight, dtype)
        x1 = rms_scaled(x1, s1, shrink, norm_weight, dtype)
        x2 = rms_scaled(x2, s2, shrink, norm_weight, dtype)
        x3 = rms_scaled(x3, s3, shrink, norm_weight, dtype)
    largest = tl.maximum(tl.maximum(tl.abs(x0), tl.abs(x1)), tl.maximum(tl.abs(x2), tl.abs(x3)))
    by = fp8_scale(largest, 0)
    finer = tl.div_rn(1.0, by)
    x0 = _rounded(x0, finer)
    x1 = _rounded(x1, finer)
    x2 = _rounded(x2, finer)
    x3 = _rounded(x3, finer)
    for _ in tl.range(0, TURNS, num_stages=1):
        there = output < OUTPUTS
        steps = tl.load(weight_scale + output, mask=there, other=0.0)
        if GATED:
            steps_up = tl.load(weight_scale + OUTPUTS + output, mask=there, other=0.0)
        if ADD:
            before = tl.load(residual + output, mask=there, other=0.0).to(tl.float32)
        result = (_summed(now, x0, x1, x2, x3) * (steps * by)).to(dtype)
        if GATED:
            up = (_summed(now_up, x0, x1, x2, x3) * (steps_up * by)).to(dtype)
            result = silu_mul(result, up)
        if ADD:
            result = (before + result.to(tl.float32)).to(dtype)
        tl.store(out + output, result, mask=there)
        now = ahead
        now_up = ahead_up
        output += step
        ahead = _words(words, output + step, at, OUTPUTS, WORDS)
        if GATED:
            ahead_up = _words(of_up, output + step, at, OUTPUTS, WORDS)


def gemv_in_turns(
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    *,
    norm_weight: Tensor | None = None,
    eps: float = 0.0,
    gated: bool = False,
    residual: Tensor | None = None,
    pdl: bool = False,
    cut: ProductTiling | None = None,
    registers: int | None = None,
    most: int = 4 * ENOUGH,
) -> Tensor:
    """[1, inputs] -> [1, outputs], as skinny_gemm.gemv. `most`: programs; `cut`: of a turn."""
    inputs = x.shape[1]
    outputs = len(weight) // 2 if gated else len(weight)
    if cut is None:
        cut, registers, most = turn_tiling(inputs, gated)
    out = torch.empty(1, outputs, dtype=x.dtype, device=x.device)
    groups = triton.cdiv(outputs, cut.outputs)
    turns = triton.cdiv(groups, most)
    _gemv_in_turns[(triton.cdiv(groups, turns),)](
        out, x, weight.view(torch.int32), weight_scale, x if norm_weight is None else norm_weight,
        x if residual is None else residual, eps,
        OUTPUTS=outputs, INPUTS=inputs, WIDE=power(inputs // 4), ROWS=cut.outputs, TURNS=turns,
        NORM=norm_weight is not None, GATED=gated, ADD=residual is not None, PDL=pdl,
        num_warps=cut.warps, **launch(pdl, registers),
    )  # fmt: skip
    return out


def turn_tiling(inputs: int, gated: bool) -> tuple[ProductTiling, int | None, int]:
    """A tiling, the most registers of a thread, and the programs that run at once on a Hopper."""
    if inputs > LONGEST:
        return ProductTiling(1, inputs, warps=8), 128, 2 * ENOUGH
    return ProductTiling(2 if gated else 4, inputs, warps=4), 128, 4 * ENOUGH


def takes_turns(inputs: int, *, bias: Tensor | None = None, gelu: bool = False, **_: object) -> bool:
    """Whether a product is one for this kernel, by its inputs and the arguments of gemv."""
    return FEWEST <= inputs <= MOST and inputs % 16 == 0 and bias is None and not gelu
