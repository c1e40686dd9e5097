"""A fake GPU for all tests of this folder."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # it imports Triton
    from tests.kernels.steps.recording_driver import RecordingDriver


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> "Iterator[RecordingDriver]":
    from triton import knobs

    from engine.attention import graph_work, triton_backend
    from engine.kernels.triton.attention.tiles import GpuLimits
    from engine.models import fused
    from tests.kernels.steps.recording_driver import RecordingDriver
    from tests.kernels.steps.test_compiles import active

    gpu = RecordingDriver()
    monkeypatch.setattr(knobs.runtime, "jit_cache_hook", gpu.miss)
    for module in (graph_work, triton_backend, fused):
        monkeypatch.setattr(module, "gpu", lambda device: GpuLimits(227 * 2**10, overlaps=True))
    with active(gpu):
        yield gpu
