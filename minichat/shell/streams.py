"""Standard streams as a shell may leave them: closed, or in an encoding that cannot say everything."""

import io
import os
import sys


def settle() -> None:
    """Each is there, if only to lead nowhere, and none fails at a character."""
    # Standard input first: files take the lowest number that is free.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # it was closed
            nowhere = open(os.devnull, mode)  # noqa: SIM115 (for as long as the program runs)
            setattr(sys, name, nowhere)
            setattr(sys, f"__{name}__", nowhere)  # by which the screen asks for it
    _forgive(sys.stdin, "surrogateescape")
    _forgive(sys.stdout, "backslashreplace")


def draw_on_terminal() -> None:
    """The screen is drawn on standard error, which may lead elsewhere: `minichat 2>log`."""
    drawn_on, out = sys.__stderr__, sys.__stdout__
    if out is not None and out.isatty() and not (drawn_on is not None and drawn_on.isatty()):
        vars(sys)["__stderr__"] = out


def _forgive(stream: object, errors: str) -> None:
    """Python does so by itself in the C locale, and on standard error everywhere."""
    if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
        stream.reconfigure(errors=errors)
