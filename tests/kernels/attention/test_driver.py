"""Blocks copied by the driver's calls, played by memmove on a CPU, and on a GPU as the kernel's."""

import ctypes
from functools import partial
from typing import Any, get_args

import numpy as np
import pytest
import torch

from engine.api.cache_spec import KV_SCHEMES, KvSchemeName
from engine.api.errors import EngineError
from engine.kernels import driver
from engine.kernels.driver import RECTANGLE, copy_rectangles, rectangles
from engine.kernels.places import Places
from engine.kv.store import move_blocks
from tests.kernels.attention.test_blocks import store, tensors

PAIRS = [(3, 1), (8, 4), (4, 2), (0, 0), (5, 3)]  # a run of three, and two alone
STREAM, SIDES = 77, ("target", "source")


class Driver:
    """Does what the calls ask for, at once."""

    def __init__(self) -> None:
        self.calls = 0

    def cuMemcpy2DAsync_v2(self, record: ctypes.c_void_p, stream: ctypes.c_void_p) -> int:
        assert record.value and stream.value == STREAM
        self.calls += 1
        [each] = np.frombuffer((ctypes.c_char * RECTANGLE.itemsize).from_address(record.value), RECTANGLE)
        assert each["source_kind"] == each["target_kind"] == 4
        assert not each["source_x"] and not each["target_y"]
        for line in range(int(each["lines"])):
            to, start = (int(each[f"{side}_address"] + line * each[f"{side}_pitch"]) for side in SIDES)
            ctypes.memmove(to, start, int(each["width"]))
        return 0


@pytest.mark.parametrize("scheme", KV_SCHEMES)
def test_copies_move_the_blocks_that_the_reference_moves(
    monkeypatch: pytest.MonkeyPatch, scheme: KvSchemeName
) -> None:
    played = Driver()
    monkeypatch.setattr(driver, "library", lambda: played)
    ours = store(scheme)
    device, host = (
        [each.view(torch.uint8) for layer in side for each in layer.tensors()]
        for side in (ours.layers, ours.host.slabs[0])
    )
    for sides, pairs in ((device, host), PAIRS), ((host, device), [(b, a) for a, b in PAIRS[::-1]]):
        expected = [each.clone() for each in sides[1]]
        move_blocks(sides[0], expected, pairs)
        found, rest = rectangles(*map(Places.of, sides), pairs, least=1)
        copy_rectangles(found, STREAM)
        assert not rest
        assert all(map(torch.equal, sides[1], expected))
        for each in sides[0]:
            each.zero_()
    assert played.calls == 2 * 3 * len(device)


def test_blocks_without_neighbors_are_left_over() -> None:
    device = Places.of(tensors(store("none"))[:4])
    found, rest = rectangles(device, device, PAIRS, least=2)
    assert found["lines"].tolist() == [[3] * 4] and rest == [(0, 0), (8, 4)]
    found, rest = rectangles(device, device, PAIRS, least=4)
    assert not len(found) and rest == sorted(PAIRS)


def test_an_error_of_the_driver_is_raised_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def cuMemcpy2DAsync_v2(self, *arguments: Any) -> int:
            return 1

        def cuGetErrorName(self, code: int, name: Any) -> None:
            ctypes.cast(name, ctypes.POINTER(ctypes.c_char_p))[0] = b"CUDA_ERROR_INVALID_VALUE"

    monkeypatch.setattr(driver, "library", Broken)
    with pytest.raises(EngineError, match="cuMemcpy2DAsync_v2: error 1, CUDA_ERROR_INVALID_VALUE"):
        copy_rectangles(np.zeros(1, RECTANGLE), STREAM)


@pytest.mark.cuda
@pytest.mark.parametrize("scheme", KV_SCHEMES)
def test_the_driver_moves_the_bytes_that_the_kernel_moves(
    monkeypatch: pytest.MonkeyPatch, scheme: KvSchemeName
) -> None:
    """In the order of the stream: a copy out, then one back of what it copied. The host does not wait."""
    from engine.execution import cache_blocks
    from engine.execution.cache_blocks import SwapsBy, blocks_of, mover_on

    monkeypatch.setattr(cache_blocks, "LEAST_RUN", 1)
    device, found, ways = torch.device("cuda"), [], get_args(SwapsBy)
    for by in ways:
        ours = store(scheme, "cuda")
        ours.mover = mover_on(device, by)
        blocks = blocks_of(ours, device)
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            out = blocks(()).move(partial(torch.cuda._sleep, 10**8), partial(ours.swap_out, PAIRS))
            back = blocks(()).move(partial(ours.swap_in, [(1, 6), (2, 7), (4, 0)]))
            assert by == "staging" or not out.done(), "the host has waited"
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert out.result() > 0 and back.result() > 0
        found.append([each.view(torch.uint8).cpu() for each in tensors(ours)])
    assert all(map(torch.equal, *found))
