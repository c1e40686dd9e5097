"""What happens on the screen, for the parts that want to know."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, ParamSpec

from engine.events import Event
from engine.snapshot import Snapshot
from minichat.session.conversation import Conversation

P = ParamSpec("P")


class Signal(Generic[P]):
    """Calls everything that was connected to it, in that order."""

    def __init__(self) -> None:
        self._connected: list[Callable[P, None]] = []

    def connect(self, hear: Callable[P, None]) -> None:
        self._connected.append(hear)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> None:
        for hear in self._connected:
            hear(*args, **kwargs)


@dataclass(frozen=True, slots=True)
class Signals:
    """One screen's. A part connects to what it follows when it is made."""

    snapshot: Signal[Snapshot] = field(default_factory=Signal)  # each one, whether anything of it is seen
    events: Signal[Sequence[Event]] = field(default_factory=Signal)
    replaced: Signal[[]] = field(default_factory=Signal)  # another engine: it counts requests anew
    turned: Signal[[]] = field(default_factory=Signal)  # another chat is active
    arranged: Signal[[]] = field(default_factory=Signal)  # another drawer is open, or none
    presets: Signal[[]] = field(default_factory=Signal)  # one was saved or deleted
    changed: Signal[Conversation] = field(default_factory=Signal)  # it began or ended a reply
    broadcast: Signal[Sequence[Conversation]] = field(default_factory=Signal)  # one message went to all these
    selected: Signal[[]] = field(default_factory=Signal)  # other text is selected
    pointed: Signal[Sequence[int]] = field(default_factory=Signal)  # at these blocks of the cache
