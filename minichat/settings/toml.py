"""What the standard TOML reader lacks: line numbers of keys, and writing."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

_WORD = r"""[A-Za-z0-9_-]+|"(?:[^"\\]|\\.)*"|'[^']*'"""
_NAME = rf"(?:{_WORD})(?:\s*\.\s*(?:{_WORD}))*"
_HEADER = re.compile(rf"\s*\[\[?\s*({_NAME})\s*\]")
_KEY = re.compile(rf"\s*({_NAME})\s*=")
_FENCE = re.compile(r'"""|' + "'''")

Path = tuple[str, ...]


def lines_of(text: str) -> dict[Path, int]:
    """The line of each key and table in a valid TOML text."""
    found: dict[Path, int] = {}
    table: Path = ()
    for number, line in _outside_long_strings(text):
        if header := _HEADER.match(line):
            table = _split(header[1])
            found.setdefault(table, number)
        elif key := _KEY.match(line):
            found.setdefault((*table, *_split(key[1])), number)
    return found


def literal(value: Any) -> str:
    """The value in TOML syntax."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case list() | tuple():
            return f"[{', '.join(map(literal, value))}]"
        case _ if is_dataclass(value) and not isinstance(value, type):
            return literal(asdict(value))
        case Mapping():
            pairs = (f"{literal(str(name))} = {literal(each)}" for name, each in value.items())
            return f"{{{', '.join(pairs)}}}"
        case _:
            return str(value)


def table(name: str, values: Mapping[str, Any]) -> str:
    """A TOML table with this name; its keys must be bare words."""
    return "\n".join(
        [f"[{literal(name)}]", *(f"{key} = {literal(value)}" for key, value in values.items()), ""]
    )


def _outside_long_strings(text: str) -> Iterator[tuple[int, str]]:
    """The lines that do not begin inside a multiline string."""
    fence = ""
    lines = text.split("\n")  # splitlines() splits at more characters than TOML does
    for number, line in enumerate(lines, start=1):
        if not fence:
            yield number, line
        rest = line
        while found := re.search(fence, rest) if fence else _FENCE.search(rest):
            fence, rest = "" if fence else found[0], rest[found.end() :]


def _split(name: str) -> Path:
    parts = re.findall(_WORD, name)
    return tuple(json.loads(part) if part[0] == '"' else part.strip("'") for part in parts)
