"""Make standard streams usable if they are closed or have a limited encoding."""

import errno
import io
import os
import sys
import termios
from contextlib import suppress
from typing import IO

# What is shown instead of a character that a terminal would obey.
SHOWN: dict[int, str] = {code: chr(0x2400 + code) for code in range(32) if code not in (9, 10)}
SHOWN |= {0x7F: "␡", 0x2028: "␤", 0x2029: "␤"}
SHOWN |= dict.fromkeys((*range(128, 160), *range(55296, 57344), *range(917504, 917632)), "�")
# Bidirectional controls: a terminal that follows them would show other text.
SHOWN |= dict.fromkeys((*range(8234, 8239), *range(8294, 8298)), "�")
_OUTPUT_ERRORS = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EBADF)


def settle() -> None:
    """Open missing streams on the null device, and replace characters that cannot be encoded.

    Output to a closed standard output is an error: its descriptor is read-only, so that writing fails.
    """
    # Standard input first, because files get the lowest free descriptor.
    for name, mode, flags in (
        ("stdin", "r", os.O_RDONLY),
        ("stdout", "w", os.O_RDONLY),
        ("stderr", "w", os.O_WRONLY),
    ):
        if getattr(sys, name) is None:  # closed
            nowhere = open(os.open(os.devnull, flags), mode)  # noqa: SIM115 (for the program's lifetime)
            setattr(sys, name, nowhere)
            setattr(sys, f"__{name}__", nowhere)  # used by the screen
    _replace_errors(sys.stdin, "surrogateescape")
    _replace_errors(sys.stdout, "backslashreplace")


def harmless(text: str, file: IO[str] | None = None) -> str:
    """Text that others wrote, such as a model, for standard output: a terminal obeys nothing in it."""
    if not (file or sys.stdout).isatty():
        return text
    return text.replace("\r\n", "\n").translate(SHOWN)


def let_flow(file: IO[str]) -> None:
    """Continue output to a terminal that Ctrl+S has stopped, and wake a write that waits for room."""
    with suppress(OSError, termios.error):
        if os.isatty(file.fileno()):
            for action in (termios.TCOOFF, termios.TCOON):
                termios.tcflow(file.fileno(), action)


def of_output(error: OSError) -> bool:
    """Whether writing to standard output has failed."""
    return error.errno in _OUTPUT_ERRORS and error.filename is None


def give_up_output(error: OSError) -> None:
    """Drop what is still buffered for standard output, and report why it cannot be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if error.errno != errno.EPIPE:  # a closed pipe needs no message
        why = "standard output is closed" if error.errno == errno.EBADF else error.strerror
        print(f"minichat: cannot write: {why}", file=sys.stderr)


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
