"""Ranks that are processes of this one: they share memory, and all of their connections are unnamed."""

import os
import socket
from collections.abc import Callable, Sequence
from typing import Any

from engine.api.config import EngineConfig
from engine.devices import pick
from engine.distributed.collective import SharedMemoryCollective, memory_size, wires
from engine.distributed.groups.board import Board
from engine.distributed.groups.group import GroupCollective
from engine.distributed.groups.meeting import group_collective
from engine.distributed.identity import Gpu
from engine.distributed.member import Member, spawn
from engine.distributed.memory import anonymous
from engine.distributed.ring import CAPACITY, RingWriter, pipes


class LocalCrew:
    def __init__(
        self,
        config: EngineConfig,
        command: tuple[str, ...],
        gpus: Sequence[Sequence[Gpu]],
        check: Callable[[], None],
        *,
        grouped: bool,
    ) -> None:
        """`command`: starts a rank. `gpus`: by rank, those of its process; empty on CPUs. `check`: raises if
        one is lost. `grouped`: they get a board.
        """
        steps, self.meeting, tp = anonymous(CAPACITY), anonymous(0), config.tp
        stages = [wires(tp, anonymous(memory_size(tp))) for _ in range(config.pp)]
        all_wires = [each for one in stages for each in one]
        ends = [pipes() for _ in range(1, config.ranks)]
        self._ends, self._wires = [ours for ours, _ in ends], all_wires[0]
        pairs = [socket.socketpair() for _ in ends] if grouped else []
        self.board = Board([ours for ours, _ in pairs]) if grouped else None
        self.members: list[Member] = []
        try:
            self.collective = self._collective(config)
            for rank, (_, theirs) in enumerate(ends, 1):
                visible = [each.uuid for each in gpus[rank]] if gpus else []
                self.members.append(
                    spawn(
                        command, rank, steps, self.meeting, theirs, all_wires[rank],
                        pairs[rank - 1][1].fileno() if grouped else None, visible,
                        config.device if gpus else "cpu",
                    )
                )  # fmt: skip
            self.steps = RingWriter(steps, self._ends, check)
        except BaseException:
            self.kill()
            os.close(self.meeting)
            if self.board is not None:
                self.board.close()
            raise
        finally:
            for _, theirs in ends:
                theirs.close()
            for _, inherited in pairs:
                inherited.close()
            for each in all_wires[1:]:
                for fd in (*each.wake, *each.woken):
                    if fd >= 0:
                        os.close(fd)
            for stage in stages:
                os.close(stage[0].memory)
            for fd in (fd for stage in stages[1:] for fd in stage[0].alarm):
                os.close(fd)
            os.close(steps)

    def _collective(self, config: EngineConfig) -> SharedMemoryCollective | GroupCollective:
        if self.board is None:
            return SharedMemoryCollective(0, self._wires)
        return group_collective(0, config, self.board, pick(config.device))

    @property
    def details(self) -> dict[str, Any]:
        """What each rank needs beside the configuration."""
        return {"meeting": self.meeting}

    def kill(self) -> None:
        for member in self.members:
            member.process.kill()
        for member in self.members:
            member.process.wait()

    def close(self) -> None:
        """Free the connections, after all ranks have ended."""
        if self.board is not None:
            self.board.close()
        os.close(self.meeting)
        for member in self.members:
            member.close()
        for ends in self._ends:
            ends.close()
        own = self._wires
        for fd in (*own.wake[1:], *own.woken[1:], *own.alarm):
            os.close(fd)
