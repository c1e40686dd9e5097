"""The other ranks of an engine: starts their processes, watches them, ends them.

Rank 0 is the engine's own process. Every other rank is a child with four connections: the ring with the
steps, a link for its answers, the pipes of the collective, and a socket for heartbeats. All are unnamed, so
the system frees them with the processes, however those end.
"""

import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import IO, TYPE_CHECKING, Any

import torch

from engine.api import wire
from engine.api.config import EngineConfig, ModelPlace
from engine.api.errors import EngineDead, EngineError
from engine.api.events import log
from engine.api.snapshot import RankView
from engine.distributed.collective import (
    LIMIT,
    RankCollective,
    SharedMemoryCollective,
    Wires,
    memory_size,
    wires,
)
from engine.distributed.identity import check_same, identity
from engine.distributed.link import RankLink
from engine.distributed.memory import anonymous
from engine.distributed.messages import Kind
from engine.distributed.ring import CAPACITY, RingEnds, RingWriter, pipes
from engine.execution.budget import CacheBudget
from engine.host.launching import child_environment, describe_exit

if TYPE_CHECKING:
    from engine.distributed.peers import PeerCollective

_LOOK = 0.5  # seconds between checks of the heartbeats
_STARTS = 120.0  # seconds until a process has imported everything
_LOADS = 3600.0  # seconds to load its weights, while its heart beats
_ENDS = 2.0  # seconds a process has to exit after its connections close
_CLOSES = 4.0  # seconds all of them have to write what their tiers hold, before they are killed
_NEWEST = 0.1  # the weight of the newest step in a running mean
_TAIL = 2000  # bytes of its log in ours


