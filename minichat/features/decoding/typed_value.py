"""The text of a value being typed into a field of the drawer. Its cursor is always at the end."""

from dataclasses import dataclass

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
