"""Chats: create, fork, rename, close, reopen and delete them, and set their system prompts."""

from collections.abc import Callable, Iterator
from functools import partial

from textual.content import Content

from minichat.chats.model import Chat, Message, fork_mark, title_from
from minichat.features.chats.overview import meant, overview_with_keys
from minichat.features.feature import Context, Feature, Handler, Offer, ScreenCommand
from minichat.plural import plural
from minichat.session.branching import join
from minichat.session.conversation import Conversation
from minichat.ui import sending
from minichat.ui.dialogs.ask import AskScreen, ask
from minichat.ui.dialogs.pick import Choice, PickScreen
from minichat.ui.panes.tabs import titled

DELETE_KEY = "alt+d"  # also in the list of all chats
_TITLE = 32  # characters of a title in a question; the rest of it fits, too


async def new(context: Context) -> None:
    context.workspace.new_chat()


async def fork(context: Context, message: Message | None = None) -> None:
    source = context.chats.active if message else meant(context)
    messages = source.chat.messages
    if not messages:
        context.app.notify("There is no message to fork from yet", severity="warning")
        return
    message_id = message.id if message else messages[-1].id
    running = source.streaming and message_id == messages[-1].id
    if running and source.run is not None and source.run.searching:
        way = sending.way_to_stop(context, [source])
        context.app.notify(f"A beam search has no fork before its end. {way}", severity="warning")
        return
    context.workspace.keep_draft()
    child = context.chats.fork(message_id, source)
    context.workspace.follow_chat(child)
    if running:  # otherwise the reply has ended
        join(child, source)
    context.workspace.prompt.focus()


async def close(context: Context) -> None:
    conversation = meant(context)
    context.workspace.keep_drafts()
    replying = conversation.streaming
    kept = await context.chats.close(conversation)
    context.workspace.take_away(conversation)
    if overview_with_keys(context) is None:
        context.workspace.prompt.focus()
    gone = "Chat closed. Another window had deleted it"
    context.app.notify(_can_be_reopened(context, replying=replying) if kept else gone)


def _can_be_reopened(context: Context, *, replying: bool) -> str:
    closed = "Chat closed, its reply stopped" if replying else "Chat closed"
    return f"{closed}. {context.keys.name('chat.reopen')} reopens it"


async def delete(context: Context, chat_id: int) -> None:
    """Delete a chat permanently, whether it is open or closed."""
    context.workspace.keep_draft()
    if (conversation := context.chats.of(chat_id)) is None:
        context.chats.erase(chat_id)
    else:
        await context.chats.delete(conversation)
        context.workspace.take_away(conversation)
    context.app.notify("Chat deleted")
    context.program.ask(_forget(context))


async def _forget(context: Context) -> None:
    """The engine's disk may be slow, or fail: the chat is gone all the same."""
    with context.program.reporting_errors():
        await context.chats.forget()


def ask_to_delete(context: Context, chat: Chat, then: Callable[[], None] = lambda: None) -> None:
    """Ask before deleting. Deletion cannot be undone, so Enter alone keeps the chat."""
    count = chat.earlier + len(chat.messages)

    async def take(sure: bool | None) -> None:
        if sure:
            with context.program.reporting_errors():
                await delete(context, chat.id)
            then()

    choices = [Choice(Content(" Keep it"), False), Choice(Content(" Delete permanently"), True)]
    title = titled(chat.title)
    mark = fork_mark(title) if len(title) > _TITLE else ""
    title = title_from(title.removesuffix(mark), _TITLE - len(mark)) + mark
    what = f'Delete "{title}" and its {plural(count, "message")}?'
    context.app.push_screen(PickScreen(what, lambda _: choices), take)


def delete_active(context: Context) -> None:
    ask_to_delete(context, meant(context).chat)


async def reopen(context: Context, chat_id: int | None = None) -> None:
    context.workspace.keep_draft()
    if conversation := context.chats.reopen(chat_id):
        for replying in (False, True):
            context.app.end_notice(_can_be_reopened(context, replying=replying))
        context.workspace.follow_chat(conversation)
    else:
        context.app.notify("There is no closed chat", severity="warning")


