"""Parts of transformers' models in one launch each on a GPU, where their code has up to fourteen.

Within a visit only: at the start `probe` compares the results with those of the model's own code. A norm or a
rotation counts as known if its code is that of Llama's, to the byte.
"""

from collections.abc import Callable, Iterable
from functools import cache, partial
from types import FunctionType, MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.activations import XIELUActivation
from transformers.models.llama import modeling_llama as llama

from engine.kernels import switches
from engine.models.bridge.interface import visiting

_ROTATION = "apply_rotary_pos_emb"
_FEW = 1 << 16

Pair = tuple[Tensor, Tensor]


def shorten_parts(model: nn.Module) -> int:
    """Let norms, rotations and activations be one launch each. Return how many modules are changed."""
    changed = 0
    for each in model.modules():
        part: Any = each
        if _is_that_of_llama(each):
            part.forward = partial(_norm, part, part.forward)
        elif type(each) is XIELUActivation:
            part.forward = _xielu(part, part.forward)
        elif (forward := _with_rotation(type(each).forward)) is not None:
            part.forward = MethodType(forward, part)
        else:
            continue
        changed += 1
    return changed


def shorten_products(linears: Iterable[Any]) -> None:
    """Let one row of these linear layers be multiplied by the kernel of our own models."""
    for each in linears:
        if type(each) is nn.Linear:
            part: Any = each
            part.forward = partial(_product, part, part.forward)


def _norm(module: Any, theirs: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    weight = module.weight
    if not _here(x, weight) or x.shape[-1] != len(weight):
        return theirs(x)
    from engine.kernels.triton.norm.norm import norm

    between = x.dim() == 4 and not x.is_contiguous()  # heads before tokens, as a view
    rows = x.transpose(1, 2) if between else x
    out = norm(
        rows.reshape(-1, len(weight)).contiguous(), None, weight, module.variance_epsilon, pdl=_early(x)
    )
    out = out.reshape(rows.shape)
    return out.transpose(1, 2) if between else out


def _xielu(module: Any, theirs: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Its numbers are read once: the model has its weights."""
    parts = module.alpha_p, module.alpha_n, module.beta, module.eps
    positive = F.softplus(module.alpha_p).item()
    negative = (module.beta + F.softplus(module.alpha_n)).item()
    beta, eps = module.beta.item(), module.eps.item()

    def forward(x: Tensor) -> Tensor:
        if not (_here(x, *parts) and x.is_contiguous()):
            return theirs(x)
        from engine.kernels.triton.norm.xielu import xielu

        return xielu(x, positive, negative, beta, eps, pdl=_early(x))

    return forward


def _with_rotation(forward: Any) -> FunctionType | None:
    """A copy of an attention's forward, with our rotation. None: it does not rotate as Llama does."""
    if _ROTATION not in getattr(getattr(forward, "__code__", None), "co_names", ()):
        return None
    theirs = forward.__globals__.get(_ROTATION)
    half = getattr(theirs, "__globals__", {}).get("rotate_half")
    if (_code_of(theirs), _code_of(half)) != _TURN:
        return None

    def rotation(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> Pair:
        if unsqueeze_dim != 1 or not _rotates(q, k, cos, sin):
            found: Pair = theirs(q, k, cos, sin, unsqueeze_dim)
            return found
        from engine.kernels.triton.kv.rotate import rotate

        return rotate(q, k, cos, sin, pdl=_early(q))

    names = {**forward.__globals__, _ROTATION: rotation}
    own = FunctionType(forward.__code__, names, forward.__name__, forward.__defaults__, forward.__closure__)
    own.__kwdefaults__ = forward.__kwdefaults__
    return own


def _rotates(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> bool:
    """Whether our kernel takes them."""
    if not (q.dim() == k.dim() == 4 and len(q) == len(k) == 1 and q.shape[2:] == k.shape[2:]):
        return False
    whole = cos.shape == sin.shape == (1, *q.shape[2:]) and cos.is_contiguous() and sin.is_contiguous()
    return whole and q.stride(3) == k.stride(3) == 1 and _here(q, k, cos, sin)


def _product(module: nn.Linear, theirs: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    weight, bias = module.weight, module.bias
    one = x.numel() == x.shape[-1] and x.is_contiguous() and weight.is_contiguous()
    if not (one and x.itemsize == 2 and _here(x, weight)):
        return theirs(x)
    from engine.kernels.triton.gemm.skinny_gemm import gemv

    return gemv(x.reshape(1, -1), weight, bias=bias, pdl=_early(x)).reshape(*x.shape[:-1], -1)


def _here(x: Tensor, *others: Tensor) -> bool:
    """Whether our kernels take these tensors: on a GPU, within a visit, all of one dtype."""
    return (
        x.is_cuda and visiting() and x.is_floating_point() and all(each.dtype is x.dtype for each in others)
    )


def _early(x: Tensor) -> bool:
    """Whether a kernel that reads x may start before the previous one ends: with few numbers."""
    return switches.SHORT_EARLY and x.numel() <= _FEW and _can_start_early(x.device)


@cache
def _can_start_early(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) >= (9, 0)


def _is_that_of_llama(module: nn.Module) -> bool:
    kind = type(module)
    return kind.__name__.endswith("RMSNorm") and _code_of(kind.forward) == _NORM


def _code_of(function: Any) -> tuple[Any, ...] | None:
    """What a function does, without its name and text. None: it is not written in Python."""
    if (code := getattr(function, "__code__", None)) is None:
        return None
    constants = code.co_consts[1:] if function.__doc__ else code.co_consts
    return code.co_code, code.co_names, constants, function.__defaults__


_NORM = _code_of(llama.LlamaRMSNorm.forward)
_TURN = _code_of(getattr(llama, _ROTATION)), _code_of(llama.rotate_half)
