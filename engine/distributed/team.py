"""The other ranks of an engine: starts their processes, watches them, ends them.

Rank 0 is the engine's own process. Every other rank is a child with four connections: the ring with the
steps, a link for its answers, the pipes of the collective, and a socket for heartbeats. All are unnamed, so
the system frees them with the processes, however those end.
"""

import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch

from engine.api import wire
from engine.api.config import EngineConfig, ModelPlace
from engine.api.errors import BadInput, EngineDead, EngineError
from engine.api.events import log
from engine.api.snapshot import RankView
from engine.devices import pick
from engine.distributed.collective import (
    LIMIT,
    RankCollective,
    SharedMemoryCollective,
    memory_size,
    wires,
)
from engine.distributed.groups.board import Board
from engine.distributed.groups.meeting import group_collective
from engine.distributed.identity import (
    Gpu,
    check_same,
    gpus_of_rank,
    identity,
    order_of,
    visible_gpus,
)
from engine.distributed.member import ENDS, REFUSED, Member, beats, spawn, tail
from engine.distributed.memory import anonymous
from engine.distributed.messages import Kind
from engine.distributed.rank_meters import RankMeters
from engine.distributed.ring import CAPACITY, RingWriter, pipes
from engine.distributed.stages import PipelineLink, stage_of
from engine.execution.budget import CacheBudget
from engine.host.launching import describe_exit

_LOOK = 0.5  # seconds between checks of the heartbeats
_STARTS = 120.0  # seconds until a process has imported everything
_LOADS = 3600.0  # seconds to load its weights, while its heart beats
_CLOSES = 4.0  # seconds all of them have to write what their tiers hold, before they are killed


def gpus_of_ranks(config: EngineConfig) -> list[list[Gpu]]:
    """The GPUs of each rank's process; empty on CPUs. Raises if the ranks cannot have one each."""
    if (device := pick(config.device)).type == "cpu":
        return []
    # Imports Triton, which is only installed with a GPU.
    from engine.distributed.peers import why_not

    if problem := why_not(config, device):
        raise BadInput(f"{'tp' if config.pp == 1 else 'pp'}: {problem}")
    gpus = visible_gpus()
    return [gpus_of_rank(rank, device.index or 0, gpus) for rank in range(config.ranks)]


def needs_group(config: EngineConfig) -> bool:
    """Whether ranks sum over NCCL, because their GPUs cannot do that in each other's memory."""
    if (device := pick(config.device)).type == "cpu" or config.tp == 1:
        return False
    # Imports Triton, which is only installed with a GPU.
    from engine.distributed.peers import why_apart

    if problem := why_apart(config, device.index or 0):
        log.warning("ranks exchange over NCCL, which is slower: %s", problem)
    return bool(problem)


