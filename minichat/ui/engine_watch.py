"""The engine's latest snapshots and the owners of its requests, for all parts of the screen."""

from collections.abc import Sequence
from typing import Protocol

from engine.api.events import Event
from engine.api.snapshot import Snapshot
from minichat.session.conversation import Conversation
from minichat.ui.monitor.owners import Owner
from minichat.ui.signals import Signals


class Observer(Protocol):
    """Receives snapshots while it is visible."""

    def see_snapshot(self, snapshot: Snapshot) -> None: ...


class EngineWatch:
    """Passes snapshots and events to subscribers, and snapshots to visible panels."""

    def __init__(self, signals: Signals) -> None:
        self.owners: dict[int, Owner] = {}  # by request, finished ones too: their cached blocks remain
        self.latest: Snapshot | None = None
        self.at_work: Snapshot | None = None  # the latest one with running requests
        self.observers: list[Observer] = []  # those visible now
        self._signals = signals

    def took(self, conversation: Conversation, request: int) -> None:
        self.owners[request] = Owner(conversation.chat.letter.upper(), conversation.color)
        if self.latest is not None:
            self._share(self.latest)

    def forget(self) -> None:
        """Forget all requests: a new engine starts counting again."""
        self.owners.clear()
        self.latest = self.at_work = None
        self._signals.replaced()

    def show_snapshot(self, snapshot: Snapshot) -> None:
        self.latest = snapshot
        self._share(snapshot)
        if snapshot.running and snapshot.rates.steps:
            self.at_work = snapshot
        self._signals.snapshot(snapshot)
        for each in tuple(self.observers):
            self._show_to(each, snapshot)

    def _share(self, snapshot: Snapshot) -> None:
        """Requests of a group (several replies, beams) belong to the owner of its first request."""
        for view in snapshot.requests:
            if view.group in self.owners:
                self.owners.setdefault(view.id, self.owners[view.group])

    def show_events(self, events: Sequence[Event]) -> None:
        self._signals.events(events)

    def observe(self, observer: Observer) -> None:
        """Start showing snapshots to an observer that became visible, from the latest one on."""
        if observer not in self.observers:
            self.observers.append(observer)
            if self.latest is not None:
                self._show_to(observer, self.latest)

    def _show_to(self, observer: Observer, snapshot: Snapshot) -> None:
        with self._signals.contain():
            observer.see_snapshot(snapshot)

    def unobserve(self, observer: Observer) -> None:
        if observer in self.observers:
            self.observers.remove(observer)
