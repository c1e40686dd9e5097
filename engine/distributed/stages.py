"""Which stage of a pipeline a rank belongs to, and how steps pass from stage to stage: gloo on CPUs, NCCL on
GPUs.

Rank 0 is the engine's own process, and it samples: it belongs to the last stage, and later ranks to earlier
ones. So tokens need not be sent back. The engine sends them to the first stage as ids of the next step.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import FileStore

from engine.api.config import EngineConfig
from engine.api.errors import EngineError
from engine.distributed.collective import LIMIT
from engine.distributed.groups.board import Board
from engine.distributed.groups.clocks import CpuClock, GpuClock
from engine.distributed.groups.neighbors import Neighbors
from engine.distributed.groups.process_group import LOOPBACK, process_group

_MOST = 8  # streams that may wait for the next stage, which is far behind then


class StageLost(EngineError):
    """The connection to another stage has ended."""


def stage_of(rank: int, config: EngineConfig) -> int:
    return config.pp - 1 - rank // config.tp


def near_stages(rank: int, config: EngineConfig, device: torch.device, meeting: int) -> Any:
    """The group of stages on one machine. `meeting`: the descriptor of a file in which they find each other.
    It must stay open as long as the group.
    """
    store = FileStore(f"/proc/self/fd/{meeting}", config.ranks)
    return process_group(store, rank, config.ranks, device, LOOPBACK, LIMIT)


def far_stages(
    rank: int, config: EngineConfig, board: Board, given_up: Callable[[], bool] = lambda: False
) -> Neighbors:
    """The group of stages that may be on several machines, on CPUs."""
    stage = stage_of(rank, config)
    before = None if stage == 0 else rank + config.tp
    after = None if stage == config.pp - 1 else rank - config.tp
    return Neighbors(rank, before, after, board, given_up)


class PipelineLink:
    """Between a rank and those with the same place in the stages before and after. One thread uses it."""

    def __init__(self, rank: int, config: EngineConfig, device: torch.device, group: Any) -> None:
        """Wait until all ranks have connected. `group`: as `near_stages` or `far_stages` make it."""
        stage = stage_of(rank, config)
        self.stages, self.first, self.last = config.pp, stage == 0, stage == config.pp - 1
        self._before, self._after = rank + config.tp, rank - config.tp
        self._device, self._clock = device, GpuClock() if device.type == "cuda" else CpuClock()
        self._group = group
        self._received = self._sent = False
        self.sent = 0  # bytes, to the next stage
        self._sends: deque[tuple[Any, Tensor]] = deque()
        self.carry(1, torch.float32)
        with self.step(1):  # NCCL connects with the first exchange
            stream = self.blank(1) if self.first else self.receive(1)
            if not self.last:
                self.send(stream)
        self._clock.reset()
        self.sent = 0

    def carry(self, hidden: int, dtype: torch.dtype) -> None:
        """Set the width and the type of the streams."""
        self._hidden, self._dtype = hidden, dtype

    @property
    def busy(self) -> float:
        """Seconds that this stage has spent in steps so far, without waiting for the stage before it."""
        return self._clock.busy

    @contextmanager
    def step(self, tokens: int) -> Iterator[None]:
        """Run one step inside. If it fails, its exchanges are made up, so that the stages stay in step."""
        self._received = self._sent = not tokens
        self._clock.begin()
        try:
            yield
        except Exception:
            with suppress(StageLost):
                if not self.first and not self._received:
                    self.receive(tokens)
                if not self.last and not self._sent:
                    self.send(self.blank(tokens))
            raise
        finally:
            self._clock.end()

    def blank(self, tokens: int) -> Tensor:
        return torch.zeros(tokens, self._hidden, dtype=self._dtype, device=self._device)

    def receive(self, tokens: int) -> Tensor:
        stream = torch.empty(tokens, self._hidden, dtype=self._dtype, device=self._device)
        self._received = True
        self._clock.wait()
        try:
            self._group.recv([stream], self._before, 0).wait()
        except RuntimeError as error:
            raise StageLost(f"the stage before this one is lost: {error}") from None
        finally:
            self._clock.go_on()
        return stream

    def send(self, stream: Tensor) -> None:
        self._sent = True
        self.sent += stream.nbytes
        if self._device.type == "cuda":
            stream = stream.clone()  # the next replay of a graph overwrites it
        try:
            self._sends.append((self._group.send([stream.contiguous()], self._after, 0), stream))
            while self._sends and (len(self._sends) > _MOST or self._sends[0][0].is_completed()):
                self._sends.popleft()[0].wait()
        except RuntimeError as error:
            raise StageLost(f"the stage after this one is lost: {error}") from None

    def interrupt(self) -> None:
        """End all exchanges, because a rank is lost. From any thread."""
        if self._device.type == "cuda" or isinstance(self._group, Neighbors):
            self._group.abort()  # else its process has been killed, and the connections have ended

    def close(self) -> None:
        self.interrupt()
        self._sends.clear()
        self._group = None
