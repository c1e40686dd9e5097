"""Chooses what launches the kernels of steps."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from engine.attention.base import AttentionBackend
from engine.early import quick_sources
from engine.execution.cuda.drafts import DraftReplays
from engine.execution.cuda.graphs import DecodeSteps
from engine.execution.draft.drafting import SmallModel
from engine.execution.sampling_state import SamplingState
from engine.kv.store import KVStore
from engine.models.adapters.bank import AdapterBank
from engine.models.base import LanguageModel
from engine.models.decoder import Decoder

if TYPE_CHECKING:
    from engine.execution.cuda.stage import GpuStage

REPLAYS_DRAFTS = True  # False: a draft model's kernels are launched one by one


def stage_on(
    device: torch.device,
    model: LanguageModel,
    store: KVStore,
    attention: AttentionBackend,
    adapters: AdapterBank | None = None,
    states: Tensor | None = None,
) -> "GpuStage | None":
    """None: steps use the model's own forward pass. `states`: see GpuStage."""
    if device.type != "cuda":
        return None
    # Imports Triton, which is only installed with a GPU.
    with quick_sources():
        from engine.execution.cuda.stage import stage_for

    return stage_for(model, store, attention, adapters, states)


def recordable(model: LanguageModel) -> bool:
    """Whether a graph can contain its steps. Those of ranks over NCCL run without."""
    return not isinstance(model, Decoder) or model.collective is None or model.collective.recordable


def replay_drafts(
    device: torch.device, small: Iterable[SmallModel], steps: DecodeSteps | None, sampling: SamplingState
) -> None:
    """Have the draft models with a cache of their own run in graphs beside the model's, if it has any."""
    for each in small:
        each.replays = None
        if steps is None or not REPLAYS_DRAFTS:
            continue
        stage = stage_on(device, each.model, each.store, each.attention)
        if stage is not None:
            each.replays = DraftReplays(stage, steps.beside(stage), sampling)
