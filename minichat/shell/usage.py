"""What is wrong with a command line, in a sentence. `cli.py` has what may stand on it."""

import argparse
from collections.abc import Iterable, Sequence
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")

    def refuse(self, unknown: Sequence[str], also: Iterable[str] = ()) -> NoReturn:
        """Words that it does not know; `also` are options that may be meant beside its own."""
        slips = (word.partition("=")[0] for word in unknown if word.startswith("--"))
        near = near_to(next(slips, ""), [*self._option_string_actions, *also])
        self.error(f"unrecognized arguments: {' '.join(unknown)}{near}")


def near_to(word: str, known: Iterable[str]) -> str:
    """What a person may have meant, as the end of a sentence."""
    from difflib import get_close_matches

    return "".join(f"; did you mean {each}?" for each in get_close_matches(word, list(known), n=1))


def given(text: str) -> str:
    """A name or a place: an unset variable of the shell is neither."""
    if not text.strip():
        raise argparse.ArgumentTypeError("must not be empty")
    return text


def whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number, not {text!r}") from None


def number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, not {text!r}") from None
