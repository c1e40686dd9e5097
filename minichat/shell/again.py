"""Restart the same program with its options."""

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence

from minichat.shell.streams import let_flow

_OPTIONS = {"runs_in": "engine", "no_screen": "no-screen"}  # attributes whose option has another name
_RESTARTED = "MINICHAT_RESTARTED"  # set for the new program
TYPED = "MINICHAT_TYPED"  # likewise: what was typed for the options that the restart has changed
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


def announce() -> None:
    """Say what happens on the shell's screen, which shows until the new program draws its first frame."""
    _show("minichat: restarting ...\r")


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


def _show(text: str) -> None:
    """Ctrl+S, meant for a screen but typed between the two programs, has stopped the terminal."""
    let_flow(sys.stdout)
    print(text, end="", flush=True)
