"""Send, stop, regenerate, edit and copy."""

from collections.abc import Sequence

from minichat.chats.model import Message
from minichat.features.feature import Context, Feature, HelpSection, ScreenCommand
from minichat.session.conversation import Conversation
from minichat.ui import sending


def stop(context: Context) -> None:
    """Esc: cancel the innermost thing that is active: an edit, a search, a panel over the chat or a reply.

    Notices go with it: several may cover a small screen.
    """
    active, panels = context.chats.active, context.panels
    context.app.clear_notifications()
    if active.editing is not None:
        active.editing = None
        context.workspace.prompt.put(active.chat.draft)
        context.workspace.label()
    elif (inner := next((each for each in context.leaving if each.opened()), None)) is not None:
        inner.close()
        context.workspace.label()
    elif not (panels.close_drawer() or panels.show_chat() or sending.stop(context, active)):
        context.workspace.prompt.focus()


def stop_reply(context: Context) -> None:
    _stop(context, [context.chats.active], "No reply is running in this chat")


def stop_all(context: Context) -> None:
    _stop(context, list(context.chats), "No reply is running")


def _stop(context: Context, meant: Sequence[Conversation], none: str) -> None:
    """Stop the replies of these chats. If there is `none`, say so, or that another screen has them."""
    for conversation in (running := [each for each in meant if each.streaming]):
        sending.stop(context, conversation)
    if running:
        return
    if elsewhere := [each for each in meant if context.chats.replying_elsewhere(each)]:
        sending.warn_busy_elsewhere(context, elsewhere)
    else:
        context.app.notify(none, severity="warning")


def another(context: Context) -> None:
    """Show the version of the last reply that was shown before, and say which one it is."""
    active = context.chats.active
    if active.streaming:
        sending.warn_busy(context, [active])
    elif active.versions.another:
        context.app.end_notice(_version(active))
        active.versions.switch()
        active.show_messages()
        active.services.changed(active)
        context.app.notify(_version(active))


def _version(active: Conversation) -> str:
    return f"Version {active.versions.place}"


def edit(context: Context, message: Message | None = None) -> None:
    active, prompt = context.chats.active, context.workspace.prompt
    if active.streaming:
        sending.warn_busy(context, [active])
        return
    context.workspace.keep_draft()
    if (text := active.edit(message.id if message else None)) is None:
        context.app.notify("There is no finished message to edit", severity="warning")
        return
    prompt.put(text)
    prompt.focus()
    context.workspace.label()
    if active.editing is not None and (lost := active.versions.lost_by(active.editing)):
        others = "the other version" if lost == 1 else f"the {lost} other versions"
        way = f"{context.keys.name('chat.fork')} first leaves all in this chat"
        context.app.notify(f"Sending this gives up {others} of the reply; {way}", severity="warning")


async def copy(context: Context) -> None:
    if text := context.workspace.transcript.last_reply():
        await context.program.send_to_clipboard(text)
    else:
        context.app.notify("There is no reply to copy", severity="warning")


REPLIES = Feature(
    name="replies",
    title="Replies",
    commands=(
        ScreenCommand("prompt.send", "Prompt", "Send", None, "enter", palette=False),
        ScreenCommand(
            "prompt.newline", "Prompt", "New line", None, "ctrl+j,alt+enter,shift+enter", palette=False
        ),
        ScreenCommand("reply.stop", "Reply", "Stop this reply", stop, "escape", "stop", chosen=stop_reply),
        ScreenCommand("reply.stop_all", "Reply", "Stop all replies", stop_all),
        ScreenCommand("reply.retry", "Reply", "Regenerate the last reply", sending.retry, "alt+r", "retry"),
        ScreenCommand(
            "reply.earlier",
            "Reply",
            sending.ANOTHER,
            another,
            also="back earlier former other previous restore version",
            enabled=lambda context: context.chats.active.versions.another,
        ),
        ScreenCommand("reply.edit", "Reply", "Edit the last message and send it again", edit, "alt+e"),
        ScreenCommand("reply.copy", "Reply", "Copy the last reply to the clipboard", copy, "alt+y"),
    ),
    help=(
        HelpSection(
            "In the prompt",
            (
                ("Up Down", "recall sent messages (empty prompt)"),
                ("F7  ^Z  ^Y", "select all; undo; redo"),
                ("^X  ^V", "cut; paste what was cut"),
                ("PgUp PgDn", "scroll the chat"),
                ("End", "follow the end of the chat"),
                ("@", "attach a file; Tab completes its path"),
            ),
        ),
    ),
)
