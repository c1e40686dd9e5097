"""A text area for long texts, which can be undone."""

from collections.abc import Sequence

from textual.document._edit import Edit
from textual.document._wrapped_document import WrappedDocument
from textual.events import Paste
from textual.widgets import TextArea
from textual.widgets.text_area import Selection


class _Wrapped(WrappedDocument):
    """Knows its height. Textual adds it up over all lines, for each line that it draws."""

    @property
    def height(self) -> int:
        return len(self._offset_to_line_info)


class Editor(TextArea):
    """Moves the cursor to the start before lines go away.

    Textual sets the cursor at the end of an undo. If the scroll bar goes before that, it looks for a cursor
    below the last line, and fails.
    """

    def _set_document(self, text: str, language: str | None) -> None:
        super()._set_document(text, language)
        self.wrapped_document.__class__ = _Wrapped

    async def _on_paste(self, event: Paste) -> None:
        """Keep it from the screen, which types what nothing takes into the prompt."""
        event.stop()

    def _undo_batch(self, edits: Sequence[Edit]) -> None:
        self.selection = Selection.cursor((0, 0))
        super()._undo_batch(edits)

    def _redo_batch(self, edits: Sequence[Edit]) -> None:
        self.selection = Selection.cursor((0, 0))
        super()._redo_batch(edits)
