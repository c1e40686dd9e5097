"""Replies that outlive the screen: by what name the next one finds them, and which it looks for."""

from hashlib import sha256

from minichat.chats.model import Message
from minichat.chats.queries import INTERRUPTED


def tag_of(message: Message) -> str:
    """A name for its reply. It follows from the row, so that nothing else need be kept."""
    return sha256(f"{message.id} {message.at!r}".encode()).hexdigest()[:24]


def unfinished(message: Message) -> bool:
    """Whether a screen that is gone, or another one, was writing it when it was last seen."""
    return message.role == "assistant" and (message.state == "streaming" or message.error == INTERRUPTED)
