"""Two replicas in processes of their own, of which a dead one starts again once it may."""

import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

from engine.api.commands import Update
from engine.api.config import EngineConfig
from engine.api.events import Event, ReplicaChanged
from engine.api.params import SamplingParams
from engine.api.request import Finish
from engine.fleet.fleet import NUMBERS, Fleet
from engine.fleet.local import start_fleet
from engine.host.process import EngineProcess
from engine.host.stream import Stream
from tests.waiting import LIMIT


class Running:
    def __init__(self, folder: Path, restarts: int) -> None:
        self.may_start, self.pids = threading.Event(), dict[int, int]()

        def start(config: EngineConfig, log: Path) -> EngineProcess:
            assert not config.first_request % NUMBERS or self.may_start.wait(LIMIT)
            made = EngineProcess(config, log, dry_rate=100.0)
            self.pids[config.first_request // NUMBERS] = made.pid
            return made

        configs = [EngineConfig(model="pocket", blocks=256)] * 2
        self.fleet = start_fleet(configs, start, folder / "engine.log", restarts, pauses=(0.0,))
        self.events = list[Event]()
        self.fleet.subscribe(self.events.append)

    def states(self) -> list[str]:
        return [each.state for each in self.fleet.snapshot().replicas]

    def of(self, kind: type[Event]) -> list[Event]:
        return [each for each in self.events if isinstance(each, kind)]

    def changes(self) -> list[tuple[int, str]]:
        return [(each.replica, each.state) for each in self.events if isinstance(each, ReplicaChanged)]


def begun(fleet: Fleet, prompt: Sequence[int], params: SamplingParams) -> Stream:
    """A long reply with tokens of which none is read: on a busy machine there may be several at once."""
    arrived = threading.Event()
    stream = fleet.submit(prompt, params, wake=lambda _: arrived.set())
    assert arrived.wait(LIMIT)
    return stream


def two_replies(fleet: Fleet, params: SamplingParams) -> list[Stream]:
    """One of each replica, in their order. Both have begun."""
    streams = [begun(fleet, [*range(at, at + 40)], params) for at in (10, 200)]
    assert [each.id // NUMBERS for each in streams] == [0, 1]
    return streams


def end_whole(fleet: Fleet, streams: Iterable[Stream]) -> bool:
    """Shorten replies that still run. Return whether each ended by its length, so that none was cut."""
    streams = [*streams]
    for each in streams:
        fleet.send(Update(each.id, {"max_tokens": 1})).result()
    return all(each.result().finish is Finish.LENGTH for each in streams)
