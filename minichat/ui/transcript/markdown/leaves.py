"""What a message is made of: leaves, each small enough to be read and drawn at once."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

Kind = Literal["text", "heading", "code", "table", "rule", "plain"]  # plain: as it was written

MAX_TEXT = 2000  # characters of a leaf; a longer paragraph goes on in the next one
MAX_PLAIN = 16_000  # of a line as it was written, which costs no parsing
MAX_CODE = 1600  # characters; highlighting is the slowest thing done to a leaf


class Container(NamedTuple):
    """What a leaf stands in: a quote, or an item of a list with the mark that the source gave it."""

    mark: str
    indent: int = 0

    @property
    def quotes(self) -> bool:
        return self.mark == ">"

    def within(self, line: str) -> str | None:
        """The line without this container's margin; None where the line has left it."""
        if self.quotes:
            body = line.lstrip(" ")
            if len(line) - len(body) > 3 or not body.startswith(">"):
                return None
            return body[2:] if body.startswith("> ") else body[1:]
        if line.startswith(" " * self.indent):
            return line[self.indent :]
        return None if line.strip(" \t") else ""


@dataclass(slots=True)
class Leaf:
    """A paragraph, a heading, some lines of code, a table: `text` is its source without margins."""

    kind: Kind
    start: int  # its range in the message's text
    end: int
    text: str = ""
    info: str = ""  # a heading's level, code's language, a table's columns as l, c, r
    containers: tuple[Container, ...] = ()
    fresh: int = 0  # so many of the last containers begin here, and show their marks
    gap: bool = False  # an empty line comes before it
    joined: bool = False  # goes on with what the leaf before began


class Fence(NamedTuple):
    """An open code fence."""

    mark: str
    indent: int
    language: str
