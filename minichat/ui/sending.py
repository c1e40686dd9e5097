"""Sends messages from the prompt to the chats, with their attachments."""

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress

from engine.api.errors import EngineError, WeightsChanging
from minichat.chats.errors import ChatChanged, ChatGone, StoreError
from minichat.chats.model import Message
from minichat.chats.queries import PAGE
from minichat.features.feature import Context
from minichat.session.attachments import CannotAttach, attach, listed
from minichat.session.conversation import Conversation
from minichat.shell.background import begin as begin_work
from minichat.ui.composing import Composing
from minichat.ui.drafts import keep, unsent
from minichat.ui.transcript.glyphs import one_line

ANOTHER = "Switch to another reply"  # the command
_AT_ONCE = 1.0  # seconds that the screen waits for the check of a message; keys typed meanwhile come after it
_CHECKING = "Checking the message before it is sent ..."
_LONG = 600.0  # seconds; the notice ends with the check


async def submit(context: Context, composing: Composing, text: str) -> None:
    """Send a message. If it cannot be sent, show why and leave it in the prompt.

    The check may wait for the engine or a folder for long. Then it goes on in the background.
    """
    active, to, checked = context.chats.active, context.workspace.recipients, asyncio.Event()

    async def check_and_send() -> None:
        try:
            may = await composing.may_send(text, to)
        finally:
            checked.set()
            context.app.end_notice(_CHECKING)
        if may and all(each in context.chats for each in to):  # else it was closed meanwhile
            _send(context, text, active, to)
        else:
            _give_back(context, text, active)

    begin_work(context.app, check_and_send, group="sending")
    with suppress(TimeoutError):
        await asyncio.wait_for(checked.wait(), _AT_ONCE)
    if not checked.is_set():
        context.app.notify(_CHECKING, timeout=_LONG)
        context.program.poller.wake()  # it says if the engine does not answer


def _send(context: Context, text: str, active: Conversation, to: Sequence[Conversation]) -> None:
    workspace = context.workspace
    if busy := [each for each in to if each.streaming]:
        _give_back(context, text, active)
        warn_busy(context, busy)
        return
    try:
        newest = active.newest
        if busy := [each for each in to if context.chats.replying_elsewhere(each)]:
            _give_back(context, text, active)
            warn_busy_elsewhere(context, busy)
            return
        _check_edit(active, newest)
        files = attach(text, [*context.program.start.first.piped, *active.files()], warned=True)
        _check_stored(context, to)
        edited = active.editing is not None
        for conversation in to:
            conversation.send(text, files, replace=conversation is active)
        if len(to) > 1:
            context.signals.broadcast(to)
    except ChatChanged as error:
        _give_back(context, text, active)
        _warn_changed(context, to, error)
    except (CannotAttach, StoreError) as error:
        _give_back(context, text, active)
        context.program.report(one_line(str(error)))
    else:
        if files:
            context.app.notify(f"Attached: {one_line(listed(files))}")
        if edited:
            kept = "Kept what you edited until the chat goes on or the reply is regenerated"
            context.app.notify(f"{kept}. To see it: {_way_to_another(context)}")
        if edited and context.chats.active is active:
            workspace.prompt.give_back(active.chat.draft)  # what was typed before the edit
    workspace.keep_drafts()
    workspace.label()


def ask(context: Context, request: Coroutine[object, object, None]) -> None:
    """Send a user's request to the engine in the background. Say if it has to wait for the link."""
    if context.engine.unlinked:
        why, when = context.engine.gap
        context.app.notify(f"{why}. This is sent when {when}", severity="warning")
    context.program.ask(_with_way(context, request))


async def _with_way(context: Context, request: Coroutine[object, object, None]) -> None:
    """Run the request. Say how to cancel a conversion that it has to wait for."""
    try:
        await request
    except WeightsChanging as error:
        raise EngineError(f"{error}: Esc in {context.keys.name('view.quantization')}") from error


def retry(context: Context, message_id: int | None = None) -> None:
    """Regenerate the last or the given reply. If that is not possible, say why and keep the reply."""
    active = context.chats.active
    last = active.chat.messages[-1:]
    refused = [_refusal(each, active) for each in last if each.refused and message_id in (None, each.id)]
    if context.lifecycle.refuses():
        return
    if refused:
        context.program.report("".join(refused))
    elif active.streaming:
        warn_busy(context, [active])
    elif context.chats.replying_elsewhere(active):
        warn_busy_elsewhere(context, [active])
    else:
        try:
            if not active.retry(message_id):
                context.app.notify("There is no finished reply to regenerate", severity="warning")
        except ChatChanged as error:
            _warn_changed(context, [active], error)


