"""What a click in the transcript does or selects."""

from textual.geometry import Offset
from textual.message import Message
from textual.selection import Selection

from minichat.ui.transcript.entry import EntryPart
from minichat.ui.transcript.marks import character_at, word_at
from minichat.ui.transcript.painter import Painter
from minichat.ui.transcript.requests import LinkClicked, MessageMenu, RetryRequested
from minichat.ui.transcript.view import Place


def click_message(painter: Painter, place: Place, x: int) -> Message | None:
    """The message to post for a click at a place."""
    message = place.entry.message
    match place.spot.part:
        case EntryPart.HEAD:
            return MessageMenu(message.id)
        case EntryPart.NOTE if place.entry.retriable:
            return RetryRequested(message.id)
    row, drawn = painter.row(place)
    at = character_at(row, x)
    links = (link for link in drawn.links if at is not None and link.start <= at < link.end)
    return next((LinkClicked(link.address) for link in links), None)


def word_at_pointer(painter: Painter, place: Place, x: int, whole: bool) -> Selection | None:
    """The word under the pointer, or the whole leaf."""
    row, drawn = painter.row(place)
    at = character_at(row, x)
    if at is None:
        return None
    start, end = (0, len(drawn.plain)) if whole else word_at(drawn.plain, at)
    return Selection(Offset(start, place.key), Offset(end, place.key))
