"""The other ranks of an engine: starts their processes, watches them, ends them.

Rank 0 is the engine's own process. Every other rank is a process with four connections: the steps, a link
for its answers, the collective, and a socket for heartbeats. Those of this machine are unnamed, so the system
frees them with the processes, however those end.
"""

import os
import select
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from engine.api import wire
from engine.api.config import EngineConfig, ModelPlace
from engine.api.errors import BadInput, EngineDead, EngineError
from engine.api.events import log
from engine.api.snapshot import RankView
from engine.devices import pick
from engine.distributed.collective import LIMIT, RankCollective, SharedMemoryCollective
from engine.distributed.crews.far import FarCrew, FarProcess
from engine.distributed.crews.gpu_names import gpus_of_rank
from engine.distributed.crews.local import LocalCrew
from engine.distributed.crews.started import RankCount, StartedRanks
from engine.distributed.groups.group import GroupCollective
from engine.distributed.identity import (
    Gpu,
    check_same,
    identity,
    kind_of,
    order_of,
    visible_gpus,
)
from engine.distributed.link import REFUSED
from engine.distributed.member import ENDS, Member, beats, tail
from engine.distributed.messages import Kind
from engine.distributed.rank_meters import RankMeters
from engine.distributed.stages import PipelineLink, StageLost, stage_of
from engine.execution.budget import CacheBudget
from engine.host.launching import describe_exit
from engine.timeline import add_others, timed

if TYPE_CHECKING:  # imports Triton, which is only installed with a GPU
    from engine.distributed.peers import PeerCollective

_LOOK = 0.5  # seconds between checks of the heartbeats
_STARTS = 120.0  # seconds until a process has imported everything
_LOADS = 3600.0  # seconds to load its weights, while its heart beats
_CLOSES = 4.0  # seconds all of them have to write what their tiers hold, before they are killed


def gpus_of_ranks(config: EngineConfig) -> list[list[Gpu]]:
    """The GPUs of each rank's process. Empty on CPUs, and for ranks that are started elsewhere. Raises if the
    ranks cannot have one each.
    """
    if (device := pick(config.device)).type == "cpu":
        return []
    # Imports Triton, which is only installed with a GPU.
    from engine.distributed.peers import why_not

    if problem := why_not(config, device):
        raise BadInput(f"{'tp' if config.pp == 1 else 'pp'}: {problem}")
    if config.meet is not None:
        return []  # each of the others chooses its own
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


def team_of(config: EngineConfig, place: ModelPlace, started: StartedRanks | None) -> "Team":
    """The team of an engine. `started`: the processes of this machine's ranks."""
    with timed("the ranks' GPUs"):
        gpus, grouped = gpus_of_ranks(config), needs_group(config)
    if started is not None and started.on_gpus is not bool(gpus):  # torch does not find the driver's GPUs
        started.end()
        started = StartedRanks(RankCount.of(config), [[each.uuid for each in some] for some in gpus])
    return Team(config, place, started, gpus, grouped=grouped)


