"""The first message, from the command line and a pipe."""

import os
import stat
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from minichat.chats.model import Attachment
from minichat.doing import doing_late
from minichat.session.attachments import MOST, PIPED, text_of


@dataclass(frozen=True, slots=True)
class First:
    """The initial text of the prompt, and whether it is sent immediately."""

    text: str = ""
    piped: tuple[Attachment, ...] = ()
    send: bool = False
    notice: str = ""  # why it is not sent


def first_message(words: Sequence[str], piped: str | None) -> First:
    """Send a question immediately, with piped input attached. Piped input alone waits for a question."""
    question = " ".join(words).strip()
    if piped is None:
        return First(question, send=bool(question))
    if not piped.strip():
        return First(question, notice="The pipe was empty, so nothing was sent")
    attached = (Attachment(PIPED, piped),)
    if question:
        return First(f"{question} @{PIPED}", attached, send=True)
    return First(f"@{PIPED} ", attached, notice=f"@{PIPED} is the piped input. Type what to do with it")


def is_piped() -> bool:
    """Whether standard input has a text: it is not a terminal, a device or closed."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError):  # it has no file descriptor
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)


def read_pipe() -> str | None:
    """The piped input, if there is one."""
    return text_of("the piped input", piped_bytes()) if is_piped() else None


def piped_bytes() -> bytes:
    """All of standard input, or its start if it is too large. The command before it may take its time."""
    with doing_late("reading the piped input"):
        return sys.stdin.buffer.read(MOST + 1)


def keys_from_terminal() -> bool:
    """Replace standard input by the terminal. Return False if there is none."""
    try:
        terminal = os.open("/dev/tty", os.O_RDWR)
    except OSError:
        return False
    os.dup2(terminal, 0)
    if terminal:
        os.close(terminal)
    return True
