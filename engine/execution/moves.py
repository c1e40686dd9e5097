"""Chooses how blocks are copied on a device."""

import torch

from engine.kv.store import Mover, move_blocks


def mover_on(device: torch.device) -> Mover:
    """On a GPU, one asynchronous kernel launch for all layers."""
    if device.type != "cuda":
        return move_blocks
    # Imports Triton, which is only installed with a GPU.
    from engine.kernels.triton.kv.blocks import move

    return move
