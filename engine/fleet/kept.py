"""Settings that have changed since the start, for replicas that start again."""

import threading
from concurrent.futures import Future
from typing import Any

from engine.api.commands import (
    Command,
    DropAdapter,
    LoadAdapter,
    SetKvScheme,
    SetLatencyTarget,
    SetMaxSlowdown,
    SetQuantization,
    SetSwitch,
)

_KEPT = (SetSwitch, SetLatencyTarget, SetMaxSlowdown, SetQuantization, SetKvScheme, LoadAdapter, DropAdapter)


class KeptSettings:
    """The newest command for each setting. Methods may be called from any thread."""

    def __init__(self) -> None:
        self._gate = threading.Lock()
        self._commands: dict[tuple[str, str], Command[Any]] = {}

    def note(self, command: Command[Any], done: Future[Any]) -> None:
        """Keep a command that was carried out, if it changes a setting."""
        if isinstance(command, _KEPT) and done.exception() is None:
            kind = "adapter" if isinstance(command, LoadAdapter | DropAdapter) else command.verb
            with self._gate:
                self._commands[kind, getattr(command, "name", "")] = command

    def all(self) -> list[Command[Any]]:
        with self._gate:
            return [*self._commands.values()]
