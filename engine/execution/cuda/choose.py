"""Chooses what launches the kernels of steps."""

from typing import TYPE_CHECKING

import torch

from engine.attention.base import AttentionBackend
from engine.kv.store import KVStore
from engine.models.adapters.bank import AdapterBank
from engine.models.base import LanguageModel

if TYPE_CHECKING:
    from engine.execution.cuda.stage import GpuStage


def stage_on(
    device: torch.device,
    model: LanguageModel,
    store: KVStore,
    attention: AttentionBackend,
    adapters: AdapterBank,
) -> "GpuStage | None":
    """None: steps use the model's own forward pass."""
    if device.type != "cuda":
        return None
    # Imports Triton, which is only installed with a GPU.
    from engine.execution.cuda.stage import stage_for

    return stage_for(model, store, attention, adapters)
