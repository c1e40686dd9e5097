"""What happens on the screen, for the parts that want to know."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Generic, ParamSpec

from engine.api.events import Event
from engine.api.snapshot import Snapshot
from minichat.session.conversation import Conversation

P = ParamSpec("P")
Contain = Callable[[], AbstractContextManager[None]]  # what one part raises is kept from the others


class Signal(Generic[P]):
    """Calls everything that was connected to it, in that order, also after one of them has failed."""

    def __init__(self, contain: Contain) -> None:
        self._contain = contain
        self._connected: list[Callable[P, None]] = []

    def connect(self, hear: Callable[P, None]) -> None:
        self._connected.append(hear)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> None:
        for hear in self._connected:
            with self._contain():
                hear(*args, **kwargs)


class Signals:
    """One screen's. A part connects to what it follows when it is made."""

    def __init__(self, contain: Contain) -> None:
        self.contain = contain
        self.snapshot = Signal[Snapshot](contain)  # each one, whether anything of it is seen
        self.events = Signal[Sequence[Event]](contain)
        self.replaced = Signal[[]](contain)  # another engine: it counts requests anew
        self.turned = Signal[[]](contain)  # another chat is active
        self.arranged = Signal[[]](contain)  # another drawer is open, or none
        self.presets = Signal[[]](contain)  # one was saved or deleted
        self.changed = Signal[Conversation](contain)  # it began or ended a reply
        self.broadcast = Signal[Sequence[Conversation]](contain)  # one message went to all these
        self.selected = Signal[[]](contain)  # other text is selected
        self.pointed = Signal[Sequence[int]](contain)  # at these blocks of the cache
