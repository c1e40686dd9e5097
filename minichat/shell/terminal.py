"""Detect the terminal, and configure Textual before it is imported."""

import os
import select
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

_SIGNS = "!\"#$%&'()*+,-./:;<=>?@`{|}~"  # others begin sequences of the terminal


@dataclass(frozen=True, slots=True)
class Terminal:
    """The properties of the terminal that the program adapts to."""

    ssh: bool
    tmux: bool
    unicode: bool
    screen: bool = False  # GNU screen
    mono: bool = False  # it shows no colors
    console: bool = False  # that of Linux, which has no clipboard
    outside: str = ""  # "tmux" or "screen" from TERM, running on the client side of an SSH connection

    @classmethod
    def found(cls) -> "Terminal":
        encoding = (getattr(sys.stdout, "encoding", "") or "").lower()
        here, term = ("TMUX" in os.environ, "STY" in os.environ), os.environ.get("TERM", "")
        named = next((name for name in ("tmux", "screen") if term.startswith(name)), "")
        return cls(
            ssh="SSH_CONNECTION" in os.environ,
            tmux=here[0],
            unicode=encoding.replace("-", "") == "utf8" and term != "linux",  # its fonts have few characters
            screen=here[1],
            mono=_mono(term),
            console=term == "linux",
            outside="" if any(here) else named,
        )


def adapt_environment(terminal: Terminal) -> None:
    """Turn off animations, colors on a terminal that has none, and lower the frame rate over a network.

    The user's own settings take precedence. COLUMNS and LINES are removed: if they were exported, Textual
    would never notice a resize.
    """
    for name in ("COLUMNS", "LINES"):
        os.environ.pop(name, None)
    os.environ.setdefault("TEXTUAL_ANIMATIONS", "none")
    if terminal.ssh:
        os.environ.setdefault("TEXTUAL_FPS", "20")
    if terminal.mono:
        os.environ.setdefault("NO_COLOR", "1")


def _mono(term: str) -> bool:
    """Whether the terminal has no colors. One that the terminfo database does not list may have some."""
    try:
        import curses
    except ImportError:
        return False
    try:
        curses.setupterm(term, fd=0)  # once in a process: later calls have no effect
    except curses.error:
        return False
    return curses.tigetnum("colors") <= 0


def when_gone(callback: Callable[[], object]) -> None:
    """Call `callback` from a thread once the terminal has hung up.

    Only the first process of the session gets the signal. If that is another process that survives, such as
    `make`, this one would keep running without a terminal.
    """
    if sys.__stdin__ is None or not sys.__stdin__.isatty():
        return
    hangup = select.poll()
    hangup.register(sys.__stdin__, 0)  # only hang-ups; a system without support returns another event

    def wait() -> None:
        if any(events & select.POLLHUP for _, events in hangup.poll()):
            callback()

    threading.Thread(target=wait, name="terminal", daemon=True).start()


def fix_alt_keys() -> None:
    """Fix Alt keys: Textual reads Alt+1 as the "¡" of a Mac keyboard, Alt+Enter as Enter, and others late.

    Alt+B and Alt+F keep their meaning in Textual: a word left and right.
    """
    from textual._ansi_sequences import ANSI_SEQUENCES_KEYS

    from minichat.settings.keymap import normalized

    sequences: dict[str, Any] = ANSI_SEQUENCES_KEYS  # type: ignore[assignment]
    for key in f"1234567890acdeghijklmnopqrstuvwxyz{_SIGNS}":
        sequences[f"\x1b{key}"] = (SimpleNamespace(value=normalized(f"alt+{key}")),)
    sequences["\x1b\r"] = (SimpleNamespace(value="alt+enter"),)
