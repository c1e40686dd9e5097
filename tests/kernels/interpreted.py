"""Kernels on a CPU: Triton's interpreter, in a process of its own as Triton looks for it when it is imported.

Its products of bfloat16 are wrong, and a turn of a loop takes milliseconds: float16, float32, short contexts.
"""

import multiprocessing
import os
import pickle
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from tests.attention.cases import Case


class Interpreted:
    """`attend(case, ...)` there; tensors travel as bytes."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool

    def attend(self, case: Case, **tile: int) -> tuple[Tensor, Tensor, Tensor]:
        """What comes out, and the cache's keys and values after it; `tile` changes fields of every Tile."""
        return pickle.loads(self._pool.submit(_attend, pickle.dumps((case, tile))).result())


@contextmanager
def interpreter() -> Iterator[Interpreted]:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, initializer=_begin) as pool:
        yield Interpreted(pool)


def _begin() -> None:
    os.environ["TRITON_INTERPRET"] = "1"
    torch.set_num_threads(1)


def _attend(sent: bytes) -> bytes:
    from engine.attention.triton_backend import TritonAttention
    from engine.kernels.attention import tiles

    case, changes = pickle.loads(sent)

    def changed(make: Any) -> Any:
        return lambda *given: replace(make(*given), **changes)

    backend = TritonAttention()
    with (
        patch.object(tiles, "for_tokens", changed(tiles.for_tokens)),
        patch.object(tiles, "for_chunks", changed(tiles.for_chunks)),
        torch.inference_mode(),
    ):
        out = backend.attend(case.q, case.k, case.v, case.layer, backend.prepare(case.batch))
    return pickle.dumps((out, case.layer.keys, case.layer.values))
