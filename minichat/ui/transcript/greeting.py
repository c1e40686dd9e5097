"""What stands in a chat until anything is said there."""

import textwrap
from collections.abc import Sequence

from minichat.ui.transcript.markdown.rows import Fragment, Row

_EASY = 76  # columns in which a paragraph reads well


def greeting_row(paragraphs: Sequence[str], y: int, width: int) -> Row:
    """One of its lines; there are blank ones around the paragraphs."""
    room = max(min(width - 2, _EASY), 8)
    lines = [line for each in paragraphs for line in ("", *textwrap.wrap(each, room))]
    return Row((Fragment(f" {lines[y]}", ("note",)),)) if y < len(lines) else Row()