@dataclass(slots=True)
class Member:
    """A rank in another process."""

    rank: int
    process: subprocess.Popen[bytes]
    link: RankLink
    pulse: socket.socket
    log: IO[bytes]
    beating: bool = False  # whether its heart is watched: it has started
    silent: float = 0.0  # seconds since its last heartbeat

    def end(self) -> int | None:
        """Return the exit code of a process whose connections are closed; None if it had to be killed."""
        try:
            return self.process.wait(_ENDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return None


class Team:
    """Used by the engine's thread, unless a docstring says otherwise."""

    silence = 5.0  # seconds without a heartbeat after which a rank has stopped
    command: tuple[str, ...] = (sys.executable, "-P", "-m", "engine.distributed.rank")

    def __init__(self, config: EngineConfig, place: ModelPlace, visible: Sequence[str] = ()) -> None:
        """`visible`: by rank, the GPUs of its process (CUDA_VISIBLE_DEVICES)."""
        self._config, self._place = config, place
        self.ranks, self.lost = config.tp, ""  # why the team has ended; set from the watching thread
        self._gone, self._closing, self._started = threading.Event(), threading.Event(), False
        self._losing = threading.Lock()
        self._on_loss: Callable[[], None] = lambda: None
        self._joining = [0.0] * self.ranks  # running means, by rank
        shared, steps = anonymous(memory_size(self.ranks)), anonymous(CAPACITY)
        ends, all_wires = [pipes() for _ in range(1, self.ranks)], wires(self.ranks, shared)
        self._ends, self._wires = [ours for ours, _ in ends], all_wires[0]
        self.members: list[Member] = []
        try:
            self.collective = SharedMemoryCollective(0, all_wires[0])
            self.sums: RankCollective = self.collective
            self._peers: PeerCollective | None = None
            for rank, (_, theirs) in enumerate(ends, 1):
                gpus = {"visible": visible[rank]} if visible else {}
                self.members.append(spawn(self.command, rank, steps, theirs, all_wires[rank], **gpus))
            self._ring = RingWriter(steps, self._ends, self.check)
        except BaseException:
            self._kill()
            raise
        finally:
            for _, theirs in ends:
                theirs.close()
            for each in all_wires[1:]:
                for fd in (*each.wake, *each.woken):
                    if fd >= 0:
                        os.close(fd)
            os.close(shared)
            os.close(steps)
        self._watching = threading.Thread(target=self._watch, name="ranks", daemon=True)
        self._watching.start()
        start = {"config": wire.config_to_json(config), "model": place.name, "folder": str(place.folder)}
        for member in self.members:
            self._tell(member, start)

    # While the engine starts

    def check_identities(self) -> None:
        """Wait until every rank has started. Raises if one differs from this process."""
        own = identity(self._config, self._place)
        for member in self.members:
            hello = self._reported(member, "hello", _STARTS)
            check_same(member.rank, own, hello)
            member.beating = True

    def connect(self, device: torch.device) -> None:
        """Let the ranks' GPUs write into each other's memory."""
        # Imports Triton, which is only installed with a GPU.
        from engine.distributed.peers import PeerCollective

        self.sums = self._peers = peers = PeerCollective(self.collective, device)
        theirs = [self._reported(member, "handle", _STARTS) for member in self.members]
        handles = [peers.handle(), *theirs]
        for member in self.members:
            self._tell(member, {"handles": handles})
        peers.connect(handles)

    def agree(self, budget: CacheBudget, stop_ids: frozenset[int]) -> CacheBudget:
        """Wait until every rank has loaded its share. All get the cache of the one with the least memory."""
        sizes = [(budget.nbytes, budget.host_nbytes)]
        for member in self.members:
            nbytes = self._reported(member, "nbytes", _LOADS, whole=True)
            sizes.append((nbytes["nbytes"], nbytes["host_nbytes"]))
        least, host_least = (min(column) for column in zip(*sizes, strict=True))
        agreed = {"nbytes": least, "host_nbytes": host_least, "stop_ids": sorted(stop_ids)}
        for member in self.members:
            self._tell(member, agreed)
        return replace(budget, nbytes=least, host_nbytes=host_least)

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
            raise self._loss() from None

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
            raise self._loss() from None

    def receive(self, member: Member, seconds: float = LIMIT) -> Any:
        """Return what a rank reports next; None if it reports nothing for that long. Raises if it is lost."""
        until = time.monotonic() + seconds
        while True:
            try:
                frame = member.link.receive(min(_LOOK, max(0.0, until - time.monotonic())))
            except EOFError:
                raise self._loss() from None
            if frame is not None:
                return frame
            self.check()
            if time.monotonic() >= until:
                return None

    def check(self) -> None:
        """Raise if a rank is lost."""
        if self.lost:
            raise EngineDead(self.lost)

    def _loss(self) -> EngineDead:
        """The reason why a connection has closed, which the watching thread is about to find."""
        self._gone.wait(self.silence + _ENDS)
        return EngineDead(self.lost or "a rank has closed its connection")

    def on_loss(self, call: Callable[[], None]) -> None:
        """Call this, from another thread, when a rank is lost, or now if one is."""
        with self._losing:
            self._on_loss = call
        if self.lost:
            call()

    def views(self, device: str, cache: int) -> tuple[RankView, ...]:
        """All ranks, with their process and the bytes of their share of the cache."""
        pids = [os.getpid(), *(member.process.pid for member in self.members)]
        return tuple(RankView(rank, device, pid, cache, self._joining[rank]) for rank, pid in enumerate(pids))

    def note_step(self, joining: Iterable[float]) -> None:
        """Take the share of a step that each rank has spent in collectives."""
        for rank, share in enumerate(joining):
            self._joining[rank] += _NEWEST * (share - self._joining[rank])

    def close(self) -> None:
        """End the other ranks. From any thread; the second call does nothing."""
        if not self._closing.is_set():
            self._closing.set()
            if self._started and not self.lost:
                self._ask_to_end()
            self._watching.join()
            self._kill()
            if self._peers is not None:
                self._peers.close()
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
                    if not _beats(member.pulse):
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
        log.error("rank %d %s; the end of its log:\n%s", member.rank, problem, _tail(member.log))
        self._kill()
        with self._losing:
            self.lost = f"rank {member.rank} {problem}"
            call = self._on_loss
        self.sums.interrupt()
        self._gone.set()
        call()

    def _kill(self) -> None:
        for member in self.members:
            member.process.kill()
        for member in self.members:
            member.process.wait()


def spawn(
    command: tuple[str, ...], rank: int, steps: int, ring: RingEnds, wires: Wires, visible: str = ""
) -> Member:
    link, their_link = socket.socketpair()
    pulse, their_pulse = socket.socketpair()
    given = {
        "rank": rank,
        "link": their_link.fileno(),
        "pulse": their_pulse.fileno(),
        "ring": [steps, *ring],
        "wires": wires,
    }
    output = tempfile.TemporaryFile()  # noqa: SIM115  # the member closes it
    with their_link, their_pulse:
        process = subprocess.Popen(
            [*command, json.dumps(given)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=[their_link.fileno(), their_pulse.fileno(), steps, *ring, *wires.fds()],
            env=child_environment() | ({"CUDA_VISIBLE_DEVICES": visible} if visible else {}),
            start_new_session=True,  # it must not receive Ctrl+C or the terminal's hangup
        )
    return Member(rank, process, RankLink(link), pulse, output)


def _beats(pulse: socket.socket) -> bool:
    with suppress(ConnectionError):
        return bool(pulse.recv(4096))
    return False


def _tail(file: IO[bytes]) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _TAIL))
    return file.read().decode(errors="replace").strip()
