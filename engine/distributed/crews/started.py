"""The processes of an engine's other ranks on this machine, and this end of their connections.

They need no configuration to import torch, and starting them needs no torch here. So an engine starts them
first, and they import it while the engine does.
"""

import errno
import os
import resource
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from engine.api.config import EngineConfig
from engine.api.errors import BadInput
from engine.distributed.crews.gpu_names import gpu_names, gpus_of_rank
from engine.distributed.crews.wires import memory_size, wires
from engine.distributed.member import Member, spawn
from engine.distributed.memory import anonymous
from engine.distributed.ring import CAPACITY, pipes
from engine.timeline import timed

COMMAND = (sys.executable, "-P", "-m", "engine.distributed.rank")
_early: "dict[RankCount, StartedRanks]" = {}  # started before their engine's configuration was here


class RankCount(NamedTuple):
    """How many ranks an engine has on this machine, and where."""

    tp: int = 1
    pp: int = 1
    device: str = "cpu"  # the engine's own

    @classmethod
    def of(cls, config: EngineConfig) -> "RankCount":
        return cls() if config.meet is not None else cls(config.tp, config.pp, config.device)

    @property
    def ranks(self) -> int:
        return self.tp * self.pp

    def visible(self) -> list[list[str]]:
        """The GPUs that the process of each rank sees. Empty on CPUs, or if there are not enough."""
        kind, _, index = self.device.partition(":")
        names, first = [] if kind == "cpu" else gpu_names(), int(index) if index.isdigit() else 0
        if first + self.ranks > len(names):
            return []
        return [gpus_of_rank(rank, first, names) for rank in range(self.ranks)]


def start_early(count: RankCount) -> None:
    """Start the ranks of an engine whose configuration comes later."""
    if count.ranks > 1:
        with suppress(OSError):  # `started_ranks` then tries again, and reports it
            _early[count] = StartedRanks(count, count.visible())


def started_ranks(config: EngineConfig) -> "StartedRanks | None":
    """The other ranks of this engine, started now if they were not before. None: it has none here."""
    if (count := RankCount.of(config)).ranks == 1:
        return None
    if (early := _early.pop(count, None)) is not None:
        return early
    try:
        return StartedRanks(count, count.visible())
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise
        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        raise BadInput(
            f"{count.ranks} ranks need more than {most} open files, which is this process's limit; "
            "use fewer ranks, or raise the limit (ulimit -n)"
        ) from error


class StartedRanks:
    """They end with this process. If no team takes them over, `end` them."""

    def __init__(self, count: RankCount, visible: Sequence[Sequence[str]]) -> None:
        """`visible`: by rank, the GPUs that its process sees, in its order. Empty on CPUs."""
        tp, self.on_gpus, self._open = count.tp, bool(visible), True
        self.steps, self.meeting = anonymous(CAPACITY), anonymous(0)
        stages = [wires(tp, anonymous(memory_size(tp))) for _ in range(count.pp)]
        every = [each for stage in stages for each in stage]
        ends, pairs = zip(*((pipes(), socket.socketpair()) for _ in every[1:]), strict=True)
        self.wires, self.ends, self.boards = every[0], [ours for ours, _ in ends], [ours for ours, _ in pairs]
        self.members: list[Member] = []
        try:
            with timed("starting the other ranks"):
                for rank, ((_, ring), (_, board)) in enumerate(zip(ends, pairs, strict=True), 1):
                    self.members.append(
                        spawn(
                            COMMAND, rank, self.steps, self.meeting, ring, every[rank], board.fileno(),
                            visible[rank] if visible else (), count.device if visible else "cpu",
                        )
                    )  # fmt: skip
        except BaseException:
            self.end()
            raise
        finally:
            for (_, ring), (_, board) in zip(ends, pairs, strict=True):
                ring.close()
                board.close()
            theirs = [fd for each in every[1:] for fd in (*each.wake, *each.woken) if fd >= 0]
            for stage in stages[1:]:
                theirs += [stage[0].memory, *stage[0].alarm]
            for fd in theirs:
                os.close(fd)

    def kill(self) -> None:
        for member in self.members:
            member.process.kill()
        for member in self.members:
            member.process.wait()

    def end(self) -> None:
        """Kill them, and close all connections. The second call does nothing."""
        if self._open:
            self._open = False
            self.kill()
            own = self.wires
            for fd in (self.steps, self.meeting, own.memory, *own.wake[1:], *own.woken[1:], *own.alarm):
                os.close(fd)
            for member in self.members:
                member.close()
            for each in (*self.ends, *self.boards):
                each.close()
