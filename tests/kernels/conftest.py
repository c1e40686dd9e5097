"""One interpreter process for all kernel tests, since it takes seconds to start."""

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.attention.observers import Observers
from engine.attention.state_runs import DeviceRuns
from engine.kv.store import KVLayer
from tests.kernels.interpreted import Interpreted, interpreter


@pytest.fixture(scope="session")
def kernels() -> Iterator[Interpreted]:
    with interpreter() as started:
        yield started


@pytest.fixture(params=["interpreted", pytest.param("cuda", marks=pytest.mark.cuda)], scope="session")
def call(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """`Interpreted.call`, or the same on a GPU."""
    if request.param == "interpreted":
        return request.getfixturevalue("kernels").call

    def on_gpu(module: str, name: str, *given: Any, **named: Any) -> Any:
        there, more = moved(given, "cuda"), {key: moved(each, "cuda") for key, each in named.items()}
        with torch.inference_mode():
            found = getattr(import_module(f"engine.kernels.triton.{module}"), name)(*there, **more)
        return moved((found, there), "cpu")

    return on_gpu


def moved(each: Any, device: str) -> Any:
    """Move tensors, and whatever holds tensors, to a device. A view is moved with all its memory."""
    from engine.kernels.triton.linear.convolve import StepSizes
    from engine.kernels.triton.linear.delta import OutputGate
    from engine.kernels.triton.norm.norm import Normed

    if isinstance(each, Observers):
        return Observers(*(moved(one, device) for one in each))
    if isinstance(each, tuple):
        return tuple(moved(one, device) for one in each)
    if isinstance(each, KVLayer | Normed | DeviceRuns | OutputGate | StepSizes):
        given = (of.name for of in fields(each) if of.init)
        return replace(each, **{name: moved(getattr(each, name), device) for name in given})
    if isinstance(each, Tensor) and each._base is not None and each._base.is_contiguous():
        return each._base.to(device).as_strided(each.shape, each.stride(), each.storage_offset())
    return each.to(device) if isinstance(each, Tensor) else each
