"""How a plan's blocks move on a device, and how long that took it."""

import time
from collections.abc import Callable

import torch

from engine.kv.store import Mover, move_blocks

Seconds = Callable[[], float]


def mover_on(device: torch.device) -> Mover:
    """On a GPU one launch for all layers, which nobody waits for."""
    if device.type != "cuda":
        return move_blocks
    # Brings Triton, which is there where a GPU is.
    from engine.kernels.triton.kv.blocks import move

    return move


def timed(device: torch.device, work: Callable[[], None]) -> Seconds:
    """Does it. Whoever asks for the seconds waits until the device has come so far."""
    if device.type != "cuda":
        began = time.monotonic()
        work()
        seconds = time.monotonic() - began
        return lambda: seconds
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    work()
    end.record()

    def spent() -> float:
        end.synchronize()
        return start.elapsed_time(end) / 1e3

    return spent