class Team:
    """Used by the engine's thread, unless a docstring says otherwise."""

    silence = 5.0  # seconds without a heartbeat after which a rank has stopped
    command: tuple[str, ...] = (sys.executable, "-P", "-m", "engine.distributed.rank")

    def __init__(
        self,
        config: EngineConfig,
        place: ModelPlace,
        gpus: Sequence[Sequence[Gpu]] = (),
        *,
        grouped: bool = False,
    ) -> None:
        """`gpus`: by rank, those of its process, in its order. Empty on CPUs.
        `grouped`: ranks sum over torch.distributed, and not in memory that they share.
        """
        self._config, self._place, self._gpus = config, place, gpus
        self.ranks, self.lost = config.ranks, ""  # why the team has ended; set from the watching thread
        self._gone, self._closing, self._started = threading.Event(), threading.Event(), False
        self._losing = threading.Lock()
        self._on_loss: Callable[[], None] = lambda: None
        self.meters = RankMeters(self.ranks)
        self._layers = [1] * self.ranks
        steps, self._meeting, tp = anonymous(CAPACITY), anonymous(0), config.tp
        stages = [wires(tp, anonymous(memory_size(tp))) for _ in range(config.pp)]
        ends, all_wires = [pipes() for _ in range(1, self.ranks)], [each for one in stages for each in one]
        self._ends, self._wires = [ours for ours, _ in ends], all_wires[0]
        pairs = [socket.socketpair() for _ in ends] if grouped else []
        self._board = Board([ours for ours, _ in pairs]) if grouped else None
        self.members: list[Member] = []
        try:
            self.collective = SharedMemoryCollective(0, all_wires[0])
            self.sums: RankCollective = self.collective
            self.link: PipelineLink | None = None  # to the other stages
            for rank, (_, theirs) in enumerate(ends, 1):
                visible = [each.uuid for each in gpus[rank]] if gpus else []
                self.members.append(
                    spawn(
                        self.command, rank, steps, self._meeting, theirs, all_wires[rank],
                        pairs[rank - 1][1].fileno() if grouped else None, visible,
                        config.device if gpus else "cpu",
                    )
                )  # fmt: skip
            self._ring = RingWriter(steps, self._ends, self.check)
        except BaseException:
            self._kill()
            os.close(self._meeting)
            if self._board is not None:
                self._board.close()
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
        self._watching = threading.Thread(target=self._watch, name="ranks", daemon=True)
        self._watching.start()
        start = {
            "config": wire.config_to_json(config),
            "model": place.name,
            "folder": str(place.folder),
            "meeting": self._meeting,
            "gpus": bool(gpus),
        }
        for member in self.members:
            self._tell(member, start)

    # While the engine starts

    def check_identities(self) -> None:
        """Wait until every rank has started. Raises if one differs from this process, or has other GPUs."""
        own = identity(self._config, self._place)
        for member in self.members:
            hello = self._reported(member, "hello", _STARTS)
            given = order_of(self._gpus[member.rank]) if self._gpus else {}
            check_same(member.rank, own | given, hello)
            member.beating = True

    def connect(self, device: torch.device) -> None:
        """Connect the stages of a pipeline, and the ranks of each."""
        if self._config.pp > 1:
            self.link = PipelineLink(0, self._config, device, self._meeting)
        if self._board is not None:
            self.sums = group = group_collective(0, self._config, self._board, device)
            group.connect()
            return
        if self._config.tp == 1 or device.type == "cpu":
            return
        # Imports Triton, which is only installed with a GPU.
        from engine.distributed.peers import PeerCollective

        self.sums = peers = PeerCollective(self.collective, device)
        theirs = [self._reported(member, "handle", _STARTS) for member in self.members]
        handles, tp = [peers.handle(), *theirs], self._config.tp
        for member in self.members:
            first = member.rank - member.rank % tp
            self._tell(member, {"handles": handles[first : first + tp]})
        peers.connect(handles[:tp])

    def agree(self, budget: CacheBudget, stop_ids: frozenset[int]) -> CacheBudget:
        """Wait until every rank has loaded its share. All get as many blocks as the one with the least
        memory for each layer of its stage.
        """
        own = {"nbytes": budget.nbytes, "host_nbytes": budget.host_nbytes, "layers": len(budget.specs)}
        shares = [own, *(self._reported(each, "nbytes", _LOADS, whole=True) for each in self.members)]
        self._layers = [each["layers"] for each in shares]
        for name in ("nbytes", "host_nbytes"):
            least = min(each[name] // each["layers"] for each in shares)
            for each in shares:
                each[name] = least * each["layers"]
        for member in self.members:
            self._tell(member, shares[member.rank] | {"stop_ids": sorted(stop_ids)})
        return replace(budget, nbytes=own["nbytes"], host_nbytes=own["host_nbytes"])

    def wait_until_ready(self, blocks: int, slots: int, width: int) -> None:
        own = {"blocks": blocks, "slots": slots, "width": width}
        for member in self.members:
            if (found := self._reported(member, "ready", _LOADS)) != own:
                raise EngineError(f"rank {member.rank} has a cache of {found}, and rank 0 of {own}")
        self._started = True

    def _tell(self, member: Member, value: Any) -> None:
        try:
            member.link.send(value)
        except OSError:
            raise self.loss() from None

    def _reported(self, member: Member, what: str, seconds: float, *, whole: bool = False) -> Any:
        try:
            frame = self.receive(member, seconds)
        except EngineDead as error:
            raise self._start_error() or error from None
        if frame is None:
            raise EngineError(f"rank {member.rank} did not start within {seconds:g} seconds")
        if "error" in frame:
            raise EngineError.from_wire(frame["error"])
        return frame if whole else frame[what]

    def _start_error(self) -> EngineError | None:
        """Return the error that a rank has reported before it ended."""
        for member in self.members:
            with suppress(EOFError):
                while (frame := member.link.receive(0.0)) is not None:
                    if "error" in frame:
                        return EngineError.from_wire(frame["error"])
        return None

    # While it runs

    def send(self, kind: Kind, payload: bytes = b"") -> int:
        """Send a message to all ranks. Returns its number."""
        self.check()
        try:
            return self._ring.send(kind, payload)
        except BrokenPipeError:
            raise self.loss() from None

    def receive(self, member: Member, seconds: float = LIMIT) -> Any:
        """Return what a rank reports next; None if it reports nothing for that long. Raises if it is lost."""
        until = time.monotonic() + seconds
        while True:
            try:
                frame = member.link.receive(min(_LOOK, max(0.0, until - time.monotonic())))
            except EOFError:
                raise self.loss() from None
            if frame is not None:
                return frame
            self.check()
            if time.monotonic() >= until:
                return None

    def check(self) -> None:
        """Raise if a rank is lost."""
        if self.lost:
            raise EngineDead(self.lost)

    def loss(self) -> EngineDead:
        """Return the reason why a connection has closed, which the watching thread is about to find."""
        self._gone.wait(self.silence + ENDS)
        return EngineDead(self.lost or "a rank has closed its connection")

    def on_loss(self, call: Callable[[], None]) -> None:
        """Call this, from another thread, when a rank is lost, or now if one is."""
        with self._losing:
            self._on_loss = call
        if self.lost:
            call()

    def views(self, device: str, cache: int) -> tuple[RankView, ...]:
        """All ranks. `cache`: the bytes of rank 0's share of the cache."""
        pids, piped = [os.getpid(), *(member.process.pid for member in self.members)], self._config.pp > 1
        return tuple(
            RankView(
                rank,
                device,
                pid,
                cache * self._layers[rank] // self._layers[0],
                self.meters.joining[rank],
                stage_of(rank, self._config) if piped else None,
                self.meters.bubble(rank) if piped else 0.0,
                self.meters.traffic[rank],
            )
            for rank, pid in enumerate(pids)
        )

    def close(self) -> None:
        """End the other ranks. From any thread; the second call does nothing."""
        if not self._closing.is_set():
            self._closing.set()
            if self._started and not self.lost:
                self._ask_to_end()
            self._watching.join()
            self._kill()
            self.sums.close()
            if self._board is not None:
                self._board.close()
            if self.link is not None:
                self.link.close()
            os.close(self._meeting)
            for member in self.members:
                member.link.close()
                member.pulse.close()
                member.log.close()
            for ends in self._ends:
                ends.close()
            own = self._wires
            for fd in (*own.wake[1:], *own.woken[1:], *own.alarm):
                os.close(fd)

    def _ask_to_end(self) -> None:
        until = time.monotonic() + _CLOSES
        with suppress(BrokenPipeError, subprocess.TimeoutExpired):
            self._ring.send(Kind.CLOSE, b"")
            for member in self.members:
                member.process.wait(max(0.0, until - time.monotonic()))

    # On the watching thread

    def _watch(self) -> None:
        members, poll = {member.pulse.fileno(): member for member in self.members}, select.poll()
        for fd in members:
            poll.register(fd, select.POLLIN)
        while not self._closing.is_set() and not self.lost:
            began = time.monotonic()
            ready = {fd for fd, _ in poll.poll(_LOOK * 1e3)}
            # Clipped: while this process was stopped, the others' beats were not read.
            passed = min(time.monotonic() - began, 2 * _LOOK)
            for fd, member in members.items():
                if fd in ready:
                    member.silent = 0.0
                    if not beats(member.pulse):
                        self._lose(member, member.end())
                        break
                elif member.beating:
                    member.silent += passed
                    if member.silent > self.silence:
                        self._lose(member, None)
                        break

    def _lose(self, member: Member, code: int | None) -> None:
        if self._closing.is_set():
            return
        hung = f"did not respond for {self.silence:g} seconds and was killed"
        problem = hung if code is None else describe_exit(code)
        if code != REFUSED:
            log.error("rank %d %s; the end of its log:\n%s", member.rank, problem, tail(member.log))
        self._kill()
        with self._losing:
            self.lost = f"rank {member.rank} {problem}"
            call = self._on_loss
        self.sums.interrupt()
        if self.link is not None:
            self.link.interrupt()
        self._gone.set()
        call()

    def _kill(self) -> None:
        for member in self.members:
            member.process.kill()
        for member in self.members:
            member.process.wait()
