"""Inline PTX in kernels: its results, and whether the compiler accepts it."""

import re
from typing import Any

import numpy as np
import pytest
import torch

from tests.cases import soak
from tests.kernels import ptx

pytest.importorskip("triton", reason="no Triton here")

SHORT = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
COMPILED = pytest.mark.parametrize("dtype", [torch.bfloat16, *soak(torch.float16)], ids=str)


def halves(*registers: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    """Return both 16-bit floats of each register, [registers, times, 2] in float32."""
    return torch.from_numpy(np.stack(registers).view(np.int16)).view(dtype).float().unflatten(1, (-1, 2))


def twice(values: torch.Tensor) -> np.ndarray:
    """Return registers that hold each 16-bit float twice."""
    return values[:, None].expand(-1, 2).contiguous().view(torch.int32)[:, 0].numpy().view(np.uint32)


@SHORT
def test_bytes_become_16_bit_floats(dtype: torch.dtype) -> None:
    from engine.kernels.triton.gemm.skinny_gemm import SHORT

    numbers = np.arange(256, dtype=np.uint8)
    found = halves(*ptx.run(SHORT[dtype], [numbers.view(np.uint32)], 2), dtype=dtype)
    assert torch.equal(found.transpose(0, 1).flatten(), torch.arange(256.0) - 128)


def test_bytes_become_floats() -> None:
    from engine.kernels.triton.gemm.skinny_gemm import WIDE

    found = ptx.run(WIDE.value, [np.arange(256, dtype=np.uint8).view(np.uint32)], 4)
    assert np.array_equal(np.stack(found, 1).view(np.float32).ravel(), np.arange(256) - 128.0)


@pytest.mark.parametrize("kind", [torch.int8, torch.float8_e4m3fn], ids=str)
def test_words_become_pairs(kind: torch.dtype) -> None:
    """Every pair of bytes, as the even and as the odd byte of their words."""
    from engine.kernels.triton.attention.pairs import EVEN, ODD

    numbers = np.arange(256, dtype=np.uint8)
    words = np.stack([each.ravel() for each in np.meshgrid(numbers, numbers)], 1)
    expected = torch.from_numpy(words).view(kind).float().view(-1, 2, 2)  # registers, words, bytes
    for nth, text in enumerate((EVEN[kind], ODD[kind])):
        (found,) = halves(*ptx.run(text, [words.ravel().view(np.uint32)], 1), dtype=torch.float16)
        torch.testing.assert_close(found, expected[:, :, nth], rtol=0, atol=0, equal_nan=True)


@SHORT
def test_nibbles_become_numbers(dtype: torch.dtype) -> None:
    """Each nibble becomes its value plus a power of two; of x, another column's part becomes zero."""
    from engine.kernels.triton.gemm.int4_gemv import KINDS

    whole, more, one, kept = KINDS[dtype]
    words = torch.randint(0, 2**31, (512,), generator=torch.Generator().manual_seed(0))
    found = halves(*ptx.run(whole, [words.numpy().astype(np.uint32)], 4), dtype=dtype)
    for nth in range(4):
        numbers = torch.stack((words >> 4 * nth & 15, words >> (16 + 4 * nth) & 15), 1)
        assert torch.equal(found[nth], numbers.float() + more)
    x = torch.randn(2, 512, generator=torch.Generator().manual_seed(0)).to(dtype)
    owned = torch.arange(512) % 3 == 0
    pairs = x.view(torch.int32).flatten().numpy().view(np.uint32)
    ones = np.where(owned.numpy(), one, 0).astype(np.uint32)
    (left,) = halves(*ptx.run(kept, [pairs, ones, ones], 1), dtype=dtype)
    assert torch.equal(left, x.view(512, 2).float() * owned[:, None])


@SHORT
def test_nibbles_become_weights(dtype: torch.dtype) -> None:
    """Products of exact numbers are rounded once."""
    from engine.kernels.triton.gemm.int4_gemm import FLOATS

    draw = torch.Generator().manual_seed(0)
    words = torch.randint(-(2**31), 2**31, (4096,), generator=draw, dtype=torch.int64)
    scales, offsets = ((torch.rand(4, 4096, generator=draw) * 10 - 5).to(dtype) for _ in range(2))
    registers = [words.numpy().astype(np.uint32)]
    for scale, offset in zip(scales, offsets, strict=True):
        registers += [twice(scale)] * 2 + [twice(offset)] * 2
    found = halves(*ptx.run(FLOATS[dtype], registers, 4), dtype=dtype)
    for nth in range(4):
        numbers = torch.stack((words >> 4 * nth & 15, words >> (16 + 4 * nth) & 15), 1).double() - 8
        expected = numbers * scales[nth].double()[:, None] + offsets[nth].double()[:, None]
        assert torch.equal(found[nth], expected.to(dtype).float())


@SHORT
def test_small_floats_become_weights(dtype: torch.dtype) -> None:
    from engine.kernels.triton.gemm.int4_gemm import SMALL_FLOATS
    from engine.quant.fp4 import NUMBERS

    draw = torch.Generator().manual_seed(0)
    words = torch.randint(-(2**31), 2**31, (4096,), generator=draw, dtype=torch.int64)
    scales = torch.ldexp(torch.ones(4, 4096), torch.randint(-4, 5, (4, 4096), generator=draw)).to(dtype)
    registers = [words.numpy().astype(np.uint32)]
    for scale in scales:
        registers += [twice(scale)] * 2 + [twice(torch.zeros_like(scale))] * 2
    found = halves(*ptx.run(SMALL_FLOATS[dtype], registers, 4), dtype=dtype)
    known = torch.tensor((*NUMBERS, *(-each for each in NUMBERS)))
    for nth in range(4):
        numbers = known[torch.stack((words >> 4 * nth & 15, words >> (16 + 4 * nth) & 15), 1)]
        assert torch.equal(found[nth], numbers * scales[nth].float()[:, None])


@COMPILED
@pytest.mark.parametrize("kind", ["nibbles", "bytes", "nvfp4", *soak("mxfp4")])
def test_it_compiles_for_hopper(kind: str, dtype: torch.dtype) -> None:
    """Compiling needs no GPU. Weights are loaded straight into the registers for the tensor cores."""
    from engine.kernels.triton.gemm import int4_gemm, skinny_gemm

    short = {torch.bfloat16: "bf16", torch.float16: "fp16"}[dtype]
    of: dict[str, Any] = {"out": f"*{short}", "x": f"*{short}", "rows": "i32"}
    shape: dict[str, Any] = {"OUTPUTS": 128, "INPUTS": 512, "ROWS": 8, "STAGES": 3, "PDL": True, "TILES": 1}
    if kind != "bytes":
        function, floats = int4_gemm._int4_gemm, kind != "nibbles"
        of |= (
            {"words": "*i16", "grid": "*u32", "factor": "*fp32"}
            if floats
            else {"words": "*i16", "grid": "*i32"}
        )
        shape |= {} if floats else {"factor": None}
        shape |= {"ALL": 128, "UNITS": 4, "COLUMNS": 32, "TURN": 2, "PARTS": 1}
        shape |= {"GROUP": {"nibbles": 64, "nvfp4": 64, "mxfp4": 128}[kind]}
        shape |= {"FLOATS": (int4_gemm.SMALL_FLOATS if floats else int4_gemm.FLOATS)[dtype]}
    else:
        function = skinny_gemm._skinny_gemm
        of |= {"weight": "*u8", "weight_scale": "*fp32", "x_scale": "*fp32"}
        shape |= {"COLUMNS": 64, "TURN": 128, "SCALED": True, "ROUNDED": False, "PARTS": 1}
        shape |= {"SHORT": skinny_gemm.SHORT[dtype]}
    made = compile_for_hopper(function, of, shape, warps=1 + (kind == "bytes"))
    text = made.asm["ttgir"]
    loop = text[text.index("scf.for") : text.index("scf.yield")]
    assert "tt.dot" in loop and "ttg.async_copy_global_to_local" in loop
    assert "ttg.convert_layout" not in loop and "ttg.local_store" not in loop
    assert "mma.sync" in made.asm["ptx"]


@pytest.mark.parametrize(("floats", "group"), soak((False, 32), (True, 32), (True, 64)))
def test_experts_of_four_bits_compile_for_hopper(floats: bool, group: int) -> None:
    from engine.kernels.triton.experts import int4
    from engine.kernels.triton.gemm.int4_gemm import FLOATS, SMALL_FLOATS

    of: dict[str, Any] = dict.fromkeys(("out", "x", "bias"), "*bf16")
    of |= {"words": "*i16", "grid": "*i32", "pairs": "*i32", "owners": "*i32", "rows": "i32"}
    of |= {"grid": "*u32", "factor": "*fp32"} if group == 64 else {}
    shape: dict[str, Any] = {} if group == 64 else {"factor": None}
    shape |= {
        "pair_weights": None, "EXPERTS": 32, "CHOSEN": 4, "SLOTS": 4, "SORTED": True, "BY_PAIR": False,
        "OUTPUTS": 2880, "ALL": 5760, "INPUTS": 2880, "UNITS": 23, "GROUP": group, "ROWS": 16, "COLUMNS": 32,
        "TURN": 1, "GATED": True, "STEP": 2, "UP": 1, "ALPHA": 1.702, "LIMIT": 7.0,
        "FLOATS": (SMALL_FLOATS if floats else FLOATS)[torch.bfloat16], "BIASED": True, "STAGES": 3,
        "PDL": True,
    }  # fmt: skip
    made = compile_for_hopper(int4._experts_int4, of, shape, warps=1)
    text = made.asm["ttgir"]
    loop = text[text.index("scf.for") : text.index("scf.yield")]
    assert loop.count("tt.dot ") == 8 and "ttg.convert_layout" not in loop and "ttg.local_store" not in loop
    assert "mma.sync" in made.asm["ptx"]


@COMPILED
@pytest.mark.parametrize("inputs", [4096, 14336])
def test_words_of_a_row_are_loaded_in_the_layout_of_the_product(inputs: int, dtype: torch.dtype) -> None:
    """In one iteration and in several. Through shared memory they would need 32 KB an iteration."""
    from engine.kernels.triton.gemm import int4_gemv

    short = {torch.bfloat16: "bf16", torch.float16: "fp16"}[dtype]
    whole, more, _, kept = int4_gemv.KINDS[dtype]
    function = int4_gemv._int4_gemv
    of: dict[str, Any] = dict.fromkeys(("out", "x", "stream", "scaled", "norm_weight"), f"*{short}")
    of |= {
        "words": "*i16",
        "grid": "*i32",
        "eye": "*i32",
        "squares": "*fp32",
        "pieces": "*fp32",
        "eps": "fp32",
    }
    shape: dict[str, Any] = {
        "WIDTH": 512, "ALL": 512, "INPUTS": inputs, "UNITS": inputs // 128, "GROUP": 64, "OUTPUTS": 16,
        "WARPS": 8, "PER": 2, "TURNS": -(-inputs // 4096), "WHOLE": whole, "MORE": more, "KEPT": kept,
        "GATED": False, "RESIDUAL_NORM": True, "PIECES": 0, "PADDED": 1, "PDL": True,
    }  # fmt: skip
    made = compile_for_hopper(function, of, shape, warps=8)
    text = made.asm["ttgir"]
    assert made.metadata.shared <= 4096 and "ttg.local_alloc" not in text
    assert "mma.sync" in made.asm["ptx"] and "v4.b32" in made.asm["ptx"]
    # Layout hints for threads that are not adjacent must not make one thread load for another.
    layouts = dict(re.findall(r"^(#\w+) = #ttg.blocked<{sizePerThread = \[([\d, ]+)\]", text, re.MULTILINE))
    loads = re.findall(r"tt.load .*tensor<\d[\dx]*x!tt.ptr<(\w+)>, (#\w+)>", text)
    assert {kind for kind, _ in loads} >= {"i16", "i32"}
    for kind, layout in loads:
        if kind in ("i16", "i32"):
            *others, last = layouts[layout].split(", ")
            assert set(others) == {"1"} and last == ("8" if kind == "i16" else "1")


@pytest.mark.parametrize("kind", [*soak(torch.int8), torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize(("keys", "warps", "stages"), [(32, 1, 8), *soak((32, 1, 4), (32, 1, 6))])
def test_a_compressed_cache_goes_to_the_tensor_cores(
    kind: torch.dtype, keys: int, warps: int, stages: int
) -> None:
    """Loaded through shared memory once, by asynchronous copies. No other tensor of that size is moved."""
    from engine.kernels.triton.attention.paged import _attend
    from engine.kernels.triton.attention.pairs import EVEN, ODD

    of = dict.fromkeys(("out", "q"), "*bf16") | dict.fromkeys(("mixes", "sums"), "*fp32")
    of |= dict.fromkeys(("keys", "values"), "*i16") | dict.fromkeys(("key_scales", "value_scales"), "*i32")
    of |= dict.fromkeys(("tables", "items"), "*i32") | {"scale": "fp32"}
    of |= dict.fromkeys(("q_token", "q_head", "table_stride"), "i32")
    shape: dict[str, Any] = {
        "sinks": None, "KV_HEADS": 8, "GROUP": 2, "KEY_DIM": 128, "VALUE_DIM": 128, "BLOCK": 16,
        "PACKED": True, "WINDOW": 0, "KEPT": 0, "SOFTCAP": 0.0, "SINKS": False, "QUERIES": 1, "PADDED": 8,
        "KEYS": keys, "KEY_PAD": 128, "VALUE_PAD": 128, "STAGES": stages, "PDL": False, "AHEAD": False,
        "GATHERED": False, "EVEN": EVEN[kind], "ODD": ODD[kind],
    }  # fmt: skip
    made = compile_for_hopper(_attend, of, shape, warps=warps)
    text = made.asm["ttgir"]
    loop = text[text.index("scf.for") : text.index("scf.yield")]
    assert loop.count("tt.dot ") == 4 and loop.count("ttg.async_copy_global_to_local") == 5
    assert "tt.load" not in loop and "ttg.local_store" not in loop and "ttg.local_alloc" not in loop
    moved = re.findall(r"ttg.convert_layout .*?tensor<([\dx]+)x", loop)
    assert moved and all(np.prod([int(each) for each in size.split("x")]) <= 8 * keys for size in moved)
    assert "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32" in made.asm["ptx"]


def test_a_context_is_fetched_before_the_wait() -> None:
    """Its keys and values are only asked for: the last ones are written by the kernel before."""
    from engine.kernels.triton.attention.paged import _attend

    of = dict.fromkeys(("out", "q", "keys", "values"), "*bf16") | dict.fromkeys(("mixes", "sums"), "*fp32")
    of |= dict.fromkeys(("tables", "items"), "*i32") | {"scale": "fp32"}
    of |= dict.fromkeys(("q_token", "q_head", "table_stride"), "i32")
    shape: dict[str, Any] = {
        "sinks": None, "KV_HEADS": 4, "GROUP": 8, "KEY_DIM": 128, "VALUE_DIM": 128, "BLOCK": 16,
        "PACKED": False, "WINDOW": 0, "KEPT": 0, "SOFTCAP": 0.0, "SINKS": False, "QUERIES": 1, "PADDED": 16,
        "KEYS": 16, "KEY_PAD": 128, "VALUE_PAD": 128, "STAGES": 2, "PDL": True, "AHEAD": False,
        "GATHERED": False, "FETCH": 2,
    }  # fmt: skip
    made = compile_for_hopper(_attend, of, shape, warps=1)
    before, _, after = made.asm["ptx"].partition("griddepcontrol.wait")
    assert before.count("prefetch.global.L2") == 2 and "prefetch.global.L2" not in after
    names = [name for name in _attend.arg_names if name in of]
    read = ptx.reached_before(made.asm["ptx"], "griddepcontrol.wait")
    assert {names[at] for at in read} == {"items", "tables"}


def compile_for_hopper(function: Any, of: dict[str, str], shape: dict[str, Any], *, warps: int) -> Any:
    """Compile a kernel for Hopper, with arguments of the types `of` and the constants `shape`."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from engine.kernels.triton.keys import give_key

    give_key(function)  # as the engine does: otherwise its key depends on which kernel is compiled first
    names = function.arg_names
    source = ASTSource(
        fn=function,
        signature={name: of.get(name, "constexpr") for name in names},
        constexprs={(names.index(name),): value for name, value in shape.items()},
        attrs={
            (at,): [["tt.divisibility", 16]] for at, name in enumerate(names) if of.get(name, "")[:1] == "*"
        },
    )
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps})


@pytest.mark.parametrize(
    ("rows", "outputs", "turn"), [(64, 64, 128), *soak((128, 64, 128), (128, 128, 64), (256, 64, 64))]
)
def test_tensor_cores_end_before_registers_that_they_read_are_written_again(
    rows: int, outputs: int, turn: int
) -> None:
    """An int8 weight is converted in registers. Those of a turn may be those of the next one."""
    from engine.kernels.triton.gemm.skinny_gemm import SHORT
    from engine.kernels.triton.gemm.tma_gemm import _tma_gemm

    of = {
        "out": "*fp32", "tiles_of_x": f"tensordesc<bf16[{rows}, {turn}]>", "scale": "*fp32",
        "tiles_of_weight": f"tensordesc<u8[{outputs}, {turn}]>", "rows": "i32", "outputs": "i32",
        "share": "i32", "eps": "fp32",
    }  # fmt: skip
    shape = {
        "squares": None, "steps": None, "ROWS": rows, "COLUMNS": outputs, "TURN": turn, "GATED": False,
        "SCALED": True, "ROUNDED": False, "SHORT": SHORT[torch.bfloat16], "WIDTH": 1024, "PIECES": 0,
        "PADDED": 1, "STAGES": 3, "PDL": True,
    }  # fmt: skip
    text = compile_for_hopper(_tma_gemm, of, shape, warps=4).asm["ttgir"]
    loop = text[text.index("scf.for") : text.index("scf.yield")]
    assert "ttng.warp_group_dot %" in loop and "opIdx = 0" in loop  # from registers
    waits = re.findall(r"ttng.warp_group_dot_wait .*pendings = (\d+)", loop)
    assert waits[-1] == "0", waits
