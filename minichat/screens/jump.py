"""Ctrl+O: every chat there is, to go to or to delete; what is typed is looked for in all that was said."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets import Input, OptionList

from minichat.chats.model import Chat
from minichat.keys import key_name, keys_of
from minichat.plural import plural
from minichat.screens import deeds
from minichat.screens.pick import Choice, PickScreen
from minichat.widgets.tabs import titled
from minichat.widgets.transcript.glyphs import one_line

if TYPE_CHECKING:
    from minichat.screens.main import MainScreen

_FOUND = 50
_DELETE = "chat.delete"


class JumpScreen(PickScreen[int]):
    """Open chats first. Gives the one to go to."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding(keys_of(_DELETE, {}), "delete", show=False, id=_DELETE)]

    def __init__(self, main: MainScreen) -> None:
        super().__init__("go to a chat", self._fitting, "a word said in any chat")
        self._main, self._store = main, main.chats.desk.store

    def on_mount(self) -> None:
        key = key_name(keys_of(_DELETE, self._main.program.keymap))
        self.query_one(".sheet").border_subtitle = f"Enter take  {key} delete  Esc"

    def action_delete(self) -> None:
        chosen = self.choice(self.query_one(OptionList).highlighted_option)
        if chosen is not None:
            chat = self._store.chat(chosen.value)
            ask_to_delete(self._main, chat, lambda: self._list(self.query_one(Input).value))

    def _fitting(self, query: str) -> list[Choice[int]]:
        self.say("")
        if query.strip():
            hits = self._store.search(query, _FOUND)
            if not hits:
                self.say("no chat is called so, and nowhere was it said")
            return [_choice(hit.chat, "", hit.title, hit.snippet if hit.message else "") for hit in hits]
        lines = sorted(self._store.listing(), key=lambda each: each.closed_at is not None)
        return [
            _choice(
                each.id,
                each.letter,
                each.title,
                "closed" if each.closed_at else plural(each.messages, "message"),
            )
            for each in lines
        ]


def _choice(chat_id: int, letter: str, title: str, note: str) -> Choice[int]:
    told = f" {titled(title)}  "
    return Choice(
        Content.assemble((f" {letter.upper():2} ", "bold"), told, (one_line(note), "$text-muted")), chat_id
    )


def jump(screen: MainScreen) -> None:
    async def take(chat_id: int | None) -> None:
        if chat_id is None:
            return
        if conversation := screen.chats.of(chat_id):
            screen.go_to(conversation)
        else:
            await deeds.reopen(screen, chat_id)

    screen.app.push_screen(JumpScreen(screen), take)


def delete_chat(screen: MainScreen) -> None:
    ask_to_delete(screen, screen.chats.active.chat)


def ask_to_delete(screen: MainScreen, chat: Chat, then: Callable[[], None] = lambda: None) -> None:
    """What is deleted comes back by no key; so Enter alone keeps it."""
    count = chat.earlier + len(chat.messages)

    async def take(sure: bool | None) -> None:
        if sure:
            with screen.program.complaining():
                await deeds.delete(screen, chat.id)
            then()

    choices = [Choice(Content(" Keep it"), False), Choice(Content(" Delete it for good"), True)]
    what = f"delete {titled(chat.title)} and its {plural(count, 'message')}?"
    screen.app.push_screen(PickScreen(what, lambda _: choices), take)
