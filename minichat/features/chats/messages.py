"""Messages of a chat: the keys of a focused transcript, and the menu of a message."""

from minichat.chats.model import Message
from minichat.features.chats.chats import fork
from minichat.features.chats.replies import edit
from minichat.features.feature import Context, Feature, HelpSection, MessageCommand
from minichat.ui import sending
from minichat.ui.transcript import Transcript


async def _copy(context: Context, message: Message) -> None:
    await context.program.send_to_clipboard(message.text)


def _retry(context: Context, message: Message) -> None:
    sending.retry(context, message.id)


def _has_text(message: Message) -> bool:
    return bool(message.text)


def _from_user(message: Message) -> bool:
    return message.role == "user"


def _from_model(message: Message) -> bool:
    return message.role == "assistant" and not message.refused


MESSAGES = Feature(
    name="messages",
    title="Messages",
    message_commands=(
        MessageCommand("Copy to the clipboard", _copy, _has_text),
        MessageCommand("Fork the chat from here", fork),
        MessageCommand("Edit and resend", edit, _from_user, when_idle=True, cuts=True),
        MessageCommand("Regenerate", _retry, _from_model, when_idle=True, cuts=True, asks=True),
    ),
    help=(
        HelpSection(
            "In a chat (Tab)",
            (
                ("{transcript.previous} {transcript.next}", "previous or next message"),
                ("{transcript.menu}", "menu of the message"),
                ("{transcript.reasoning}", "show or hide its reasoning"),
                ("{transcript.retry}", "regenerate a failed reply"),
                (
                    "{transcript.select_left transcript.select_right "
                    "transcript.select_up transcript.select_down}",
                    "select text; its KV blocks light up on the map",
                ),
                ("{transcript.select_message} {transcript.select_all}", "select the message, or everything"),
                ("{transcript.copy}", "copy the selection, the message or the last reply"),
                (
                    "{transcript.find_next} {transcript.find_previous}",
                    "next or previous match, while find is open",
                ),
                ("Home End", "start or end of the chat"),
            ),
        ),
    ),
    keyed=(("transcript", Transcript),),
)
