"""The ten most likely tokens at one position, with their probabilities."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from engine.api.events import TokenLogprob
from minichat.ui.marks import UNICODE, Marks, shortened

ROWS = 10
_WORD = 14  # cells for a token's text


@dataclass(frozen=True, slots=True)
class Likely:
    """One candidate token."""

    text: str
    logprob: float
    chosen: bool


class LikelyTokens(Widget):
    """One bar per token; the sampled one is marked."""

    rows: reactive[tuple[Likely, ...]] = reactive((), layout=False)
    marks: Marks = UNICODE

    def show(self, entry: TokenLogprob | None, words: Callable[[Sequence[int]], list[str]]) -> None:
        """Show the candidates for one position; None clears them."""
        self.rows = likely_of(entry, words)

    def render(self) -> Content:
        if not self.rows:
            return Content.styled("shown while a reply is running", "$text-muted")
        width = self.size.width
        return Content("\n").join(row_of(row, self.marks, width, here=row.chosen) for row in self.rows)


def likely_of(entry: TokenLogprob | None, words: Callable[[Sequence[int]], list[str]]) -> tuple[Likely, ...]:
    """The candidates for one position, most likely first."""
    top = entry.top if entry else ()
    texts = words([token for token, _ in top])
    return tuple(
        Likely(text, value, entry is not None and token == entry.token)
        for text, (token, value) in zip(texts, top, strict=True)
    )


def probability_of(entry: TokenLogprob) -> str:
    """Of the sampled token; if it is not among the likeliest, the bound that they give."""
    share = math.exp(entry.logprob)
    return f"{share:.1%}" if entry.rank else f"under {max(share, 0.001):.1%}"


def row_of(row: Likely, marks: Marks, width: int, *, here: bool) -> Content:
    """A candidate with its bar; the sampled one is highlighted, and `here` gets the pointer."""
    share, style = math.exp(row.logprob), "bold $accent" if row.chosen else "$text"
    bar = marks.bar * round(share * max(width - _WORD - 10, 1))
    return Content.assemble(
        (marks.pointer if here else " ", style),
        (f" {visible(row.text, marks=marks)}", style),
        (f"{share:6.1%} ", "$text-muted"),
        (bar, "$accent" if row.chosen else "$primary"),
    )


def seen_as(text: str, marks: Marks = UNICODE) -> str:
    """A token's text on one line, with visible blanks and no control characters."""
    named = text.replace(" ", marks.blank).replace("\n", "\\n").replace("\t", "\\t")
    odd = "�" if marks is UNICODE else "?"
    return "".join(character if character.isprintable() else odd for character in named)


def visible(text: str, width: int = _WORD, marks: Marks = UNICODE) -> str:
    """A token as one line of fixed width."""
    content = shortened(Content(seen_as(text, marks)), width, marks.ellipsis)
    return content.plain + " " * (width - content.cell_length)
