"""Starts a rank inside its process: the model's share, the same cache as every other rank, the loop."""

import os
import socket
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from engine import timeline
from engine.api import wire
from engine.api.config import EngineConfig, ModelPlace
from engine.api.errors import EngineError
from engine.assembly import build_runner, load_share
from engine.devices import pick
from engine.distributed.collective import SharedMemoryCollective
from engine.distributed.crews.steps import StepReceiver
from engine.distributed.crews.wires import Wires
from engine.distributed.groups.board import Board
from engine.distributed.groups.group import GroupCollective
from engine.distributed.groups.meeting import group_collective
from engine.distributed.groups.process_group import LOOPBACK
from engine.distributed.identity import identity, kind_of, visible_gpus
from engine.distributed.link import RankLink
from engine.distributed.loop import RankLoop, StepReader
from engine.distributed.messages import error_to_wire
from engine.distributed.ring import RingEnds, RingReader
from engine.distributed.stage_loop import StageLoop
from engine.distributed.stages import PipelineLink, far_stages, near_stages, stage_of
from engine.execution.weights import weight_bytes
from engine.models.find import find_model
from engine.scheduling.step_bytes import Bounds
from engine.timeline import timed

if TYPE_CHECKING:  # imports Triton, which is only installed with a GPU
    from engine.distributed.peers import PeerCollective


def connect(given: dict[str, Any]) -> RankLoop:
    """Start as rank 0 does. An error is reported to the engine first.

    `given`: the file descriptors, as the one who starts this process passes them.
    """
    link = RankLink(socket.socket(fileno=given["link"]))
    start = _received(link)
    rank = start["rank"]
    try:
        return _loop(rank, link, start, given)
    except Exception as error:
        link.send({"error": error_to_wire(rank, error)})
        if isinstance(error, EngineError):
            raise
        raise EngineError(str(error)) from error


def _loop(rank: int, link: RankLink, start: dict[str, Any], given: dict[str, Any]) -> RankLoop:
    config = wire.config_from_json(start["config"])
    place, own = ModelPlace(start["model"], Path(start["folder"])), config
    if "steps" in given:  # started on another machine
        place = find_model(config.model, dummy=config.dummy_weights)
        own = replace(config, device=given["device"])
    device, stages = pick(own.device), None
    gpus = visible_gpus() if start["gpus"] else ()
    with timed("what all ranks must have in common"):
        own_identity = identity(config, place, gpus) | kind_of(device)
    link.send({"hello": own_identity | {"pid": str(os.getpid())}})
    config, ring = own, _reader(given)
    board = _board(given) if start["grouped"] else None
    if config.pp > 1:
        meeting = start["meeting"]
        if board is not None and meeting is None:
            group = far_stages(rank, config, board)
        else:
            group = near_stages(rank, config, device, meeting)
        stages = PipelineLink(rank, config, device, group)
    with timed("memory for exchanges"):
        sums = _collective(rank, config, device, given, board)
    peers = sums if not isinstance(sums, SharedMemoryCollective | GroupCollective) else None
    if peers is not None:
        link.send({"handle": peers.handle()})
    loaded = load_share(config, place, sums, stage=stage_of(rank, config))
    if peers is not None:
        with timed("connecting the ranks' memory"):
            peers.connect(_received(link)["handles"])
    budget = loaded.budget
    room = {"nbytes": budget.nbytes, "host_nbytes": budget.host_nbytes}
    link.send(room | {"layers": len(budget.specs), "weights": weight_bytes(loaded.model)})
    with timed("waiting for the other ranks' weights"):
        agreed = _received(link)
    budget = replace(budget, nbytes=agreed["nbytes"], host_nbytes=agreed["host_nbytes"])
    stop_ids = frozenset(agreed["stop_ids"])
    built = build_runner(replace(loaded, budget=budget), stop_ids, rank=rank, link=stages)
    slots, width = built.tables
    fit = budget.fit(config.kv_scheme)
    vocab, groups = loaded.model.config.vocab, budget.groups.count
    bounds = Bounds(slots, width, loaded.config.block_size, fit.blocks, vocab, groups)
    ready = {"blocks": fit.blocks, "slots": slots, "width": width}
    link.send({"ready": ready, "spans": timeline.as_text(own=True)})
    if stages is None:
        return RankLoop(built.runner, ring, link, sums, bounds, built.tiers, rank)
    loop = StageLoop(built.runner, ring, link, sums, bounds, built.tiers, rank)
    loop.link = stages
    return loop


def _collective(
    rank: int, config: EngineConfig, device: torch.device, given: dict[str, Any], board: Board | None
) -> "SharedMemoryCollective | GroupCollective | PeerCollective":
    if board is not None:
        group = group_collective(rank, config, board, device)
        group.connect()
        return group
    _socket(given, "board").close()
    memory, wake, woken, alarm = given["wires"]
    ends = Wires(memory, tuple(wake), tuple(woken), (alarm[0], alarm[1]))
    collective = SharedMemoryCollective(rank % config.tp, ends)
    if config.tp == 1 or device.type == "cpu":
        return collective
    # Imports Triton, which is only installed with a GPU.
    from engine.distributed.peers import PeerCollective

    return PeerCollective(collective, device)


def _board(given: dict[str, Any]) -> Board:
    return Board([_socket(given, "board")], given.get("host", LOOPBACK))


def _reader(given: dict[str, Any]) -> StepReader:
    if "steps" in given:
        return StepReceiver(_socket(given, "steps"))
    memory, *ends = given["ring"]
    return RingReader(memory, RingEnds(*ends))


def _socket(given: dict[str, Any], name: str) -> socket.socket:
    return socket.socket(fileno=given[name])


def _received(link: RankLink) -> Any:
    return link.receive()  # without a limit: the heartbeat's thread ends this process with the engine
