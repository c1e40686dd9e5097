"""What the command line and a pipe bring for the first message."""

import os
import stat
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from minichat.chats.model import Attachment
from minichat.session.attachments import MOST, PIPED, text_of


@dataclass(frozen=True, slots=True)
class First:
    """The text that stands in the prompt at the start, and whether it is sent at once."""

    text: str = ""
    piped: tuple[Attachment, ...] = ()
    send: bool = False
    notice: str = ""  # why it is not


def first_message(words: Sequence[str], piped: str | None) -> First:
    """A question goes at once, with what was piped in. What was piped in alone waits for a question."""
    question = " ".join(words).strip()
    if piped is None:
        return First(question, send=bool(question))
    if not piped.strip():
        return First(question, notice="nothing came through the pipe, so nothing was sent")
    attached = (Attachment(PIPED, piped),)
    if question:
        return First(f"{question} @{PIPED}", attached, send=True)
    return First(f"@{PIPED} ", attached, notice=f"@{PIPED} is what was piped in: say what to do with it")


def read_pipe() -> str | None:
    """What comes through standard input; None where that is a terminal, a device, or closed."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError):  # it is none of the system's
        return None
    if not (stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)):
        return None
    return text_of("what was piped in", sys.stdin.buffer.read(MOST + 1))


def keys_from_terminal() -> bool:
    """Puts the terminal in the place of standard input. False where there is none to be had."""
    try:
        terminal = os.open("/dev/tty", os.O_RDWR)
    except OSError:
        return False
    os.dup2(terminal, 0)
    if terminal:
        os.close(terminal)
    return True
