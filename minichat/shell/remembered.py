"""Choices the program remembers: recent models, the theme, and the arrangement of chats.

The user edits the settings; this file belongs to the program, and losing it does no harm.
"""

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from minichat.shell.paths import damaged_name, private_folder

_MODELS = 8


@dataclass(frozen=True, slots=True)
class Remembered:
    """Invalid values are ignored when reading; `opened` says so."""

    models: tuple[str, ...] = ()  # newest first
    theme: str = ""
    instead_of: str = ""  # the theme setting at that time: if it changes, it overrides the choice
    chats: tuple[int, ...] = ()  # in tab order
    active: int = 0  # one of them
    pinned: tuple[int, ...] = ()  # open and closed ones
    unread: tuple[int, ...] = ()  # open ones with a reply that was not shown

    @classmethod
    def opened(cls, file: Path) -> tuple["Remembered", tuple[str, ...]]:
        """What is remembered, for a start, and what to tell the user: a damaged file gets another name."""
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return cls(), ()
        except (OSError, ValueError, RecursionError):
            found = None
        kept = cls._of(found)
        if isinstance(found, dict) and all(found.get(name, value) == value for name, value in kept._values()):
            return kept, ()
        try:
            file.rename(aside := damaged_name(file))
        except OSError as error:
            return kept, (f"{file} is damaged, and cannot be renamed: {error.strerror}",)
        if kept != cls():
            kept.write(file)
        lost = "the theme, pins and tabs of the last screen may be lost"
        return kept, (f"{file} was damaged: it was renamed to {aside.name}; {lost}",)

    @classmethod
    def read(cls, file: Path) -> "Remembered":
        try:
            return cls._of(json.loads(file.read_text(encoding="utf-8")))
        except (OSError, ValueError, RecursionError):
            return cls()

    @classmethod
    def _of(cls, found: object) -> "Remembered":
        if not isinstance(found, dict):
            return cls()
        models = found.get("models")
        names = [each for each in models if isinstance(each, str)] if isinstance(models, list) else []
        active = found.get("active")
        return cls(
            tuple(names),
            _text(found, "theme"),
            _text(found, "instead_of"),
            _numbers(found, "chats"),
            active if type(active) is int else 0,
            _numbers(found, "pinned"),
            _numbers(found, "unread"),
        )

    def _values(self) -> Iterable[tuple[str, object]]:
        """Each as the file has it."""
        for name, value in asdict(self).items():
            yield name, list(value) if isinstance(value, tuple) else value

    def write(self, file: Path) -> None:
        """Write the file atomically; ignore a failing disk."""
        with suppress(OSError):
            private_folder(file.parent)
            fresh = file.with_suffix(f".{os.getpid()}")
            try:
                fresh.write_text(json.dumps(asdict(self), indent=2), encoding="utf-8")
                fresh.replace(file)
            finally:
                fresh.unlink(missing_ok=True)  # it remains only if the disk is full

    def used(self, model: str) -> "Remembered":
        others = [each for each in self.models if each != model]
        return replace(self, models=(model, *others)[:_MODELS])

    def themed(self, theme: str, settings: str) -> "Remembered":
        return replace(self, theme=theme, instead_of=settings)

    def left(
        self, chats: Iterable[int], active: int, pinned: Iterable[int], unread: Iterable[int] = ()
    ) -> "Remembered":
        return replace(self, chats=tuple(chats), active=active, pinned=tuple(pinned), unread=tuple(unread))

    def theme_for(self, settings: str) -> str:
        """The initial theme, given the theme setting."""
        return self.theme if self.theme and self.instead_of == settings else settings


def _numbers(found: dict[str, Any], name: str) -> tuple[int, ...]:
    value = found.get(name)
    return tuple(each for each in value if type(each) is int) if isinstance(value, list) else ()


def _text(found: dict[str, Any], name: str) -> str:
    value = found.get(name)
    return value if isinstance(value, str) else ""
