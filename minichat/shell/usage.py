"""Errors on the command line as one sentence. `cli.py` defines the command line."""

import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

_NAME = re.compile(r"\w[\w.-]*")  # as people name engines
_REPLACED = {
    "--host-blocks": "--kv-host, in GB",
    "--theme": "the setting screen.theme, or choose one in ^P",
}


class Parser(argparse.ArgumentParser):
    def __init__(self, **how: Any) -> None:
        """Options must be whole: a script's abbreviation would break with the next option."""
        super().__init__(allow_abbrev=False, **how)

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print a message. Help that cannot be written is an error, which argparse would hide."""
        if file is sys.stdout:
            print(message, end="", flush=True)
        else:
            super()._print_message(message, file)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")

    def refuse(
        self, unknown: Sequence[str], also: Iterable[str] = (), other: "Parser | None" = None
    ) -> NoReturn:
        """Report unknown arguments; `also` lists further options to suggest, `other` may take the option."""
        slip = next((word.partition("=")[0] for word in unknown if word.startswith("--")), "")
        near = near_to(slip, [*self._option_string_actions, *also])
        if slip in _REPLACED:
            near = f"; use {_REPLACED[slip]}"
        elif other is not None and slip in other._option_string_actions:
            near = f"; {other.prog} takes {slip}"
        elif len(unknown) == 1 and _NAME.fullmatch(unknown[0]) and "--name" in self._option_string_actions:
            near = f"; did you mean --name {unknown[0]}?"
        self.error(f"unrecognized arguments: {' '.join(unknown)}{near}")


def near_to(word: str, known: Iterable[str]) -> str:
    """A suggestion for a mistyped word, as the end of a sentence."""
    from difflib import get_close_matches

    bare = {each.lstrip("-"): each for each in known}  # dashes would make any two options similar
    typed = word.lstrip("-")
    longer = [each for each in bare if typed and each.startswith(typed)]
    near = longer if len(longer) == 1 else get_close_matches(typed, bare, n=1)
    return "".join(f"; did you mean {bare[each]}?" for each in near)


def given(text: str) -> str:
    """A nonempty text: an unset shell variable must not pass as a name or a path."""
    if not text.strip():
        raise argparse.ArgumentTypeError("must not be empty")
    return text


def whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number, got {text!r}") from None


def number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, got {text!r}") from None
