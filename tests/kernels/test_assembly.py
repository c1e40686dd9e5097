"""Pieces of NVIDIA's assembly in kernels: what they give, and whether the compiler takes them."""

from typing import Any

import numpy as np
import pytest
import torch

from tests.kernels import ptx

pytest.importorskip("triton", reason="no Triton here")

SHORT = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)


def halves(*registers: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    """Two short floats of each register, [registers, times, 2] in float32."""
    return torch.from_numpy(np.stack(registers).view(np.int16)).view(dtype).float().unflatten(1, (-1, 2))


def twice(values: torch.Tensor) -> np.ndarray:
    """Short floats as registers that hold each of them twice."""
    return values[:, None].expand(-1, 2).contiguous().view(torch.int32)[:, 0].numpy().view(np.uint32)


@SHORT
def test_bytes_become_short_floats(dtype: torch.dtype) -> None:
    from engine.kernels.products import SHORT

    numbers = np.arange(256, dtype=np.uint8)
    found = halves(*ptx.run(SHORT[dtype], [numbers.view(np.uint32)], 2), dtype=dtype)
    assert torch.equal(found.transpose(0, 1).flatten(), torch.arange(256.0) - 128)


def test_bytes_become_floats() -> None:
    from engine.kernels.products import WIDE

    found = ptx.run(WIDE.value, [np.arange(256, dtype=np.uint8).view(np.uint32)], 4)
    assert np.array_equal(np.stack(found, 1).view(np.float32).ravel(), np.arange(256) - 128.0)


@SHORT
def test_nibbles_become_weights(dtype: torch.dtype) -> None:
    """Rounded once, from numbers that are exact."""
    from engine.kernels.nibbles import FLOATS

    draw = torch.Generator().manual_seed(0)
    words = torch.randint(-(2**31), 2**31, (4096,), generator=draw, dtype=torch.int64)
    scales, offsets = ((torch.rand(4, 4096, generator=draw) * 10 - 5).to(dtype) for _ in range(2))
    registers = [words.numpy().astype(np.uint32)]
    for scale, offset in zip(scales, offsets, strict=True):
        registers += [twice(scale)] * 2 + [twice(offset)] * 2
    found = halves(*ptx.run(FLOATS[dtype], registers, 4), dtype=dtype)
    for nth in range(4):
        numbers = torch.stack((words >> 4 * nth & 15, words >> (16 + 4 * nth) & 15), 1).double() - 8
        wanted = numbers * scales[nth].double()[:, None] + offsets[nth].double()[:, None]
        assert torch.equal(found[nth], wanted.to(dtype).float())


@SHORT
@pytest.mark.parametrize("kind", ["nibbles", "bytes"])
def test_a_hopper_takes_it(kind: str, dtype: torch.dtype) -> None:
    """The compiler needs no GPU. Weights go to the tensor cores' registers, and to no others between."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from engine.kernels import nibbles, products

    short = {torch.bfloat16: "bf16", torch.float16: "fp16"}[dtype]
    of: dict[str, Any] = {"out": f"*{short}", "x": f"*{short}", "rows": "i32"}
    shape: dict[str, Any] = {"OUTPUTS": 128, "INPUTS": 512, "ROWS": 8, "STAGES": 3, "EARLY": True, "TILES": 1}
    if kind == "nibbles":
        function = nibbles._narrow
        of |= {"words": "*i16", "grid": "*i32"}
        shape |= {"ALL": 128, "UNITS": 4, "GROUP": 64, "COLUMNS": 32, "TURN": 2, "PARTS": 1}
        shape |= {"FLOATS": nibbles.FLOATS[dtype]}
    else:
        function = products._narrow
        of |= {"weight": "*u8", "by": "*fp32", "by_row": "*fp32"}
        shape |= {"COLUMNS": 64, "TURN": 128, "SCALED": True, "ROUNDED": False, "PARTS": 1}
        shape |= {"SHORT": products.SHORT[dtype]}
    names = function.arg_names
    source = ASTSource(
        fn=function,
        signature={name: of.get(name, "constexpr") for name in names},
        constexprs={(names.index(name),): value for name, value in shape.items()},
        attrs={
            (at,): [["tt.divisibility", 16]] for at, name in enumerate(names) if of.get(name, "")[:1] == "*"
        },
    )
    made = triton.compile(
        source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 1 + (kind == "bytes")}
    )
    text = made.asm["ttgir"]
    loop = text[text.index("scf.for") : text.index("scf.yield")]
    assert "tt.dot" in loop and "ttg.async_copy_global_to_local" in loop
    assert "ttg.convert_layout" not in loop and "ttg.local_store" not in loop
    assert "mma.sync" in made.asm["ptx"]
