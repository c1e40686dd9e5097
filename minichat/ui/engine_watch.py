"""The engine's latest snapshots and the owners of its requests, for all parts of the screen."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from engine.api.events import Event, Forked
from engine.api.snapshot import Snapshot
from minichat.clients.protocol import LinkBack, LinkLost
from minichat.session.conversation import Conversation
from minichat.ui.monitor.figures import clock_time
from minichat.ui.monitor.owners import Owner
from minichat.ui.signals import Signals

_NO_ANSWER, _NO_LINK, _STOPPING = "no answer", "no link", "stopping"


class Observer(Protocol):
    """Receives snapshots while it is visible."""

    def see_snapshot(self, snapshot: Snapshot) -> None: ...


class EngineWatch:
    """Passes snapshots and events to subscribers, and snapshots to visible panels."""

    def __init__(self, signals: Signals, clock: Callable[[], float] = time.time) -> None:
        self.owners: dict[int, Owner] = {}  # by request, finished ones too: their cached blocks remain
        self.latest: Snapshot | None = None
        self.at_work: Snapshot | None = None  # the latest one with running requests
        self.cut = ""  # while the link is down or the engine does not answer: how old the latest snapshot is
        self.observers: list[Observer] = []  # those visible now
        self.clock, self._seen_at = clock, 0.0
        self._signals = signals

    def took(self, conversation: Conversation, request: int, role: str = "") -> None:
        self.owners[request] = Owner(conversation.chat.letter.upper(), conversation.color, role)
        if self.latest is not None:
            self._share(self.latest)
        self._signals.owned()

    def forget(self) -> None:
        """Forget all requests: a new engine starts counting again."""
        self._signals.replaced()
        self.owners = {}
        self.latest = self.at_work = None

    def show_snapshot(self, snapshot: Snapshot) -> None:
        before, self.latest, self._seen_at = self.latest, snapshot, self.clock()
        self._share(snapshot)
        if snapshot.running and snapshot.rates.steps:
            self.at_work = snapshot
        elif before is not None and before is self.at_work and snapshot.step_times.total:
            self.at_work = _to_its_end(before, snapshot)
        elif snapshot.rates.steps and not (before is not None and before.rates.steps):
            self.at_work = replace(snapshot)  # a run since the one before, and already over
        self._signals.snapshot(snapshot)
        for each in tuple(self.observers):
            self._show_to(each, snapshot)

    def _share(self, snapshot: Snapshot) -> None:
        """Requests of a group (several replies, beams) belong to the owner of its first request."""
        for view in snapshot.requests:
            if view.group in self.owners:
                self.owners.setdefault(view.id, self.owners[view.group])

    def show_events(self, events: Sequence[Event]) -> None:
        before = self.cut
        for event in events:
            match event:
                case LinkLost(ended=False, stopped=stopped):
                    self.cut = f"{_STOPPING if stopped else _NO_LINK}{self._seen}"
                case LinkLost(ended=True) | LinkBack():
                    self.cut = ""
                case Forked(request=request, group=group) if group in self.owners:
                    self.owners.setdefault(request, self.owners[group])
        self._signals.events(events)
        if self.cut != before:
            self._show_again()

    def show_late(self, on: bool) -> None:
        """Show that the engine does not answer, unless that is known: the link is down."""
        shown = self.silent
        if on != shown and (shown or not self.cut):
            self.cut = f"{_NO_ANSWER}{self._seen}" if on else ""
            self._signals.events(())
            self._show_again()

    @property
    def unlinked(self) -> bool:
        """Whether requests to the engine wait for the link."""
        return self.cut.startswith((_NO_LINK, _STOPPING))

    @property
    def stopping(self) -> bool:
        """Whether there is no link because the engine is being stopped."""
        return self.cut.startswith(_STOPPING)

    @property
    def gap(self) -> tuple[str, str]:
        """Why requests wait, and until when."""
        if self.silent:
            return "No answer", "the engine answers"
        if self.stopping:
            return "The engine is being stopped", "it runs again"
        return "No link", "it is back"

    @property
    def silent(self) -> bool:
        """Whether the engine does not answer, although there is a link."""
        return self.cut.startswith(_NO_ANSWER)

    @property
    def lack(self) -> str:
        """Why no message would be answered, in a word or two, although there is a link."""
        if self.silent:
            return "no answer"
        return "" if self.latest is None or self.latest.runs else "no engine"

    @property
    def _seen(self) -> str:
        return f", as of {clock_time(self._seen_at)}" if self.latest is not None else ""

    def _show_again(self) -> None:
        if self.latest is not None:
            for each in tuple(self.observers):
                self._show_to(each, self.latest)

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


def _to_its_end(before: Snapshot, after: Snapshot) -> Snapshot:
    """The last snapshot of a run with its last steps. Of a short run, `before` has only the first ones."""
    rates = after.rates if after.rates.steps else before.rates
    return replace(before, step_times=after.step_times, pace=after.pace, rates=rates)
