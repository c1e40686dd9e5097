"""What a reader asks of whoever has the transcript."""

from textual.message import Message


class LinkClicked(Message, namespace="transcript"):
    """Somebody wants to go there. The address is the model's: show it before opening it."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self.address = address


class OfMessage(Message, namespace="transcript"):
    """Something is wanted for one message."""

    def __init__(self, message_id: int) -> None:
        super().__init__()
        self.message_id = message_id


class RetryRequested(OfMessage, namespace="transcript"):
    """A reply that failed is wanted again."""


class MessageMenu(OfMessage, namespace="transcript"):
    """What can be done with a message is asked for."""


class SelectionChanged(Message, namespace="transcript"):
    """Another text is selected, or none."""


class CopyRequested(Message, namespace="transcript"):
    """This text is wanted on the clipboard."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text


class TryChosen(Message, namespace="transcript"):
    """One of the messages to try is wanted in the prompt."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text
