"""A running beam search: the hypotheses as a tree, with their scores, and the dropped ones."""

from rich.cells import cell_len
from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from engine.api.snapshot import BeamsView
from minichat.features.decoding.beam_tree import TreeLine, Words, lines_of
from minichat.ui.likely import seen_as
from minichat.ui.marks import UNICODE, Marks, ending

_SCORE = 7  # cells
_UNICODE = str.maketrans({"|": "│", "+": "├", "`": "└"})
_NOTES = {"live": "", "branch": "", "ended": "ended ", "dropped": "dropped "}


class BeamTree(Widget):
    """The tree. If it does not fit, the worst hypotheses are hidden and counted."""

    view: reactive[BeamsView | None] = reactive(None, layout=False)
    over: reactive[bool] = reactive(False, layout=False)  # the search has ended after this step
    lines: reactive[tuple[TreeLine, ...]] = reactive((), layout=False)
    marks: Marks = UNICODE

    def show(self, view: BeamsView | None, words: Words, *, over: bool) -> None:
        self.view, self.over = view, over
        self.lines = tuple(lines_of(view, words, self.marks.ellipsis)) if view else ()

    def render(self) -> Content:
        if self.view is None:
            return Content.styled("shown while a search runs", "$text-muted")
        view, room = self.view, max(self.size.height - 1, 1)
        hidden = len(self.lines) - room
        shown = self.lines if hidden <= 0 else self.lines[: room - 1]
        rows = [Content.styled(self._counts(view), "$text-muted").truncate(self.size.width)]
        rows += map(self._row, shown)
        if hidden > 0:
            rows.append(Content.styled(f"{self.marks.below} {hidden + 1} more", "$text-muted"))
        return Content("\n").join(rows)

    def _counts(self, view: BeamsView) -> str:
        """The first line. It must not wrap, because the others fill the rest."""
        live = "over, last seen" if self.over else f"{len(view.live)} of {view.width} live,"
        counts = f"{live} {len(view.done)} ended, {view.certain}"
        words = f"{counts} tok certain"
        return words if len(words) <= self.size.width else f"{counts} certain"

    def _row(self, line: TreeLine) -> Content:
        hangs = line.hangs if self.marks is not UNICODE else line.hangs.translate(_UNICODE)
        score = "" if line.score is None else f"{line.score:{_SCORE}.2f}"
        note = _NOTES[line.kind]
        room = max(self.size.width - len(hangs) - len(note) - _SCORE - 2, 4)
        text = ending(seen_as(line.text, self.marks), room, self.marks.ellipsis)
        gap = " " * (room + _SCORE - cell_len(text) - len(score))
        style = "bold $accent" if line.leads else "$text-muted" if line.kind == "dropped" else "$text"
        pointer = self.marks.pointer if line.leads else " "
        return Content.assemble(
            (hangs, "$text-muted"),
            (pointer, style),
            (note, "$text-muted"),
            (text, style),
            gap,
            (score, style),
        ).truncate(self.size.width)
