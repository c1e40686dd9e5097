"""The decoding drawer kept up to date: the engine's snapshots on one side, the active chat on the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.snapshot import BeamsView, Snapshot, Speculation
from minichat.conversation import Conversation

if TYPE_CHECKING:
    from minichat.screens.main import MainScreen


@dataclass(slots=True)
class _Seen:
    """Of a chat's newest request; it stays when that has ended."""

    request: int
    beams: BeamsView | None = None
    speculation: Speculation | None = None


class Decoding:
    """Shows the active chat, whose likeliest tokens alone are asked for while the drawer is open."""

    def __init__(self, main: MainScreen) -> None:
        self._main = main
        self._seen: dict[int, _Seen] = {}  # by chat

    def turn(self) -> None:
        """Another chat is the active one, or the drawer was opened or closed, or decoding is set anew."""
        main, drawer = self._main, self._main.drawer
        for each in main.chats:
            each.watch(drawer.display and each is main.chats.active)
        drawer.knobs.presets = main.program.presets.all
        drawer.knobs.turn_to(main.chats.active.chat.params, main.chats.active.strategies)
        self.show()

    def see_snapshot(self, snapshot: Snapshot) -> None:
        drawer = self._main.drawer
        if not drawer.display:
            return
        drawer.knobs.kinds = snapshot.speculates
        self._look(self._main.chats.active, snapshot)
        self.show()

    def forget(self) -> None:
        """Another engine counts its requests anew."""
        self._seen.clear()

    def show(self) -> None:
        main, active = self._main, self._main.chats.active
        words, seen = main.program.backend.words, self._seen.get(active.chat.id)
        main.drawer.likely.show(active.likely, words)
        searching, beams = active.chat.params.beams > 1, seen.beams if seen else None
        main.drawer.show_search(searching, beams, words, over=not active.streaming)
        wanted = seen is not None and bool(active.chat.params.speculate)
        main.drawer.show_gains(seen.speculation if seen and wanted else None)

    def _look(self, active: Conversation, snapshot: Snapshot) -> None:
        if active.run is None or active.run.reply is None:
            return
        request = active.run.reply.id
        seen = self._seen.get(active.chat.id)
        if seen is None or seen.request != request:
            seen = self._seen[active.chat.id] = _Seen(request)
        seen.beams = next((each for each in snapshot.beams if each.request == request), seen.beams)
        views = (each.speculation for each in snapshot.requests if each.id == request)
        seen.speculation = next(views, None) or seen.speculation
