"""Messages of a chat: the keys while it has the focus, and what can be done with one of them."""

from minichat.chats.model import Message
from minichat.features.chats.chats import fork
from minichat.features.chats.replies import edit
from minichat.features.feature import Context, Feature, HelpSection, MessageCommand
from minichat.ui.transcript import Transcript


async def _copy(context: Context, message: Message) -> None:
    await context.program.send_to_clipboard(message.text)


def _retry(context: Context, message: Message) -> None:
    context.chats.active.retry(message.id)


def _from_person(message: Message) -> bool:
    return message.role == "user"


def _from_model(message: Message) -> bool:
    return message.role == "assistant"


MESSAGES = Feature(
    name="messages",
    title="Messages",
    message_commands=(
        MessageCommand("Send it to the clipboard", _copy),
        MessageCommand("Fork the chat here", fork),
        MessageCommand(
            "Edit it and send it again; what came after goes", edit, _from_person, at_rest=True, cuts=True
        ),
        MessageCommand("Regenerate it; what came after goes", _retry, _from_model, at_rest=True, cuts=True),
    ),
    help=(
        HelpSection(
            "In a chat (Tab goes there)",
            (
                ("{transcript.previous} {transcript.next}", "the message before, the one after"),
                ("{transcript.menu}", "what can be done with it"),
                ("{transcript.reasoning}", "show its reasoning, or hide it"),
                ("{transcript.retry}", "regenerate a failed reply"),
                (
                    "{transcript.select_left transcript.select_right "
                    "transcript.select_up transcript.select_down}",
                    "select: the blocks of the text glow on the map",
                ),
                ("{transcript.select_message} {transcript.select_all}", "select the message, or all"),
                ("{transcript.copy}", "send what is selected to the clipboard, or the last reply"),
                (
                    "{transcript.find_next} {transcript.find_previous}",
                    "the next place that was found, the one before",
                ),
                ("Home End", "first, last"),
            ),
        ),
    ),
    keyed=(("transcript", Transcript),),
)
