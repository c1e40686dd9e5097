"""How blocks move on a device."""

import torch

from engine.kv.store import Mover, move_blocks


def mover_on(device: torch.device) -> Mover:
    """On a GPU one launch for all layers, which nobody waits for."""
    if device.type != "cuda":
        return move_blocks
    # Brings Triton, which is there where a GPU is.
    from engine.kernels.triton.kv.blocks import move

    return move
