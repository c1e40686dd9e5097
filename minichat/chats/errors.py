"""Errors of the chat store, each with a one-sentence message."""


class StoreError(Exception):
    """The base class."""


class ChatGone(StoreError):
    """The chat was deleted, possibly by another screen."""

    def __init__(self, letter: str = "") -> None:  # users do not know its number
        which = f"chat {letter}" if letter else "the chat"
        super().__init__(f"{which} was deleted, possibly in another window")


class ChatChanged(StoreError):
    """Another screen has written to the chat since this one has read it."""

    def __init__(self) -> None:
        super().__init__("another screen has just changed the chat; read what is new and send again")


class MessageGone(StoreError):
    """The message was deleted, possibly by another screen."""

    def __init__(self) -> None:
        super().__init__("the message was deleted, possibly in another window")


class StoreBusy(StoreError):
    """Another process has locked the database for too long."""


class NewerStore(StoreError):
    """The database was written by a newer minichat."""


class BadExport(StoreError):
    """A text is not a valid exported chat."""
