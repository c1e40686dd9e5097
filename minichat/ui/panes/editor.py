"""A text area whose long texts can be undone."""

from collections.abc import Sequence

from textual.document._edit import Edit
from textual.widgets import TextArea
from textual.widgets.text_area import Selection


class Editor(TextArea):
    """Moves the cursor to the start before lines go away.

    Textual sets the cursor at the end of an undo. If the scroll bar goes before that, it looks for a cursor
    below the last line, and fails.
    """

    def _undo_batch(self, edits: Sequence[Edit]) -> None:
        self.selection = Selection.cursor((0, 0))
        super()._undo_batch(edits)

    def _redo_batch(self, edits: Sequence[Edit]) -> None:
        self.selection = Selection.cursor((0, 0))
        super()._redo_batch(edits)
