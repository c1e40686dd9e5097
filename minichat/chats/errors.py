"""What the store of chats cannot do, each as one sentence for the screen."""


class StoreError(Exception):
    """The root of them."""


class ChatGone(StoreError):
    """The chat was deleted, perhaps by another screen."""

    def __init__(self, chat: int) -> None:
        super().__init__(f"chat {chat} is no longer there: it was deleted, perhaps in another window")


class MessageGone(StoreError):
    """The message was deleted, perhaps by another screen."""

    def __init__(self, message: int, chat: int) -> None:
        gone = f"message {message} is no longer in chat {chat}"
        super().__init__(f"{gone}: it was deleted, perhaps in another window")


class StoreBusy(StoreError):
    """Another process holds the database for longer than we wait."""


class NewerStore(StoreError):
    """The database was written by a newer minichat."""


class BadExport(StoreError):
    """A text that should be an exported chat is none."""
