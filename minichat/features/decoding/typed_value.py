"""The text of a value being typed into a field of the drawer. Its cursor is always at the end."""

from dataclasses import dataclass

from engine.api.errors import BadParams
from minichat.session.decoding import Knob, parsed
from minichat.ui.panes.keybar import Hints

_WHOLE, _NUMBER = frozenset("0123456789+-_ "), frozenset("0123456789+-_ .eE")
_BETWEEN = " |"  # what separates words, and stop texts


@dataclass(slots=True)
class TypedValue:
    """The text of a value being typed."""

    text: str
    selected: bool = False  # whether the next key replaces it

    def erased(self, what: str) -> str:
        """The text without its last character, its last word, or all of it."""
        if self.selected or what == "all":
            return ""
        if what == "character":
            return self.text[:-1]
        rest = self.text.rstrip(_BETWEEN)
        return rest[: 1 + max(map(rest.rfind, _BETWEEN))]


def misfit(row: Knob | str, text: str) -> str:
    """What is wrong with a number that is being typed; empty as long as it may become one."""
    if (
        not isinstance(row, Knob)
        or row.field == "stop"
        or (_WHOLE if row.whole else _NUMBER).issuperset(text)
    ):
        return ""
    try:
        parsed(row, text)
    except BadParams as error:
        return f"{row.label}: {error.problem}"
    return ""


def typing_hint(row: Knob | str) -> Hints:
    """How a value is typed on this row, if it can be."""
    if not isinstance(row, Knob) or row.choices:
        return ()
    return (("Enter" if row.field == "grammar" else "a-z" if row.field == "stop" else "0-9", "type"),)
