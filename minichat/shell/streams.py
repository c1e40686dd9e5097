"""Make standard streams usable if they are closed or have a limited encoding."""

import io
import os
import sys


def settle() -> None:
    """Open missing streams on the null device, and replace characters that cannot be encoded."""
    # Standard input first, because files get the lowest free descriptor.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed
            nowhere = open(os.devnull, mode)  # noqa: SIM115 (open for the lifetime of the program)
            setattr(sys, name, nowhere)
            setattr(sys, f"__{name}__", nowhere)  # used by the screen
    _replace_errors(sys.stdin, "surrogateescape")
    _replace_errors(sys.stdout, "backslashreplace")


def draw_on_terminal() -> None:
    """Draw the screen on the terminal even if standard error is redirected: `minichat 2>log`."""
    stderr, out = sys.__stderr__, sys.__stdout__
    if out is not None and out.isatty() and not (stderr is not None and stderr.isatty()):
        vars(sys)["__stderr__"] = out


def _replace_errors(stream: object, errors: str) -> None:
    """Replace unencodable characters, as Python does on standard error. In the C locale it passes on bytes of
    file names on the other two, and fails at other characters.
    """
    if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
        stream.reconfigure(errors=errors)
