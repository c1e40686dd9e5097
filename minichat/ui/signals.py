"""Signals of the screen that its parts can subscribe to."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Generic, ParamSpec

from engine.api.events import Event
from engine.api.snapshot import Snapshot
from minichat.session.conversation import Conversation

P = ParamSpec("P")
Contain = Callable[[], AbstractContextManager[None]]  # keeps an exception of one subscriber from the others


class Signal(Generic[P]):
    """Calls its subscribers in order. One that fails does not stop the others."""

    def __init__(self, contain: Contain) -> None:
        self._contain = contain
        self._connected: list[Callable[P, None]] = []

    def connect(self, callback: Callable[P, None]) -> None:
        self._connected.append(callback)

    def disconnect(self, callback: Callable[P, None]) -> None:
        self._connected.remove(callback)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> None:
        for callback in tuple(self._connected):
            with self._contain():
                callback(*args, **kwargs)


class Signals:
    """The signals of one screen. A part subscribes when it is created."""

    def __init__(self, contain: Contain) -> None:
        self.contain = contain
        self.snapshot = Signal[Snapshot](contain)  # each one, also while no panel shows it
        self.events = Signal[Sequence[Event]](contain)
        self.owned = Signal[[]](contain)  # a request got its owner, perhaps after its first events
        self.replaced = Signal[[]](contain)  # a new engine counts requests from the start
        self.chat_changed = Signal[[]](contain)  # the active chat changed
        self.arranged = Signal[[]](contain)  # a panel was opened or closed
        self.presets = Signal[[]](contain)  # a preset was saved or deleted
        self.changed = Signal[Conversation](contain)  # a reply started or finished
        self.broadcast = Signal[Sequence[Conversation]](contain)  # one message was sent to all these
        self.selected = Signal[[]](contain)  # the selected text changed
        self.pointed = Signal[Sequence[int]](contain)  # the cursor is on these KV blocks
