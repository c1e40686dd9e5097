"""The options that an engine runs with now: some of them can change after its start."""

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.api.errors import EngineError
from engine.api.places import AdapterPlace
from minichat.clients.address import Address
from minichat.models.residents import Resident

if TYPE_CHECKING:  # it imports numpy
    from engine.api.snapshot import Snapshot

WITHIN = 3.0  # seconds for an engine to answer
_USUAL_TARGET = 1000.0  # milliseconds


async def ask(resident: Resident, path: str) -> Any:
    """What an engine answers to GET. Raises EngineError if it does not, as while it shuts down."""
    from minichat.clients.link import Link

    link = Link(Address("http://localhost", uds=str(resident.socket)))
    try:
        async with asyncio.timeout(WITHIN):
            await link.open()
            return await link.ask("GET", path)
    except TimeoutError:
        raise EngineError(f"no answer within {WITHIN:g} s") from None
    finally:
        await link.close()


def snapshot_of(resident: Resident) -> "Snapshot":
    from engine.api.wire import decode_snapshot

    return decode_snapshot(asyncio.run(ask(resident, "/engine/snapshot")))


@dataclass
class PresentOptions:
    """The options of a running engine: the words of its start, and the present values of some.

    The engine is asked once, and only about options that can change.
    """

    resident: Resident
    started: Sequence[str]  # words
    configured: Sequence[str]  # the names of those that were in config.toml
    tell: Callable[[str], None]  # called if the engine does not answer, so that the start counts
    # From which scheme to which one the weights are being converted, if the engine was asked and they are.
    # The second one is the present value of the option.
    conversion: str = field(default="", init=False)

    def values(self, name: str) -> list[str]:
        """The present values of an option, as in its words: one, several, or none."""
        head = f"{option(name)}="
        started = [each.removeprefix(head) for each in self.started if each.startswith(head)]
        if (find := _CHANGING.get(name)) is None or (shot := self._shot) is None:
            return started
        return find(shot, started)

    def has(self, name: str, word: str) -> bool:
        """Whether the engine has an option, given as a word."""
        if name not in _CHANGING:
            return word in self.started
        _, _, value = word.partition("=")
        found = self.values(name)
        return value in found or (name == "adapter" and any(_is_loaded(value, each) for each in found))

    def of(self, name: str, typed: Any) -> Any:
        """The value that a typed option must have now, so that it is one of the engine's."""
        if name not in _CHANGING or typed in (None, []):
            return typed
        found = self.values(name)
        if name == "adapter":
            return [each for each in typed if any(_name(each) == _name(one) for one in found)]
        return found[0] if found else None

    @cached_property
    def _shot(self) -> "Snapshot | None":
        record = self.resident.record
        if record is None or record.state != "ready" or "--dry-run" in self.started:  # it has no schemes
            return None
        try:
            shot = snapshot_of(self.resident)
        except EngineError as error:
            engine = f"the engine {self.resident.name}"
            self.tell(f"{engine} does not say what it runs with now ({error}); compared with its start")
            return None
        if _converts(shot):
            self.conversion = f"from {shot.quantization} to {_weights(shot, [])[0]}"
        return shot


def option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def present_options(resident: Resident, tell: Callable[[str], None]) -> PresentOptions | None:
    """None: it does not run, or does not say what it was started with."""
    record = resident.record
    if record is None or record.words is None or not resident.running() or resident.died():
        return None
    return PresentOptions(resident, record.words, record.configured, tell)


def _converts(shot: "Snapshot") -> bool:
    return shot.change is not None and not shot.change.over and not shot.change.error


def _weights(shot: "Snapshot", started: list[str]) -> list[str]:
    from engine.quant.registry import names

    name = shot.change.scheme if shot.change and _converts(shot) else shot.quantization
    return [name if name in names() else "none"]  # a checkpoint's own scheme has a name of its own


def _cache(shot: "Snapshot", started: list[str]) -> list[str]:
    return [shot.kv_scheme]


def _target(shot: "Snapshot", started: list[str]) -> list[str]:
    if (target := shot.latency_target) is None:  # the policy has none
        return started
    before = float(started[0]) if started else _USUAL_TARGET
    return started if math.isclose(before, 1000 * target) else [str(float(f"{1000 * target:.9g}"))]


def _slowdown(shot: "Snapshot", started: list[str]) -> list[str]:
    return [] if shot.max_slowdown is None else [str(float(shot.max_slowdown))]


def _adapters(shot: "Snapshot", started: list[str]) -> list[str]:
    """Those loaded later have the name of their folder, without the folders above it."""
    known = {_name(each): each for each in started}
    return [known.get(each.name, f"{each.name}={each.source}") for each in shot.adapters]


def _name(adapter: str) -> str:
    return AdapterPlace.parse(adapter).name


def _is_loaded(asked: str, loaded: str) -> bool:
    """Whether it may be an adapter that was loaded later. One from the hub is in a folder of another name."""
    wanted, there = AdapterPlace.parse(asked), AdapterPlace.parse(loaded)
    path = Path(wanted.path)
    same = path.name == there.path or not path.is_absolute()
    return wanted.name == there.name and "/" not in there.path and same


_CHANGING: dict[str, Callable[["Snapshot", list[str]], list[str]]] = {
    "quantization": _weights,
    "kv": _cache,
    "target_ms": _target,
    "max_slowdown": _slowdown,
    "adapter": _adapters,
}
