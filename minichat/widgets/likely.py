"""The ten tokens that were likeliest for the newest place, with their probabilities."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from engine.events import TokenLogprob
from minichat.widgets.marks import UNICODE, Marks

ROWS = 10
_WORD = 14  # cells of a token's text


@dataclass(frozen=True, slots=True)
class Likely:
    """One candidate."""

    text: str
    logprob: float
    chosen: bool


class LikelyTokens(Widget):
    """A bar a token; the chosen one is marked."""

    rows: reactive[tuple[Likely, ...]] = reactive((), layout=False)
    marks: Marks = UNICODE

    def show(self, rivals: TokenLogprob | None, words: Callable[[Sequence[int]], list[str]]) -> None:
        """The candidates for one place; none clears it."""
        top = rivals.top if rivals else ()
        texts = words([token for token, _ in top])
        self.rows = tuple(
            Likely(text, value, rivals is not None and token == rivals.token)
            for text, (token, value) in zip(texts, top, strict=True)
        )

    def render(self) -> Content:
        if not self.rows:
            return Content.styled("shown while a reply runs", "$text-muted")
        room = max(self.size.width - _WORD - 10, 1)
        return Content("\n").join(self._row(row, room) for row in self.rows)

    def _row(self, row: Likely, room: int) -> Content:
        share = math.exp(row.logprob)
        bar = self.marks.bar * round(share * room)
        style = "bold $accent" if row.chosen else "$text"
        return Content.assemble(
            (self.marks.pointer if row.chosen else " ", style),
            (f" {visible(row.text)}", style),
            (f"{share:6.1%} ", "$text-muted"),
            (bar, "$accent" if row.chosen else "$primary"),
        )


def visible(text: str, width: int = _WORD) -> str:
    """A token as one line of fixed width: blanks are seen, and nothing in it acts on the terminal."""
    named = text.replace(" ", "·").replace("\n", "\\n").replace("\t", "\\t")
    safe = "".join(character if character.isprintable() else "�" for character in named)
    content = Content(safe).truncate(width, ellipsis=True)
    return content.plain + " " * (width - content.cell_length)
