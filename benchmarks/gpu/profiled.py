"""The kernels of some steps, by torch's profiler: their times, and the time in which the GPU runs none."""

from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile

from minichat.bench.harness import Bench

SHOWN = 9  # kernels


def profiled(bench: Bench, label: str, step: Callable[[], object], steps: int) -> None:
    """Note the time of a step, the GPU's idle time in it, and the kernels that take longest.

    Kernels that start early overlap, so their sum may exceed the step.
    """
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as trace:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    events = [event for event in trace.events() or () if event.device_type.name == "CUDA"]
    spans = sorted((event.time_range.start, event.time_range.end, event.name) for event in events)
    busy, last = 0.0, spans[0][0]
    kernels: dict[str, float] = {}
    for begin, end, kernel in spans:
        busy += max(0.0, end - max(begin, last))
        last = max(last, end)
        kernels[kernel] = kernels.get(kernel, 0.0) + end - begin
    whole = last - spans[0][0]
    bench.note(f"{label}, a step, profiled", whole / steps / 1e3, "ms")
    bench.note(f"{label}, GPU idle, profiled", 100 * (1 - busy / whole), "%")
    for kernel, spent in sorted(kernels.items(), key=lambda item: -item[1])[:SHOWN]:
        bench.note(f"{label}, {kernel.split('(')[0][:48]}", spent / steps, "us/step")
