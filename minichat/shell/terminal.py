"""What this terminal is, and what must be settled before textual is imported."""

import os
import select
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any


@dataclass(frozen=True, slots=True)
class Terminal:
    """The little that the program adapts to."""

    ssh: bool
    tmux: bool
    unicode: bool
    screen: bool = False  # GNU's
    outside: str = ""  # "tmux" or "screen" that TERM names, and that runs where the SSH connection begins

    @classmethod
    def found(cls) -> "Terminal":
        encoding = (getattr(sys.stdout, "encoding", "") or "").lower()
        here, term = ("TMUX" in os.environ, "STY" in os.environ), os.environ.get("TERM", "")
        named = next((name for name in ("tmux", "screen") if term.startswith(name)), "")
        return cls(
            ssh="SSH_CONNECTION" in os.environ,
            tmux=here[0],
            unicode=encoding.replace("-", "") == "utf8",
            screen=here[1],
            outside="" if any(here) else named,
        )


def calm(terminal: Terminal) -> None:
    """No animations, and fewer frames where each one crosses a network. What the person has set stays.

    But not a size: where COLUMNS and LINES were exported, textual would never see the terminal change.
    """
    for name in ("COLUMNS", "LINES"):
        os.environ.pop(name, None)
    os.environ.setdefault("TEXTUAL_ANIMATIONS", "none")
    if terminal.ssh:
        os.environ.setdefault("TEXTUAL_FPS", "20")


def when_gone(told: Callable[[], object]) -> None:
    """Calls it once the terminal has hung up, from a thread.

    Its signal goes to the first process of the session alone. Where that is another one and stays, such as
    `make`, nobody tells this one, and it would go on for nobody.
    """
    if sys.__stdin__ is None or not sys.__stdin__.isatty():
        return
    hung_up = select.poll()
    hung_up.register(sys.__stdin__, 0)  # of nothing else; a system that cannot say it gives another answer

    def wait() -> None:
        if any(events & select.POLLHUP for _, events in hung_up.poll()):
            told()

    threading.Thread(target=wait, name="terminal", daemon=True).start()


def teach_alt_keys() -> None:
    """Textual reads Alt+1 as the "¡" of a Mac's keyboard, Alt+Enter as Enter, and other Alt keys late.

    Alt+B and Alt+F stay what they are there: a word to the left and to the right.
    """
    from textual._ansi_sequences import ANSI_SEQUENCES_KEYS

    sequences: dict[str, Any] = ANSI_SEQUENCES_KEYS  # type: ignore[assignment]
    for key in "1234567890acdeghijklmnopqrstuvwxyz":
        sequences[f"\x1b{key}"] = (SimpleNamespace(value=f"alt+{key}"),)
    sequences["\x1b\r"] = (SimpleNamespace(value="alt+enter"),)
