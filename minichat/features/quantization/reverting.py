"""Tell the user that a restarted engine has other weights or another cache than before."""

from collections.abc import Sequence

from engine.api.events import Died, Event, Restarting
from engine.api.snapshot import Snapshot
from minichat.clients.protocol import LinkBack, LinkLost
from minichat.features.feature import Context

_WITHOUT_ENGINE = ("dead", "restarting")  # states


class Reverting:
    """Compares the engine before and after its loss. A server restarts it with its original options."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._latest: Snapshot | None = None
        self._lost: Snapshot | None = None  # the last one of an engine that was lost
        self._had = set[tuple[str, str, str]]()  # what models had: their names, the part, its form
        context.signals.snapshot.connect(self._see)
        context.signals.events.connect(self._note)

    def _note(self, events: Sequence[Event]) -> None:
        if any(isinstance(each, Died | Restarting) or _replaced(each) for each in events):
            self._lost = self._lost or self._latest

    def _see(self, snapshot: Snapshot) -> None:
        if snapshot.state in _WITHOUT_ENGINE:
            return
        lost, self._lost, self._latest = self._lost, None, snapshot
        if lost and lost.model == snapshot.model and (changes := self._changes(lost, snapshot)):
            notice = f"The engine was restarted: {' and '.join(changes)}"
            self._context.app.notify(notice, severity="warning", timeout=8)
        self._had.update((snapshot.model, what, form) for what, form in _forms(snapshot))

    def _changes(self, lost: Snapshot, now: Snapshot) -> list[str]:
        changes = []
        for (what, before), (_, after) in zip(_forms(lost), _forms(now), strict=True):
            if before == after:
                continue
            since = "again" if (now.model, what, after) in self._had else "now"
            changes.append(f"{what} no longer {before}" if after == "none" else f"{what} {after} {since}")
        return changes


def _replaced(event: Event) -> bool:
    """Whether another engine answers after it."""
    match event:
        case LinkBack(restarted=replaced) | LinkLost(ended=replaced):
            return replaced
    return False


def _forms(snapshot: Snapshot) -> tuple[tuple[str, str], ...]:
    return ("the weights are", snapshot.quantization), ("the KV cache is", snapshot.kv_scheme)
