"""Starts a rank inside its process: the model's share, the same cache as every other rank, the loop."""

import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.api import wire
from engine.api.config import ModelPlace
from engine.api.errors import EngineError
from engine.assembly import build_runner, load_share
from engine.devices import pick
from engine.distributed.collective import RankCollective, SharedMemoryCollective, Wires
from engine.distributed.groups.board import Board
from engine.distributed.groups.meeting import group_collective
from engine.distributed.identity import identity, visible_gpus
from engine.distributed.link import RankLink
from engine.distributed.loop import RankLoop
from engine.distributed.messages import error_to_wire
from engine.distributed.ring import RingEnds, RingReader
from engine.distributed.stage_loop import StageLoop
from engine.distributed.stages import PipelineLink, stage_of
from engine.scheduling.step_bytes import Bounds


def connect(given: dict[str, Any]) -> RankLoop:
    """Start as rank 0 does. An error is reported to the engine first.

    `given`: the file descriptors, as team.py passes them.
    """
    link = RankLink(socket.socket(fileno=given["link"]))
    memory, wake, woken, alarm = given["wires"]
    rank = given["rank"]
    collective = SharedMemoryCollective(
        rank % len(wake), Wires(memory, tuple(wake), tuple(woken), (alarm[0], alarm[1]))
    )
    ring = RingReader(given["ring"][0], RingEnds(*given["ring"][1:]))
    try:
        board = None if given["board"] is None else Board([socket.socket(fileno=given["board"])])
        return _loop(rank, link, collective, board, ring)
    except Exception as error:
        link.send({"error": error_to_wire(rank, error)})
        if isinstance(error, EngineError):
            raise
        raise EngineError(str(error)) from error


def _loop(
    rank: int, link: RankLink, collective: SharedMemoryCollective, board: Board | None, ring: RingReader
) -> RankLoop:
    start = _received(link)
    config = wire.config_from_json(start["config"])
    place = ModelPlace(start["model"], Path(start["folder"]))
    link.send({"hello": identity(config, place, visible_gpus() if start["gpus"] else ())})
    sums: RankCollective = collective
    device, stages = pick(config.device), None
    if config.pp > 1:
        stages = PipelineLink(rank, config, device, start["meeting"])
    if board is not None:
        sums = group = group_collective(rank, config, board, device)
        group.connect()
    elif config.tp > 1 and device.type == "cuda":
        # Imports Triton, which is only installed with a GPU.
        from engine.distributed.peers import PeerCollective

        sums = peers = PeerCollective(collective, device)
        link.send({"handle": peers.handle()})
        peers.connect(_received(link)["handles"])
    loaded = load_share(config, place, sums, stage=stage_of(rank, config))
    budget = loaded.budget
    link.send({"nbytes": budget.nbytes, "host_nbytes": budget.host_nbytes, "layers": len(budget.specs)})
    agreed = _received(link)
    budget = replace(budget, nbytes=agreed["nbytes"], host_nbytes=agreed["host_nbytes"])
    stop_ids = frozenset(agreed["stop_ids"])
    built = build_runner(replace(loaded, budget=budget), stop_ids, rank=rank, link=stages)
    slots, width = built.tables
    fit = budget.fit(config.kv_scheme)
    vocab, groups = loaded.model.config.vocab, budget.groups.count
    bounds = Bounds(slots, width, loaded.config.block_size, fit.blocks, vocab, groups)
    link.send({"ready": {"blocks": fit.blocks, "slots": slots, "width": width}})
    if stages is None:
        return RankLoop(built.runner, ring, link, sums, bounds, built.tiers, rank)
    loop = StageLoop(built.runner, ring, link, sums, bounds, built.tiers, rank)
    loop.link = stages
    return loop


def _received(link: RankLink) -> Any:
    return link.receive()  # without a limit: the heartbeat's thread ends this process with the engine
