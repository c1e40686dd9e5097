"""Text on its way out of the terminal: through tmux or OSC 52, and always into a file as well."""

import asyncio
import base64
import os
from collections.abc import Callable
from pathlib import Path

from minichat.shell.paths import private_folder
from minichat.shell.terminal import Terminal

MOST = 74_994  # encoded bytes that terminals take
SHORT = 600  # that GNU screen drops where it is not addressed; of a longer string it prints the end
_PIECE = 256  # characters that GNU screen hands on at a time; older ones drop a string of more than 767
_OUTSIDE = {  # what decides on the other side of an SSH connection
    "": "",
    "tmux": "; the tmux around this takes it if it has: set -g set-clipboard on",
    "screen": "; tmux around this takes it if it has: set -g set-clipboard on. GNU screen does not",
}


async def send(text: str, file: Path, write: Callable[[str], None], terminal: Terminal) -> str:
    """Sends the text to the clipboard; returns what a person should know."""
    private_folder(file.parent)
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as kept:
        kept.write(text)
    encoded = base64.b64encode(text.encode()).decode()
    most = SHORT if terminal.outside == "screen" else MOST
    told = f"too long for the clipboard ({len(text):,} characters; it takes {most * 3 // 4:,} bytes)"
    if terminal.tmux and await _through_tmux(text):
        if len(encoded) > most:
            return f"{told}: it is in tmux's paste buffer, and in {file}"
        return f"sent to the clipboard, and to {file}"
    if len(encoded) > most:
        return f"{told}: it is in {file}"
    write(_wrapped(f"\x1b]52;c;{encoded}\a", terminal))
    return f"sent to the clipboard, and to {file}{_OUTSIDE[terminal.outside]}"


def _wrapped(sequence: str, terminal: Terminal) -> str:
    """As what stands between this program and the terminal hands it on."""
    if terminal.tmux:
        return f"\x1bPtmux;\x1b{sequence}\x1b\\"
    if terminal.screen:
        pieces = (sequence[at : at + _PIECE] for at in range(0, len(sequence), _PIECE))
        return "".join(f"\x1bP{piece}\x1b\\" for piece in pieces)
    return sequence


async def _through_tmux(text: str) -> bool:
    """Whether tmux took it; -w has it passed on to the terminal outside."""
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
