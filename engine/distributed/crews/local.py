"""Ranks that are processes of this machine, once torch is there: what they and the engine share."""

from collections.abc import Callable
from typing import Any

import torch

from engine.api.config import EngineConfig
from engine.devices import pick
from engine.distributed.collective import SharedMemoryCollective
from engine.distributed.crews.started import StartedRanks
from engine.distributed.groups.board import Board
from engine.distributed.groups.group import GroupCollective
from engine.distributed.groups.meeting import group_collective
from engine.distributed.ring import RingWriter
from engine.distributed.stages import near_stages


class LocalCrew:
    def __init__(
        self, config: EngineConfig, ranks: StartedRanks, check: Callable[[], None], *, grouped: bool
    ) -> None:
        """`check`: raises if one is lost. `grouped`: they sum over torch.distributed."""
        self._ranks, self._grouped, self.members = ranks, grouped, ranks.members
        self.steps = RingWriter(ranks.steps, ranks.ends, check)
        self.board = Board(ranks.boards) if grouped else None
        self.collective: SharedMemoryCollective | GroupCollective
        if self.board is None:
            self.collective = SharedMemoryCollective(0, ranks.wires)
        else:
            self.collective = group_collective(0, config, self.board, pick(config.device))

    def stages(self, config: EngineConfig, device: torch.device, _given_up: Callable[[], bool]) -> Any:
        """The group of rank 0 with the other stages."""
        return near_stages(0, config, device, self._ranks.meeting)

    @property
    def details(self) -> dict[str, Any]:
        """What each rank needs beside the configuration."""
        return {"meeting": self._ranks.meeting, "grouped": self._grouped}

    def kill(self) -> None:
        self._ranks.kill()

    def close(self) -> None:
        """Free the connections, after all ranks have ended."""
        if self.board is not None:
            self.board.close()
        self._ranks.end()
