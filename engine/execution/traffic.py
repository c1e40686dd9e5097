"""Bytes that a step reads, and the device's peak speeds, measured because specifications overstate them."""

import time
from collections.abc import Callable
from contextlib import nullcontext
from itertools import chain

import torch
from torch import nn

from engine.api.snapshot import Speeds
from engine.kernels.cpu.many_rows import linear
from engine.models.base import LanguageModel

_TABLES = ("embed", "rope", "local_rope")  # a step looks up only a few rows of these
_LEAST, _MOST = 2**20, 2**28  # bytes to read in the measurement
_SECONDS = 0.1  # duration of each measurement
_SIDES = {"cuda": 4096, "cpu": 512}  # of the matrices to multiply


def weights_read(model: LanguageModel) -> int:
    """Bytes of weights that each step reads. An embedding that is also the output matrix is read in full."""
    read: dict[int, int] = {}
    for module in model.modules():
        own = chain(module.named_parameters(recurse=False), module.named_buffers(recurse=False))
        for name, tensor in own:
            if name not in _TABLES and not isinstance(module, nn.Embedding):
                read[id(tensor)] = tensor.nbytes
    return sum(read.values())


@torch.inference_mode()
def measure(device: torch.device, dtype: torch.dtype, size: int) -> Speeds:
    """`size`: the bytes a step reads. A small model fits a CPU's caches, so their speed is measured."""
    on_gpu = device.type == "cuda"
    size, side = _MOST if on_gpu else min(max(size, _LEAST), _MOST), _SIDES[device.type]
    # A separate stream, so it does not queue behind the engine's steps.
    with torch.cuda.stream(torch.cuda.Stream(device)) if on_gpu else nullcontext():
        source = torch.ones(size // 4, device=device)
        read = source.nbytes / _best(device, source.sum)
        left, right = (torch.ones(side, side, dtype=dtype, device=device) for _ in range(2))
        # As layers multiply, on a CPU without instructions for bfloat16 too.
        return Speeds(read, 2 * side**3 / _best(device, lambda: linear(left, right)))


def _best(device: torch.device, work: Callable[[], object]) -> float:
    """The shortest of many runs, in seconds, because other programs use the device too."""
    best, end = float("inf"), time.perf_counter() + _SECONDS
    while True:
        began = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()
        now = time.perf_counter()
        best = min(best, now - began)
        if now >= end:
            return best
