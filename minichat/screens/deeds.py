"""What a person does to a chat by a key, from the palette or from a menu."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from minichat.branching import join
from minichat.keys import key_name, keys_of
from minichat.layout import SEVERAL

if TYPE_CHECKING:
    from minichat.screens.main import MainScreen


def stop(screen: MainScreen) -> None:
    """Esc: the nearest thing that can be left is left."""
    active = screen.chats.active
    if active.editing is not None:
        active.editing = None
        screen.prompt.put(active.chat.draft)
        screen.label()
    elif screen.picking.walking:
        screen.picking.end()
    elif not active.stop():
        screen.prompt.focus()


def retry(screen: MainScreen) -> None:
    if not screen.chats.active.retry():
        screen.notify("there is no finished reply to draw again", severity="warning")


def edit(screen: MainScreen, message_id: int | None = None) -> None:
    active, typed = screen.chats.active, screen.prompt.text
    if (text := active.edit(message_id)) is None:
        screen.notify("there is no message of yours to edit while nothing is finished", severity="warning")
        return
    active.chat.draft = typed
    screen.prompt.put(text)
    screen.prompt.focus()
    screen.label()


async def copy_reply(screen: MainScreen) -> None:
    if text := screen.transcript.last_reply():
        await screen.program.send_to_clipboard(text)
    else:
        screen.notify("there is no reply to send to the clipboard", severity="warning")


def broadcast(screen: MainScreen) -> None:
    screen.broadcast = not screen.broadcast
    screen.label()
    if not screen.broadcast:
        screen.notify("what is sent goes to this chat alone")
    elif len(screen.shown) < 2:
        screen.notify(f"one pane is open: {_why_one(screen)}", severity="warning")


def _why_one(screen: MainScreen) -> str:
    """What it would take to see several."""
    key = partial(keys_of, keymap=screen.program.keymap)
    if (width := screen.size.width) < SEVERAL:
        return f"{SEVERAL} columns show several, and this terminal has {width}"
    if len(screen.chats) == 1:
        return f"this is the only chat; {key_name(key('chat.new'))} opens another"
    if not screen.side_by_side:
        return f"{key_name(key('view.panes'))} shows several"
    return "a drawer or the monitor stands where others would"


def side_by_side(screen: MainScreen) -> None:
    """Several chats, or one; what cannot be seen here is told instead."""
    if (width := screen.size.width) < SEVERAL:
        several = f"{SEVERAL} columns show several chats side by side"
        screen.notify(f"{several}, and this terminal has {width}", severity="warning")
        return
    screen.side_by_side = not screen.side_by_side
    screen.lay_out()
    if len(screen.chats) == 1:
        how = "several chats stand side by side" if screen.side_by_side else "one chat is seen at a time"
        screen.notify(f"{how}: this is the only one")


def go(screen: MainScreen, index: int) -> None:
    """To a chat by its place."""
    if index < len(screen.chats):
        screen.go_to(list(screen.chats)[index])
        screen.prompt.focus()
    else:
        screen.notify(f"there is no chat {index + 1}", severity="warning")


async def new(screen: MainScreen) -> None:
    screen.chats.active.chat.draft = screen.prompt.text
    screen.speak_to(screen.chats.new())
    screen.prompt.focus()


async def fork(screen: MainScreen, message_id: int | None = None) -> None:
    messages = screen.chats.active.chat.messages
    if not messages:
        screen.notify("there is nothing to fork yet", severity="warning")
        return
    source = screen.chats.active
    source.chat.draft = screen.prompt.text
    running = source.streaming and message_id in (None, messages[-1].id)
    child = screen.chats.fork(message_id or messages[-1].id)
    screen.speak_to(child)
    if running:  # else it has ended meanwhile
        join(child, source)
    screen.prompt.focus()


def pick(screen: MainScreen) -> None:
    """Goes to the line of tokens, and opens it first; from within, closes it."""
    if screen.pane.picker.has_focus:
        screen.picking.leave()
    else:
        screen.picking.begin()


async def close(screen: MainScreen) -> None:
    conversation = screen.chats.active
    conversation.chat.draft = screen.prompt.text
    kept = await screen.chats.close(conversation)
    screen.take_away(conversation)
    screen.prompt.focus()
    undo = key_name(keys_of("chat.reopen", screen.program.keymap))
    screen.notify(f"closed; {undo} brings it back" if kept else "closed; another window had deleted it")


async def delete(screen: MainScreen, chat_id: int) -> None:
    """For good, whether it is open or was closed."""
    screen.chats.active.chat.draft = screen.prompt.text
    if (conversation := screen.chats.of(chat_id)) is None:
        screen.chats.desk.store.delete_chat(chat_id)
    else:
        await screen.chats.delete(conversation)
        screen.take_away(conversation)
    screen.notify("deleted")


async def reopen(screen: MainScreen, chat_id: int | None = None) -> None:
    screen.chats.active.chat.draft = screen.prompt.text
    if conversation := screen.chats.reopen(chat_id):
        screen.speak_to(conversation)
    else:
        screen.notify("no chat is closed", severity="warning")
