"""Copy text to the clipboard through tmux or OSC 52, and always to a file."""

import asyncio
import base64
import os
from collections.abc import Callable
from pathlib import Path

from minichat.shell.paths import private_folder
from minichat.shell.terminal import Terminal

MOST = 74_994  # maximum encoded bytes that terminals accept
SHORT = 600  # the limit of GNU screen without its wrapper; it prints the end of a longer string
_PIECE = 256  # characters that GNU screen forwards at a time; older versions drop strings of more than 767
_OUTSIDE = {  # notes for a multiplexer on the other side of SSH
    "": "",
    "tmux": "; the outer tmux needs: set -g set-clipboard on",
    "screen": "; an outer tmux needs: set -g set-clipboard on. GNU screen is not supported",
}


async def send(text: str, file: Path, write: Callable[[str], None], terminal: Terminal) -> str:
    """Copy the text to the clipboard; return a message for the user."""
    error = _keep(text, file)
    if terminal.console:
        return f"The Linux console has no clipboard{error or f'. Copied to {file}'}"
    encoded = base64.b64encode(text.encode()).decode()
    most = SHORT if terminal.outside == "screen" else MOST
    notice = f"Too long for the clipboard ({len(text):,} characters; the limit is {most * 3 // 4:,} bytes)"
    if terminal.tmux and await _through_tmux(text):
        if len(encoded) > most:
            return f"{notice}. Copied to the tmux paste buffer{error or f' and to {file}'}"
        return f"Sent to the clipboard{error or f' and to {file}'}"
    if len(encoded) > most:
        return f"{notice}{error or f'. Copied to {file}'}"
    write(_wrapped(f"\x1b]52;c;{encoded}\a", terminal))
    return f"Sent to the clipboard{error or f' and to {file}'}{_OUTSIDE[terminal.outside]}"


def _keep(text: str, file: Path) -> str:
    """Write the text to the file; return why that failed, as the end of a sentence, or an empty text."""
    try:
        private_folder(file.parent)
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as kept:
            kept.write(text)
    except OSError as error:
        return f"; cannot write {file}: {error.strerror or error}"
    return ""


def _wrapped(sequence: str, terminal: Terminal) -> str:
    """Wrap the sequence so that tmux or GNU screen forwards it to the terminal."""
    if terminal.tmux:
        return f"\x1bPtmux;\x1b{sequence}\x1b\\"
    if terminal.screen:
        pieces = (sequence[at : at + _PIECE] for at in range(0, len(sequence), _PIECE))
        return "".join(f"\x1bP{piece}\x1b\\" for piece in pieces)
    return sequence


async def _through_tmux(text: str) -> bool:
    """Copy through tmux and return whether it worked; -w forwards it to the outer terminal."""
    try:
        tmux = await asyncio.create_subprocess_exec(
            "tmux",
            "load-buffer",
            "-w",
            "-",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except OSError:
        return False
    await tmux.communicate(text.encode())
    return tmux.returncode == 0
