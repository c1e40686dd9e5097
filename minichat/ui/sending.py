"""From the prompt into the chats, with the files that are named."""

from collections.abc import Sequence

from minichat.chats.errors import StoreError
from minichat.features.chats import chats
from minichat.features.feature import Context
from minichat.models.progress import size
from minichat.session.attachments import CannotAttach, attach
from minichat.session.conversation import Conversation
from minichat.ui.composing import Composing
from minichat.ui.transcript.glyphs import one_line


async def submit(context: Context, composing: Composing, text: str) -> None:
    """What the person wants to go; what cannot go is told, and stays in the prompt."""
    active, to = context.chats.active, context.workspace.recipients
    if await composing.may_go(text, to):
        _send(context, text, active, to)
    else:
        _give_back(context, text, active)


def _send(context: Context, text: str, active: Conversation, to: Sequence[Conversation]) -> None:
    workspace = context.workspace
    if busy := [each for each in to if each.streaming]:
        letters = ", ".join(each.chat.letter.upper() for each in busy)
        _give_back(context, text, active)
        are = "is" if len(busy) == 1 else "are"
        context.app.notify(f"{letters} {are} still answering: Esc stops it", severity="warning")
        return
    try:
        files = attach(text, [*context.program.start.first.piped, *active.files()])
        for conversation in to:
            conversation.send(text, files)
        if len(to) > 1:
            context.signals.broadcast(to)
    except (CannotAttach, StoreError) as error:
        _give_back(context, text, active)
        context.program.complain(one_line(str(error)))
    else:
        if files:
            names = ", ".join(f"{each.name} ({size(len(each.text.encode()))})" for each in files)
            context.app.notify(f"sent along: {one_line(names)}", markup=False)
    workspace.keep_drafts()
    workspace.label()


async def begin(context: Context, composing: Composing) -> None:
    """What the command line brought: in a chat where nothing was said or typed, or in a new one."""
    start, active = context.program.start, context.chats.active
    first, drawn_so = start.first, (active.chat.params, active.chat.system) == (start.params, start.system)
    if active.chat.messages or context.workspace.prompt.text:
        if first.text or (start.named and not drawn_so):
            await chats.new(context)
    elif start.named and not drawn_so:
        active.tune(start.params)
        active.instruct(start.system)
    if first.text:
        context.workspace.prompt.put(first.text)
    if first.send:
        context.workspace.prompt.put("")
        await submit(context, composing, first.text)
    if first.notice:
        context.app.notify(first.notice, timeout=8)


def recall(context: Context, back: int) -> None:
    """What the person said in this chat so many messages ago, or could say; 0 empties the prompt."""
    messages = context.chats.active.chat.messages
    own = [message.text for message in messages if message.role == "user"]
    own = own if messages else list(context.workspace.tries)
    if back <= len(own):
        context.workspace.prompt.recall(own[-back] if back else "", back)


def _give_back(context: Context, text: str, to: Conversation) -> None:
    """Into the prompt; or among the drafts, where the person has gone to another chat meanwhile."""
    if context.chats.active is to:
        context.workspace.prompt.put(text + context.workspace.prompt.text)
    else:
        to.chat.draft = text + to.chat.draft
