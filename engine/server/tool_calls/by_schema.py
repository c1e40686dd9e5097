"""An argument whose value is text if the function's schema says so, and another notation otherwise."""

import json
from collections.abc import Callable
from typing import Any

from engine.server.tool_calls.json_text import escaped
from engine.server.tool_calls.reading import Delimiters, ReplyReading, Steps
from engine.server.tool_calls.rules import is_text


def argument(
    reading: ReplyReading,
    start: str,
    key: str,
    schema: object,
    end: Delimiters,
    value_of: Callable[[str], Any],
) -> Steps[bool]:
    """Read the value of an argument up to `end`. Returns whether it is complete.

    `start` opens the object of arguments, or separates this one from the one before.
    """
    reading.argue(f"{start}{json.dumps(key, ensure_ascii=False)}: ")
    if isinstance(schema, dict) and is_text(schema):
        reading.argue('"')
        if not (yield from reading.until(end, lambda text: reading.argue(escaped(text)))):
            return False
        reading.argue('"')
        return True
    parts = list[str]()
    if not (yield from reading.until(end, parts.append)):
        return False
    reading.argue(json.dumps(value_of("".join(parts)), ensure_ascii=False))
    return True
