"""The characters of a message that each token of a prompt covers.

The conversation is rendered a second time, with tags around each message's content that occur in no text. If
the result is the same text apart from the tags, they mark where the contents are; otherwise the layout is
unknown. A template may trim, drop or repeat contents.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from engine.api.layout import TokenSpan

# Unicode noncharacters, which never occur in text. A message's number is between _OPEN and _SHUT.
_OPEN, _SHUT, _CLOSE = "\ufdd1", "\ufdd2", "\ufdd3"
_DIGITS = "\ufdd4\ufdd5"
_TAGS = re.compile(f"[{_OPEN}{_SHUT}{_CLOSE}{_DIGITS}]")
_TAGGED = re.compile(f"{_OPEN}([{_DIGITS}]+){_SHUT}([^{_OPEN}{_CLOSE}]*){_CLOSE}")


class Content(NamedTuple):
    """The range of a message's content in the rendered text. `skipped`: its characters trimmed in front."""

    message: int
    start: int
    end: int
    skipped: int


def contents(
    messages: Sequence[Mapping[str, Any]],
    plain: str,
    render: Callable[[Sequence[Mapping[str, Any]]], str],
) -> list[Content]:
    """Return where each message's content is. `plain`: the rendered conversation; `render`: its renderer."""
    if any(_TAGS.search(str(message.get("content"))) for message in messages):
        return []
    tagged = render([_tagged(number, message) for number, message in enumerate(messages)])
    if _TAGS.sub("", tagged) != plain:
        return []
    found = []
    taken = 0  # characters of tags so far
    for match in _TAGGED.finditer(tagged):
        number = int("".join(str(_DIGITS.index(digit)) for digit in match[1]), 2)
        start = match.start() - taken
        taken += len(match[0]) - len(match[2])
        content = messages[number]["content"] if number < len(messages) else ""
        if match[2] == content.strip():
            skipped = len(content) - len(content.lstrip())
            found.append(Content(number, start, start + len(match[2]), skipped))
    return found


def places(spans: Sequence[tuple[int, int]], found: Sequence[Content]) -> tuple[TokenSpan, ...]:
    """Return the message characters for tokens that cover these consecutive ranges of the rendered text."""
    placed, at = [], 0
    for start, end in spans:
        while at < len(found) and found[at].end <= start:
            at += 1
        here = found[at] if at < len(found) else None
        if here is None or end <= here.start or start >= end:
            placed.append(TokenSpan(-1))
            continue
        low, high = max(start, here.start), min(end, here.end)
        moved = here.skipped - here.start
        placed.append(TokenSpan(here.message, low + moved, high + moved))
    return tuple(placed)


def _tagged(number: int, message: Mapping[str, Any]) -> Mapping[str, Any]:
    content = message.get("content")
    if not isinstance(content, str) or not (body := content.strip()):
        return message
    lead = content[: len(content) - len(content.lstrip())]
    trail = content[len(content.rstrip()) :]
    name = "".join(_DIGITS[int(digit)] for digit in f"{number:b}")
    return {**message, "content": f"{lead}{_OPEN}{name}{_SHUT}{body}{_CLOSE}{trail}"}
