"""Restart the same program with its options."""

import argparse
import atexit
import json
import os
import sys
import termios
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from minichat.shell.streams import let_flow

_OPTIONS = {"runs_in": "engine", "no_screen": "no-screen"}  # attributes whose option has another name
_RESTARTED = "MINICHAT_RESTARTED"  # set for the new program
TYPED = "MINICHAT_TYPED"  # likewise: what was typed for the options that the restart has changed
_TERMINAL = "MINICHAT_TERMINAL"  # likewise: the modes of the terminal before it held keys
_PLACES = ("url",)  # positional arguments


def typed(options: argparse.Namespace) -> argparse.Namespace:
    """The options as typed. Take them before the settings fill in the others, and restart with them."""
    return argparse.Namespace(**vars(options) | json.loads(os.environ.pop(TYPED, "{}")))


def note_typed(options: Mapping[str, object]) -> None:
    """Tell the new program what was typed for these options, which it gets with other values."""
    os.environ[TYPED] = json.dumps(options)


def words_of(options: argparse.Namespace, **changes: object) -> list[str]:
    """All given options, with some of them changed. The first question is left out: it has been sent."""
    words, places = [options.command], []
    for name, value in (vars(options) | changes).items():
        if name in ("command", "text") or value is None or value is False:
            continue
        if name in _PLACES:
            places.append(str(value))
            continue
        option = f"--{_OPTIONS.get(name, name).replace('_', '-')}"
        values = value if isinstance(value, list) else [value]
        words += [option] if value is True else [f"{option}={each}" for each in values]
    return [*words, *(["--", *places] if places else [])]


def code() -> dict[str, float]:
    """When the files of this program, and of its extensions, were saved."""
    times = dict[str, float]()
    for file in filter(None, (getattr(each, "__file__", None) for each in list(sys.modules.values()))):
        with suppress(OSError):
            times[file] = os.stat(file).st_mtime
    return times


def announce() -> None:
    """Say what happens on the shell's screen, which shows until the new program draws its first frame."""
    _show("minichat: restarting ...\r")
    hold_keys()


def hold_keys() -> None:
    """Let the terminal hold what is typed for the new program: without echo, and with Ctrl+Q as a key."""
    with suppress(OSError, ValueError, termios.error):  # no terminal
        keys = sys.stdin.fileno()
        modes = termios.tcgetattr(keys)
        characters = [each if isinstance(each, int) else each.decode("latin-1") for each in modes[6]]
        os.environ[_TERMINAL] = json.dumps([*modes[:6], characters])
        adopt()
        modes[0] &= ~(termios.IXON | termios.IXOFF | termios.ICRNL)
        modes[3] &= ~(termios.ECHO | termios.ICANON)
        modes[6][termios.VMIN], modes[6][termios.VTIME] = 1, 0
        termios.tcsetattr(keys, termios.TCSANOW, modes)


def restart(words: Sequence[str]) -> None:
    """Replace this program by a new one. The terminal stays the same."""
    os.environ[_RESTARTED] = "1"
    os.execv(sys.executable, [sys.executable, "-m", "minichat", *words])


def restarted() -> bool:
    """Whether the program was restarted, so that it opens the chats as they were. True only once.

    Removes what the program before has announced.
    """
    if again := bool(os.environ.pop(_RESTARTED, "")):
        _show("\x1b[K")
    return again


_before: list[Any] = []  # the modes of the terminal, to be put back


def adopt() -> None:
    """Put the modes back that the program before has changed, if this one ends without a screen."""
    if found := os.environ.get(_TERMINAL):
        *modes, characters = json.loads(found)
        cells = [each if isinstance(each, int) else each.encode("latin-1") for each in characters]
        _before[:] = [*modes, cells]
        atexit.register(put_back)


def modes_before() -> list[Any] | None:
    """The modes that a screen puts back at its end, if they are not those that it finds."""
    os.environ.pop(_TERMINAL, None)
    atexit.unregister(put_back)
    found, _before[:] = _before[:], []
    return found or None


def put_back() -> None:
    if (modes := modes_before()) is not None:
        with suppress(OSError, ValueError, termios.error):  # the terminal is gone
            termios.tcsetattr(sys.stdin.fileno(), termios.TCSANOW, modes)


def _show(text: str) -> None:
    """Ctrl+S, meant for a screen but typed between the two programs, has stopped the terminal."""
    let_flow(sys.stdout)
    print(text, end="", flush=True)
