"""Chooses the collective of ranks that have no memory in common."""

import torch

from engine.api.config import EngineConfig
from engine.distributed.groups.board import Board
from engine.distributed.groups.group import GroupCollective


def group_collective(rank: int, config: EngineConfig, board: Board, device: torch.device) -> GroupCollective:
    """The one of a rank with the others of its stage. The caller connects it."""
    stage, place = divmod(rank, config.tp)
    given = place, config.tp, board, f"sums {stage}", device
    if device.type == "cpu":
        return GroupCollective(*given)
    # Imports Triton, which is only installed with a GPU.
    from engine.distributed.groups.nccl import NcclCollective

    return NcclCollective(*given)