def go(context: Context, index: int) -> None:
    """Go to a chat by its index."""
    if index < len(context.chats):
        _go_to(context, list(context.chats)[index])
    else:
        context.app.notify(f"There is no chat {index + 1}", severity="warning")


def _go_to(context: Context, conversation: Conversation) -> None:
    context.workspace.go_to(conversation)
    context.workspace.prompt.focus()


def go_by(context: Context, by: int) -> None:
    if len(context.chats) == 1:
        context.app.notify(f"There is no other chat. {context.keys.name('chat.new')} opens one")
        return
    go(context, (context.chats.index + by) % len(context.chats))


def _to(index: int) -> Handler:
    return lambda context: go(context, index)


def _by(count: int) -> Handler:
    return lambda context: go_by(context, count)


def rename(context: Context) -> None:
    renamed = meant(context)

    def accept(title: str) -> bool:
        if not title.strip():
            if renamed.chat.title:
                context.app.notify("A chat's name cannot be blank", severity="warning")
            return not renamed.chat.title
        with context.program.reporting_errors():
            renamed.rename(title.strip())
        return True

    ask(context.app, "Rename this chat", accept, renamed.chat.title)


def instruct(context: Context) -> None:
    instructed, key = meant(context), context.keys.name("chat.system")
    left = f"What you typed is not used. {key} shows it again"
    context.app.end_notice(left)

    def keep() -> None:
        instructed.chat.typed_system = asked.text if asked.holds_work() else None
        context.workspace.keep_drafts(soon=True)

    def take(text: str | None) -> None:
        keep()
        if text is not None:
            instructed.chat.typed_system = None
            with context.program.reporting_errors():
                instructed.instruct(text.strip())
        context.workspace.keep_drafts()
        if instructed.chat.typed_system is not None:
            context.app.notify(left)

    typed = instructed.chat.typed_system
    when = "applies from the next reply" if typed is None else "typed, not used yet; ^Z: the one in use"
    if context.lifecycle.alive and not context.program.backend.has_template:
        when = "no effect: this model has no chat template"
    asked = AskScreen(f"System prompt ({when})", instructed.chat.system, lines=True, typed=typed, keep=keep)
    context.app.push_screen(asked, take)


def _offers(context: Context) -> Iterator[Offer]:
    for conversation in context.chats:
        chat = conversation.chat
        title = f"Go to {chat.letter.upper()}: {titled(chat.title)}"
        yield title, "Chats", partial(_go_to, context, conversation)


CHATS = Feature(
    name="chats",
    title="Chats",
    commands=(
        ScreenCommand("chat.new", "Chats", "New chat", new, "ctrl+n", "new"),
        ScreenCommand("chat.fork", "Chats", "Fork this chat", fork, "alt+k", also="branch copy"),
        ScreenCommand("chat.rename", "Chats", "Rename this chat", rename, "alt+t"),
        ScreenCommand(
            "chat.system",
            "Chats",
            "Edit the system prompt of this chat",
            instruct,
            "alt+s",
            also="role persona",
        ),
        ScreenCommand("chat.close", "Chats", "Close this chat", close, "alt+w"),
        ScreenCommand("chat.reopen", "Chats", "Reopen the last closed chat", reopen, "alt+z", also="undo"),
        ScreenCommand("chat.delete", "Chats", "Delete this chat permanently", delete_active, DELETE_KEY),
        ScreenCommand("chat.next", "Chats", "Next chat", _by(1), "ctrl+pagedown,alt+l"),
        ScreenCommand("chat.previous", "Chats", "Previous chat", _by(-1), "ctrl+pageup,alt+h"),
        *(
            ScreenCommand(f"chat.{n}", "Chats", f"Go to chat {n}", _to(n - 1), f"alt+{n}", palette=False)
            for n in range(1, 10)
        ),
    ),
    offers=_offers,
)