def stop(context: Context, conversation: Conversation) -> bool:
    """Stop the running reply. Return False if none is running. A complete one that it replaces comes back.

    Say if the engine cannot be reached now: nothing would change on the screen.
    """
    if not conversation.stop():
        return False
    run, ready, lack = conversation.run, conversation.services.ready, context.engine
    if (lack.unlinked or lack.silent) and run and (run.reply is not None or ready.is_set()):
        why, when = lack.gap
        _warn_until_end(context, f"{why}. The reply stops when {when}", [conversation])
    elif conversation.versions.complete and conversation is not context.chats.active:
        context.app.notify(f"{conversation.chat.letter.upper()} keeps the earlier reply")
    elif conversation.versions.complete:
        way = f". To see the stopped one: {_way_to_another(context)}"
        context.app.notify(f"Kept the earlier reply{way if conversation.messages[-1].text else ''}")
    elif run and run.reply is None and ready.is_set():  # as long as its grammar is compiled
        _warn_until_end(context, "The reply stops when the engine has taken its request", [conversation])
    return True


def _way_to_another(context: Context) -> str:
    """The way to what was shown before."""
    return f"{context.keys.name('program.palette')}, {ANOTHER}"


def warn_busy(context: Context, busy: Sequence[Conversation]) -> None:
    _warn_until_end(context, f"{_letters_are(busy)} still replying. {way_to_stop(context, busy)}", busy)


def way_to_stop(context: Context, busy: Sequence[Conversation]) -> str:
    """How to stop these replies. Esc may do something else first, such as giving up an edit."""
    active, panels = context.chats.active, context.panels
    palette = f"To stop: {context.keys.name('program.palette')}, Stop"
    if busy != [active]:  # which that key would not stop, or not all of them
        return f"{palette} all replies"
    closes = panels.drawer_open or not panels.chats_shown or any(each.opened() for each in context.leaving)
    if active.editing is not None or closes:
        return f"{palette} this reply"
    return f"Press {context.keys.name('reply.stop')} to stop"


def _warn_until_end(context: Context, notice: str, busy: Sequence[Conversation]) -> None:
    def end(_: Conversation) -> None:
        if not all(each.streaming for each in busy):
            context.app.end_notice(notice)
            context.signals.changed.disconnect(end)

    context.app.notify(notice, severity="warning")
    context.signals.changed.connect(end)


def warn_busy_elsewhere(context: Context, busy: Sequence[Conversation]) -> None:
    notice = f"{_letters_are(busy)} replying on another screen. Wait for the end of the reply"
    context.app.notify(notice, severity="warning")
    context.program.follow_others()


def _check_edit(active: Conversation, newest: int) -> None:
    """Refuse an edit of a message that is gone, or one that removes unseen messages after `newest`."""
    if active.editing is None:
        return
    if active.editing not in [message.id for message in active.chat.messages]:
        active.editing = None
        gone = "the edited message is no longer in the chat"
        raise StoreError(f"{gone}; send again to add the text as a new one")
    if active.newest != newest:
        raise ChatChanged


def _check_stored(context: Context, to: Sequence[Conversation]) -> None:
    """Refuse a message to several chats before one of them gets it."""
    for each in to:
        try:
            context.chats.services.store.check_newest(each.chat.id, each.newest)
        except ChatGone as error:
            raise ChatGone(each.chat.letter.upper() if len(to) > 1 else "") from error


def _warn_changed(context: Context, to: Sequence[Conversation], error: ChatChanged) -> None:
    """Another screen was faster. Show what it has written."""
    context.chats.outdated(to)
    if busy := [each for each in to if context.chats.replying_elsewhere(each)]:
        warn_busy_elsewhere(context, busy)
    else:
        context.program.report(str(error))


def _letters_are(busy: Sequence[Conversation]) -> str:
    letters = ", ".join(each.chat.letter.upper() for each in busy)
    return f"{letters} {'is' if len(busy) == 1 else 'are'}"


def _refusal(failed: Message, active: Conversation) -> str:
    """Why a reply cannot be regenerated. Its failure may have had another cause."""
    return f"no adapter {active.chat.adapter!r} is loaded" if failed.refused == "adapter" else failed.error


async def begin(context: Context, composing: Composing) -> None:
    """Apply the command line's message and settings, in the active chat if it is empty, else in a new one."""
    start, active = context.program.start, context.chats.active
    first, matches = start.first, (active.chat.params, active.chat.system) == (start.params, start.system)
    if active.chat.messages or context.workspace.prompt.text:
        if first.text or (start.named and not matches):
            context.workspace.new_chat()
    elif start.named and not matches:
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
    """Recall the user's message from `back` messages ago, or a sample message; 0 empties the prompt."""
    chat = context.chats.active.chat

    def said() -> list[str]:
        return [message.text for message in chat.messages if message.role == "user"]

    while back > len(said()) and chat.earlier:
        context.workspace.pane.read_older(PAGE)
    own = said() if chat.messages else list(context.workspace.tries)
    if back <= len(own):
        context.workspace.prompt.recall(own[-back] if back else "", back)


def _give_back(context: Context, text: str, to: Conversation) -> None:
    """Put the text back into the prompt, or keep it with its chat if another one is active now."""
    chats, there = context.chats, context.chats.of(to.chat.id)
    if there is None:  # it was closed while its message was checked
        with context.program.reporting_errors():
            chats.services.store.keep_draft(to.chat.id, text)
    elif chats.active is there:
        context.workspace.prompt.give_back(text)
    else:
        keep(there, text + unsent(there))