class Team:
    """Used by the engine's thread, unless a docstring says otherwise."""

    silence = 5.0  # seconds without a heartbeat after which a rank has stopped

    def __init__(
        self,
        config: EngineConfig,
        place: ModelPlace,
        started: StartedRanks | None,
        gpus: Sequence[Sequence[Gpu]] = (),
        *,
        grouped: bool = False,
    ) -> None:
        """`started`: the processes of this machine's ranks; None: all others are on other machines.
        `gpus`: by rank, those of its process, in its order. Empty on CPUs.
        `grouped`: ranks sum over torch.distributed, and not in memory that they share.
        """
        self._config, self._place, self._gpus = config, place, gpus
        self.ranks, self.lost = config.ranks, ""  # why the team has ended; set from the watching thread
        self._gone, self._closing, self._started = threading.Event(), threading.Event(), False
        self._losing = threading.Lock()
        self._on_loss: Callable[[], None] = lambda: None
        first = pick(config.device).index or 0
        self.meters = RankMeters(self.ranks, [each[first].uuid for each in gpus])
        self._layers = self._weights = [1] * self.ranks
        self._crew: LocalCrew | FarCrew
        if started is not None:
            self._crew = LocalCrew(config, started, self.check, grouped=grouped)
        else:
            self._crew = FarCrew(config)
        self.members = self._crew.members
        self.sums: RankCollective = self._crew.collective
        self._peers: PeerCollective | None = None  # not connected before all have started
        self.link: PipelineLink | None = None  # to the other stages
        self._watching = threading.Thread(target=self._watch, name="ranks", daemon=True)
        self._watching.start()
        start = {
            "config": wire.config_to_json(config),
            "model": place.name,
            "folder": str(place.folder),
            "gpus": bool(gpus),
        }
        for member in self.members:
            self._tell(member, start | self._crew.details | {"rank": member.rank})

    # While the engine starts

    def prepare(self, device: torch.device) -> None:
        """Take what the exchanges need of the device's memory, before the weights and the cache.

        Waits for the ranks only if torch.distributed takes it.
        """
        if self._config.pp > 1:
            self.check_identities()
            self.link = self._linked(device)
        if isinstance(self.sums, GroupCollective):
            if self.link is None:
                self.check_identities()
            self.sums.connect()
        elif isinstance(self.sums, SharedMemoryCollective) and self._config.tp > 1 and device.type == "cuda":
            with timed("memory for exchanges"):
                # Imports Triton, which is only installed with a GPU.
                from engine.distributed.peers import PeerCollective

                self.sums = self._peers = PeerCollective(self.sums, device)

    def _linked(self, device: torch.device) -> PipelineLink:
        """Meet the other stages."""
        try:
            group = self._crew.stages(self._config, device, lambda: bool(self.lost))
            return PipelineLink(0, self._config, device, group)
        except (RuntimeError, TimeoutError, StageLost):
            self.check()
            raise

    def check_identities(self) -> None:
        """Wait until every rank has started. Raises if one differs from this process, or has other GPUs."""
        own = identity(self._config, self._place) | kind_of(pick(self._config.device))
        for member in self.members:
            hello = self._reported(member, "hello", _STARTS)
            given = order_of(self._gpus[member.rank]) if self._gpus else {}
            check_same(member.rank, own | given, hello)
            if isinstance(member.process, FarProcess):
                member.process.pid = int(hello["pid"])
            member.beating = True

    def _meet(self) -> None:
        """Wait until every rank has started, if that was not needed before, and connect their memory."""
        if not all(member.beating for member in self.members):
            with timed("waiting for the other ranks"):
                self.check_identities()
        if self._peers is not None:
            with timed("connecting the ranks' memory"):
                self._connect(self._peers)

    def _connect(self, peers: "PeerCollective") -> None:
        """Let the GPUs of each stage write into each other's memory."""
        theirs = [self._reported(member, "handle", _STARTS) for member in self.members]
        handles, tp = [peers.handle(), *theirs], self._config.tp
        for member in self.members:
            first = member.rank - member.rank % tp
            self._tell(member, {"handles": handles[first : first + tp]})
        peers.connect(handles[:tp])

    def agree(self, budget: CacheBudget, stop_ids: frozenset[int], weights: int) -> CacheBudget:
        """Meet the ranks, and wait until each has loaded its share. All get as many blocks as the one with
        the least memory for each layer of its stage. `weights`: the bytes of those of rank 0.
        """
        self._meet()
        room = {"nbytes": budget.nbytes, "host_nbytes": budget.host_nbytes}
        own = room | {"layers": len(budget.specs), "weights": weights}
        with timed("waiting for the other ranks' weights"):
            shares = [own, *(self._reported(each, "nbytes", _LOADS, whole=True) for each in self.members)]
        self._layers, self._weights = ([each[name] for each in shares] for name in ("layers", "weights"))
        for name in ("nbytes", "host_nbytes"):
            least = min(each[name] // each["layers"] for each in shares)
            for each in shares:
                each[name] = least * each["layers"]
        for member in self.members:
            self._tell(member, shares[member.rank] | {"stop_ids": sorted(stop_ids)})
        return replace(budget, nbytes=own["nbytes"], host_nbytes=own["host_nbytes"])

    def wait_until_ready(self, blocks: int, slots: int, width: int) -> None:
        own = {"blocks": blocks, "slots": slots, "width": width}
        with timed("waiting until the other ranks are ready"):
            found = [self._reported(member, "ready", _LOADS, whole=True) for member in self.members]
        for member, frame in zip(self.members, found, strict=True):
            if frame["ready"] != own:
                raise EngineError(f"rank {member.rank} has a cache of {frame['ready']}, and rank 0 of {own}")
            if not member.host:  # on another machine, the clock is another one
                add_others(frame["spans"], f"rank {member.rank}")
        self._started = True

    def _tell(self, member: Member, value: Any) -> None:
        try:
            member.link.send(value)
        except OSError:
            loss = self.loss()
            raise self._start_error() or loss from None

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
            return self._crew.steps.send(kind, payload)
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

    def views(self, device: str, memory: Mapping[str, int]) -> tuple[RankView, ...]:
        """All ranks. `memory`: that of rank 0, from whose share follow the others'."""
        cache, weights = memory.get("cache", 0), memory.get("weights", 0)
        pids, piped = [os.getpid(), *(member.process.pid for member in self.members)], self._config.pp > 1
        hosts = ["", *(member.host for member in self.members)]
        return tuple(
            RankView(
                rank,
                f"{device} on {hosts[rank]}" if hosts[rank] else device,
                pid,
                cache * self._layers[rank] // self._layers[0],
                self.meters.joining[rank],
                stage_of(rank, self._config) if piped else None,
                self.meters.bubble(rank) if piped else 0.0,
                self.meters.traffic[rank],
                self.meters.load(rank),
                weights * self._weights[rank] // self._weights[0],
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
            self._crew.kill()
            self.sums.close()
            if self.link is not None:
                self.link.close()
            self._crew.close()

    def _ask_to_end(self) -> None:
        until = time.monotonic() + _CLOSES
        with suppress(BrokenPipeError, subprocess.TimeoutExpired):
            self._crew.steps.send(Kind.CLOSE, b"")
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
        problem = self._problem(member, code)
        if code != REFUSED and member.log is not None:
            log.error("rank %d %s; the end of its log:\n%s", member.rank, problem, tail(member.log))
        self._crew.kill()
        with self._losing:
            self.lost = f"rank {member.rank} {problem}"
            call = self._on_loss
        self.sums.interrupt()
        if self.link is not None:
            self.link.interrupt()
        self._gone.set()
        call()

    def _problem(self, member: Member, code: int | None) -> str:
        hung = f"did not respond for {self.silence:g} seconds"
        if member.host:
            return f"on {member.host} " + (hung if code is None else "has closed its connections")
        return f"{hung} and was killed" if code is None else describe_exit(code)
