"""Ranks that were started elsewhere, and connect to this process: with sockets only, and a secret."""

import subprocess
from collections.abc import Callable
from typing import Any

import torch

from engine.api.config import EngineConfig
from engine.api.places import MeetingPlace
from engine.devices import pick
from engine.distributed.crews.channels import RankChannels, accept_channels
from engine.distributed.crews.steps import StepSender
from engine.distributed.groups.board import Board
from engine.distributed.groups.meeting import group_collective
from engine.distributed.link import RankLink
from engine.distributed.member import Member
from engine.distributed.stages import far_stages
from engine.distributed.waiting import readable
from engine.host.joining import Door

JOINS = 600.0  # seconds that all other ranks have to connect


class FarProcess:
    """The process of a rank on another machine. It ends when its connections do."""

    def __init__(self, channels: RankChannels) -> None:
        self.pid, self._channels = 0, channels

    def kill(self) -> None:
        self._channels.end()

    def wait(self, timeout: float | None = None) -> int:
        """Wait until its connections have ended. How the process ends is not known here."""
        if timeout is not None and not readable(self._channels.steps.fileno(), timeout):
            raise subprocess.TimeoutExpired("rank", timeout)
        return 0


class FarCrew:
    def __init__(self, config: EngineConfig) -> None:
        assert config.meet is not None
        place = MeetingPlace.parse(config.meet)
        door = Door(place.host, place.port, place.secret())
        try:
            found = accept_channels(door, config.ranks - 1, JOINS)
        finally:
            door.close()
        self.members = [
            Member(rank, FarProcess(each), RankLink(each.link), each.pulse, None, each.host)
            for rank, each in enumerate(found, 1)
        ]
        self.steps = StepSender([each.steps for each in found])
        self._channels = found
        self.board = Board([each.board for each in found], host=found[0].own_host)
        self.collective = group_collective(0, config, self.board, pick(config.device))

    def stages(self, config: EngineConfig, _device: torch.device, given_up: Callable[[], bool]) -> Any:
        return far_stages(0, config, self.board, given_up)

    @property
    def details(self) -> dict[str, Any]:
        """What each rank needs beside the configuration."""
        return {"meeting": None, "grouped": True}

    def kill(self) -> None:
        for member in self.members:
            member.process.kill()

    def close(self) -> None:
        """Free the connections."""
        self.board.close()
        for each in self._channels:
            each.close()
