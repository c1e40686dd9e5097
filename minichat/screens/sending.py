"""From the prompt into the chats, with the files that are named."""

from __future__ import annotations

from typing import TYPE_CHECKING

from minichat.attachments import CannotAttach, attach
from minichat.chats.errors import StoreError
from minichat.progress import size
from minichat.screens import deeds
from minichat.screens.partings import compare
from minichat.widgets.transcript.glyphs import one_line

if TYPE_CHECKING:
    from minichat.screens.main import MainScreen


def send(screen: MainScreen, text: str) -> None:
    """To the active chat, or to all panes; what cannot go stays in the prompt."""
    active = screen.chats.active
    to = screen.shown if screen.broadcast and active.editing is None else [active]
    if busy := [each for each in to if each.streaming]:
        letters = ", ".join(each.chat.letter.upper() for each in busy)
        _give_back(screen, text)
        are = "is" if len(busy) == 1 else "are"
        screen.notify(f"{letters} {are} still answering: Esc stops it", severity="warning")
        return
    try:
        files = attach(text, [*screen.program.start.first.piped, *active.files()])
        for conversation in to:
            conversation.send(text, files)
        if len(to) > 1:
            compare(screen, to)
    except (CannotAttach, StoreError) as error:
        _give_back(screen, text)
        screen.program.complain(one_line(str(error)))
    else:
        if files:
            names = ", ".join(f"{each.name} ({size(len(each.text.encode()))})" for each in files)
            screen.notify(f"sent along: {one_line(names)}", markup=False)
    screen.drafts.keep()
    screen.label()


async def begin(screen: MainScreen) -> None:
    """What the command line brought: in a chat where nothing was said or typed, or in a new one."""
    start, active = screen.program.start, screen.chats.active
    first, drawn_so = start.first, (active.chat.params, active.chat.system) == (start.params, start.system)
    if active.chat.messages or screen.prompt.text:
        if first.text or (start.named and not drawn_so):
            await deeds.new(screen)
    elif start.named and not drawn_so:
        active.tune(start.params)
        active.instruct(start.system)
    if first.text:
        screen.prompt.put(first.text)
    if first.send:
        screen.prompt.put("")
        send(screen, first.text)
    if first.notice:
        screen.notify(first.notice, timeout=8)


def recall(screen: MainScreen, back: int) -> None:
    """What the person said in this chat so many messages ago; 0 empties the prompt."""
    own = [message.text for message in screen.chats.active.chat.messages if message.role == "user"]
    if back <= len(own):
        screen.prompt.recall(own[-back] if back else "", back)


def _give_back(screen: MainScreen, text: str) -> None:
    screen.prompt.put(text + screen.prompt.text)
