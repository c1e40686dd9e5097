"""Launches that are recorded as CUDA graphs, and replayed.

Whatever is recorded runs on one stream and shares one piece of memory, since no two of them run at the same
time. Without memory for another recording, its launches go on one by one.
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
    """One for good: cuBLAS keeps a workspace of 32 MB for every stream that it has seen.

    Engines on several threads take turns: what one launches there while another records would be recorded.
    """
    return torch.cuda.Stream(device), Lock()


class Recorder:
    """Where graphs are recorded, and the memory that they share: they never run at the same time."""

    def __init__(self, device: torch.device) -> None:
        self.stream, self.alone = recording_stream(device)
        self.pool = torch.cuda.graph_pool_handle()
        self.full = False  # no memory was left for another one


class Recording:
    """Launches: rehearsed, and then one by one, the first time; a graph from then on."""

    def __init__(
        self,
        recorder: Recorder | None,
        launches: Callable[[], tuple[Tensor, ...]],
        precompile: Callable[[Callable[[], object]], None],
    ) -> None:
        """`precompile`: as a Stage's (graphs.py)."""
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
            # What lies in a form, or is the model's, is overwritten before it is collected.
            return tuple(each.clone() for each in self._launches())
        return self._aside(self._recorder)

    def _aside(self, recorder: Recorder) -> tuple[Tensor, ...]:
        """Runs on the stream of recordings, whose workspaces are made on the way."""
        now = torch.cuda.current_stream()
        with recorder.alone:
            recorder.stream.wait_stream(now)
            try:
                with torch.cuda.stream(recorder.stream):
                    if not self._warm:
                        self._precompile(self._launches)
                        self._warm = True
                    result = self._launches()
            finally:  # a step that fails has launched something
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
            logger.warning("no memory for another CUDA graph; such steps are launched one by one: %s", error)
        else:
            self._graph = graph
