"""RMS norms of transformers' models in two launches on a GPU, where their code has eight.

Nearly all families have the norm of Llama in a class of their own. A class counts as such if its code is
the same.
"""

from functools import partial
from types import CodeType
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import LlamaRMSNorm


def shorten_norms(model: nn.Module) -> int:
    """Let all norms of this kind be computed by torch's own. Return how many there are."""
    found = [each for each in model.modules() if _is_that_of_llama(each)]
    for each in found:
        norm: Any = each
        norm.forward = partial(rms_norm, norm.weight, norm.variance_epsilon)
    return len(found)


def rms_norm(weight: Tensor, eps: float, hidden_states: Tensor) -> Tensor:
    """In float32, rounded before the weight is applied, as theirs."""
    return weight * F.rms_norm(hidden_states, weight.shape, None, eps)


def _is_that_of_llama(module: nn.Module) -> bool:
    kind = type(module)
    return kind.__name__.endswith("RMSNorm") and _does(kind.forward.__code__) == _THEIRS


def _does(code: CodeType) -> tuple[Any, ...]:
    return code.co_code, code.co_names, code.co_consts


_THEIRS = _does(LlamaRMSNorm.forward.__code__)
