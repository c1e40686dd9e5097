"""Kernels for parts of transformers' models, compared with the code of these models."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import softplus

pytest.importorskip("triton", reason="no Triton here")
Call = Callable[..., Any]
# Rounded as theirs, so all but a few last digits are the same.
CLOSE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def agree(found: Tensor, expected: Tensor) -> None:
    assert found.shape == expected.shape and found.dtype is expected.dtype
    same = found == expected
    torch.testing.assert_close(found, expected, rtol=CLOSE[found.dtype], atol=CLOSE[found.dtype])
    assert found.dtype is torch.float32 or same.float().mean() > 0.97


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_rotation(call: Call, dtype: torch.dtype) -> None:
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    draw = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, 3, heads, 24, generator=draw).to(dtype) for heads in (3, 1))
    angle = torch.randn(1, 3, 12, generator=draw).repeat(1, 1, 2)
    cos, sin = angle.cos().to(dtype), angle.sin().to(dtype)
    given = q.transpose(1, 2), k.transpose(1, 2).contiguous()
    found, _ = call("kv.rotate", "rotate", *given, cos, sin)
    for each, expected in zip(found, apply_rotary_pos_emb(*given, cos, sin), strict=True):
        agree(each, expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_xielu(call: Call, dtype: torch.dtype) -> None:
    from transformers.activations import XIELUActivation

    theirs = XIELUActivation(dtype=dtype).requires_grad_(False)
    ends = torch.tensor([0.0, 1e-7, -1e-7, -1e-4, -0.125, -0.1251, -9.0, 30.0])
    x = torch.cat((ends, 3 * torch.randn(1100, generator=torch.Generator().manual_seed(0)))).to(dtype)[None]
    numbers = softplus(theirs.alpha_p), theirs.beta + softplus(theirs.alpha_n), theirs.beta, theirs.eps
    found, _ = call("norm.xielu", "xielu", x, *(each.item() for each in numbers))
    agree(found, theirs(x))
