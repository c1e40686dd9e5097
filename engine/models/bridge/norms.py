"""RMS norms of transformers' models in two launches on a GPU, where their code has eight.

Nearly all families have the norm of Llama in a class of their own. A class counts as such if its code is
the same.
"""

from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import LlamaRMSNorm


def shorten_norms(model: nn.Module) -> int:
    """Let all norms of this kind be computed by torch's own. Return how many there are."""
    found = [each for each in model.modules() if is_that_of_llama(each)]
    for each in found:
        norm: Any = each
        norm.forward = partial(rms_norm, norm.weight, norm.variance_epsilon)
    return len(found)


def rms_norm(weight: Tensor, eps: float, hidden_states: Tensor) -> Tensor:
    """In float32, rounded before the weight is applied, as theirs."""
    return weight * F.rms_norm(hidden_states, weight.shape, None, eps)


def is_that_of_llama(module: nn.Module) -> bool:
    kind = type(module)
    return kind.__name__.endswith("RMSNorm") and code_of(kind.forward) == _THEIRS


def code_of(function: Any) -> tuple[Any, ...] | None:
    """What a function does, without its name and text. None: it is not written in Python."""
    if (code := getattr(function, "__code__", None)) is None:
        return None
    constants = code.co_consts[1:] if function.__doc__ else code.co_consts
    return code.co_code, code.co_names, constants, function.__defaults__


_THEIRS = code_of(LlamaRMSNorm.forward)
