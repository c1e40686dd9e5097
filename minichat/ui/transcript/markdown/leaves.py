"""Leaves: the pieces of a message, each small enough to be parsed and drawn at once."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

Kind = Literal["text", "heading", "code", "table", "rule", "plain"]  # plain: without markup

MAX_TEXT = 2000  # characters per leaf; a longer paragraph continues in the next
MAX_PLAIN = 16_000  # characters of a plain line, which needs no parsing
MAX_CODE = 1600  # characters per code leaf: highlighting is the slowest operation


class Container(NamedTuple):
    """What contains a leaf: a quote, or a list item with its mark from the source."""

    mark: str
    indent: int = 0

    @property
    def quotes(self) -> bool:
        return self.mark == ">"

    def within(self, line: str) -> str | None:
        """The line without this container's margin; None if the line is outside of it."""
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
    fresh: int = 0  # the number of innermost containers that begin here and show their marks
    gap: bool = False  # preceded by an empty line
    joined: bool = False  # continues the previous leaf


class Fence(NamedTuple):
    """An open code fence."""

    mark: str
    indent: int
    language: str
