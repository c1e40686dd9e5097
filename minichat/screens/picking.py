"""Along the tokens of a reply: what else was likely at each, and a fork that goes on with that."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine
from typing import TYPE_CHECKING

from engine.errors import EngineError
from engine.events import TokenLogprob
from minichat.branching import go_on_with
from minichat.chats.model import Message
from minichat.screens import beside
from minichat.walk import NoWay, Walk, walk_along
from minichat.widgets.likely import likely_of
from minichat.widgets.marks import ASCII, UNICODE
from minichat.widgets.pane import ChatPane
from minichat.widgets.picker import TokenPicker

if TYPE_CHECKING:
    from minichat.screens.main import MainScreen

_AT_ONCE = 4  # places that the engine is asked for


class Picking:
    """One walk at a time, in the pane of the active chat."""

    def __init__(self, main: MainScreen) -> None:
        self._main = main
        self._pane: ChatPane | None = None
        self._walk: Walk | None = None
        self._task: asyncio.Task[None] | None = None
        self._told = -1  # the place whose candidates are shown

    @property
    def walking(self) -> bool:
        return self._walk is not None

    def begin(self, message_id: int | None = None) -> None:
        """Along the given reply, or the one that the reader has gone to, or the last one."""
        chosen = self._main.transcript.chosen
        replies = [*filter(_reply, self._main.chats.active.chat.messages)]
        usual = chosen if chosen and _reply(chosen) else replies[-1] if replies else None
        self.end()
        self._run(self._open(message_id if message_id is not None else usual.id if usual else -1))

    def end(self) -> None:
        """The line goes, and what it has marked."""
        if self._task is not None:
            self._task.cancel()
        if self._pane is not None:
            self._pane.pick(None)
            self._pane.transcript.light({}, "picked")
        self._pane = self._walk = self._task = None
        self._told = -1

    def leave(self) -> None:
        self.end()
        self._main.prompt.focus()

    def obey(self, said: TokenPicker.Said) -> None:
        """What the person does in the line of tokens."""
        match said:
            case TokenPicker.Moved(at=at):
                self.move(at)
            case TokenPicker.Taken(choice=choice):
                self.take(choice)
            case TokenPicker.Left():
                self.leave()

    def move(self, at: int) -> None:
        if self._walk is not None:
            self._walk.at = at
            self._run(self._show(self._walk))

    def take(self, choice: int) -> None:
        """The chat is forked at the reply, and goes on with the candidate."""
        main, walk, pane = self._main, self._walk, self._pane
        if walk is None or pane is None or (rivals := walk.trace.rivals.get(walk.at)) is None:
            return
        token, _ = rivals.top[choice]
        source = main.chats.active
        source.chat.draft = main.prompt.text
        self.end()
        child = main.chats.fork(walk.message.id)
        main.speak_to(child)
        go_on_with(child, walk, token)
        main.prompt.focus()

    async def _open(self, message_id: int) -> None:
        main = self._main
        chat = main.chats.active
        try:
            walk = await walk_along(chat, message_id)
        except (NoWay, EngineError) as error:
            main.notify(str(error), severity="warning", markup=False)
            return
        walk.at = _start(walk)
        self._walk = walk
        beside.uncover(main)
        self._pane = main.pane
        self._pane.pick(ASCII if main.program.start.ascii else UNICODE)
        self._picker.focus()
        await self._show(walk)

    @property
    def _picker(self) -> TokenPicker:
        assert self._pane is not None
        return self._pane.picker

    async def _show(self, walk: Walk) -> None:
        """First what is known; then what the engine says of this place, and of those beside it."""
        picker = self._picker
        self._tell(walk)
        place = walk.place()
        assert self._pane is not None
        self._pane.transcript.light({walk.message.id: [place]} if place else {}, "picked", show=True)
        try:
            await walk.look(walk.at)
            await walk.spell(walk.at)
            self._tell(walk)
            near = sorted(picker.seen(), key=lambda at: abs(at - walk.at))
            for begin in range(0, len(near), _AT_ONCE):
                await asyncio.gather(*map(walk.look, near[begin : begin + _AT_ONCE]))
                self._tell(walk)
        except EngineError as error:
            picker.trouble = str(error)

    def _tell(self, walk: Walk) -> None:
        picker, words = self._picker, self._main.program.backend.words
        picker.shares = [walk.share(at) for at in range(len(walk.trace.tokens))]
        picker.at, picker.trouble = walk.at, ""
        if not picker.words or not all(
            picker.words[at] for at in picker.seen()
        ):  # an engine elsewhere tells later
            picker.words = words(walk.trace.tokens)
        rivals = walk.trace.rivals.get(walk.at)
        picker.told = _told(rivals) if rivals else ""
        rows = likely_of(rivals, words)
        if self._told != walk.at:
            picker.choice = next((place for place, row in enumerate(rows) if row.chosen), 0)
        self._told = walk.at if rows else -1
        picker.rows = rows

    def _run(self, work: Coroutine[None, None, None]) -> None:
        if self._task is not None:
            self._task.cancel()
        self._task = asyncio.create_task(work, name="picking")


def _told(rivals: TokenLogprob) -> str:
    share = f"{math.exp(rivals.logprob):.1%}"
    return share if rivals.rank else f"under {share}"


def _reply(message: Message) -> bool:
    return message.role == "assistant"


def _start(walk: Walk) -> int:
    """The place that was least likely, of those that are known; else the first."""
    known = [(share, at) for at in range(len(walk.trace.tokens)) if (share := walk.share(at)) is not None]
    return min(known)[1] if known else 0
