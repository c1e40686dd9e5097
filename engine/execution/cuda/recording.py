"""Captures launches as CUDA graphs and replays them.

All captures run on one stream and share one memory pool, because no two run at the same time. If there is no
memory for another capture, its kernels are launched one by one.
"""

import logging
from collections.abc import Callable
from functools import cache
from threading import Lock

import torch
from torch import Tensor

logger = logging.getLogger("minichat.engine")


@cache
def recording_stream(device: torch.device) -> tuple[torch.cuda.Stream, Lock]:
    """One permanent stream: cuBLAS keeps a 32 MB workspace for every stream it has seen.

    Engines on several threads hold the lock in turn: launches during another's capture would be captured.
    """
    return torch.cuda.Stream(device), Lock()


class Recorder:
    """The stream for captures, and the memory pool that all graphs share."""

    def __init__(self, device: torch.device) -> None:
        self.stream, self.alone = recording_stream(device)
        self.pool = torch.cuda.graph_pool_handle()
        self.full = False  # no memory was left for another graph


class Recording:
    """A sequence of launches: compiled and run one by one the first time, a graph afterwards."""

    def __init__(
        self,
        recorder: Recorder | None,
        launches: Callable[[], tuple[Tensor, ...]],
        precompile: Callable[[Callable[[], object]], None],
    ) -> None:
        """`precompile`: see Stage (graphs.py)."""
        self._recorder, self._launches, self._precompile = recorder, launches, precompile
        self._warm = False
        self._graph: torch.cuda.CUDAGraph | None = None
        self._result: tuple[Tensor, ...] | None = None

    def run(self) -> tuple[Tensor, ...]:
        if self._graph is None and self._warm and self._recorder and not self._recorder.full:
            self._record(self._recorder)
        if self._graph is not None and self._result is not None:
            self._graph.replay()
            return self._result
        if self._recorder is None:
            # Buffers and the model's tensors are overwritten before the result is collected, so copy it.
            return tuple(each.clone() for each in self._launches())
        return self._run_on_stream(self._recorder)

    def _run_on_stream(self, recorder: Recorder) -> tuple[Tensor, ...]:
        """Run on the capture stream, so that its workspaces are allocated."""
        now = torch.cuda.current_stream()
        with recorder.alone:
            recorder.stream.wait_stream(now)
            try:
                with torch.cuda.stream(recorder.stream):
                    if not self._warm:
                        self._precompile(self._launches)
                        self._warm = True
                    result = self._launches()
            finally:  # a failed step may have launched some work
                now.wait_stream(recorder.stream)
        for each in result:
            each.record_stream(now)
        return result

    def _record(self, recorder: Recorder) -> None:
        graph, now = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        try:
            with recorder.alone, torch.cuda.stream(recorder.stream):
                recorder.stream.wait_stream(now)
                graph.capture_begin(pool=recorder.pool, capture_error_mode="thread_local")
                try:
                    self._result = self._launches()
                finally:
                    graph.capture_end()
        except torch.OutOfMemoryError as error:
            recorder.full, self._result = True, None
            logger.warning("no memory for another CUDA graph; these steps are launched one by one: %s", error)
        else:
            self._graph = graph
