"""A fake GPU that records what is loaded and launched, and two small kernels."""

from collections.abc import Callable
from itertools import count
from types import SimpleNamespace
from typing import Any

import torch
import triton
import triton.language as tl

from engine.kernels.triton.precompile import start_compiling
from tests.kernels.steps.test_compiles import META, FakeDriver

NEW = count(1000)  # device numbers: Triton keeps compiled kernels for each


def precompile(launches: Callable[[], object]) -> None:
    start_compiling(launches).wait()


class RecordingDriver(FakeDriver):
    """A fake GPU that records what is loaded and launched."""

    def __init__(self) -> None:
        super().__init__(90)
        self.device = next(NEW)
        self.loaded: list[str] = []
        self.launched: list[str] = []
        self.missing: list[str] = []  # kernels that were launched before they were compiled
        self.utils = SimpleNamespace(
            load_binary=self.load, get_device_properties=lambda device: {"max_shared_mem": 2**20}
        )

    def get_current_device(self) -> int:
        return self.device

    def set_current_device(self, device: int) -> None:
        """A thread may begin after a test has restarted the GPU."""

    def load(self, name: str, *rest: object) -> tuple[object, object, int, int, int]:
        self.loaded.append(name)
        return object(), object(), 0, 0, 1024

    def launcher_cls(self, source: Any, metadata: Any) -> Callable[..., None]:
        return lambda *given: self.launched.append(source.fn.__name__)

    def miss(self, *, fn: Any, **rest: object) -> bool:
        self.missing.append(fn.name)
        return False


@triton.jit
def one(x):
    tl.store(x, 1.0)


@triton.jit
def two(x):
    tl.store(x, 2.0)


def x() -> torch.Tensor:
    return torch.empty(1, device=META)


def both() -> None:
    for kernel in (one, two):
        kernel[(1,)](x())
