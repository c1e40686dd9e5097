"""Captures launches as CUDA graphs and replays them.

All captures run on one stream and share one memory pool, because no two run at the same time. If there is no
memory for another capture, its kernels are launched one by one.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from threading import Lock

import torch
from torch import Tensor

from engine.execution.protocol import Compilation

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
        self.used = False  # whether anything ran on the stream, so that libraries have their workspaces
        self.full = False  # no memory was left for another graph
        self.captures = 0  # and the first run, which is slow, too

    @contextmanager
    def launching(self) -> Iterator[None]:
        """Launch on this stream, between earlier and later work of the current one."""
        now = torch.cuda.current_stream()
        with self.alone:
            self.stream.wait_stream(now)
            try:
                with torch.cuda.stream(self.stream):
                    yield
            finally:  # a failed step may have launched some work
                now.wait_stream(self.stream)


class Recording:
    """A sequence of launches as a graph, captured at the latest by its first run. The first of all is not."""

    def __init__(
        self,
        recorder: Recorder | None,
        launches: Callable[[], tuple[Tensor, ...]],
        start_compiling: Callable[[], Compilation],
    ) -> None:
        """`start_compiling`: compiles their kernels."""
        self._recorder, self.launches, self._start_compiling = recorder, launches, start_compiling
        self.compiled = False
        self._graph: torch.cuda.CUDAGraph | None = None
        self._result: tuple[Tensor, ...] = ()

    def run(self) -> tuple[Tensor, ...]:
        if self._recorder is None:
            # Buffers and the model's tensors are overwritten before the result is collected, so copy it.
            return tuple(each.clone() for each in self.launches())
        self.capture()
        if self._graph is None:
            return self._run_once(self._recorder)
        self._graph.replay()
        return self._result

    def capture(self) -> None:
        """Make the graph without running it, if there is none and it can be made."""
        recorder = self._recorder
        if self._graph is None and recorder is not None and recorder.used and not recorder.full:
            self._capture(recorder)

    def _run_once(self, recorder: Recorder) -> tuple[Tensor, ...]:
        now = torch.cuda.current_stream()
        with recorder.launching():
            self._compile()
            result = self.launches()
        recorder.captures += not recorder.used
        recorder.used = True
        for each in result:
            each.record_stream(now)
        return result

    def _capture(self, recorder: Recorder) -> None:
        graph = torch.cuda.CUDAGraph()
        recorder.captures += 1
        try:
            with recorder.launching():
                self._compile()
                # Relaxed: a kernel that the compiler did not foresee may still be loaded.
                graph.capture_begin(pool=recorder.pool, capture_error_mode="relaxed")
                try:
                    self._result = self.launches()
                finally:
                    graph.capture_end()
        except torch.OutOfMemoryError as error:
            recorder.full, self._result = True, ()
            logger.warning("no memory for another CUDA graph; these steps are launched one by one: %s", error)
        else:
            self._graph = graph

    def _compile(self) -> None:
        if not self.compiled:
            self._start_compiling().wait()
            self.compiled = True
