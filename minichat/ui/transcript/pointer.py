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
    """The word under the pointer, or the whole leaf with those that it continues or that continue it."""
    row, drawn = painter.row(place)
    at = character_at(row, x)
    if at is None:
        return None
    if whole:
        return _whole(place, len(drawn.plain))
    start, end = word_at(drawn.plain, at)
    return Selection(Offset(start, place.key), Offset(end, place.key))


def _whole(place: Place, length: int) -> Selection:
    """`length`: of the leaf at the place. A long block of code has several."""
    first = last = at = place.spot.leaf
    if (document := place.entry.document(place.spot.part)) is not None and document.leaves:
        leaves = document.leaves
        if leaves[at].kind == "code":
            while leaves[first].joined:
                first -= 1
            while last + 1 < len(leaves) and leaves[last + 1].joined and leaves[last + 1].kind == "code":
                last += 1
        length = len(document.sheet(last).drawn.plain)
    return Selection(Offset(0, place.key + first - at), Offset(length, place.key + last - at))
