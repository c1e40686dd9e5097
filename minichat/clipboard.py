"""Text on its way out of the terminal: through tmux or OSC 52, and always into a file as well."""

import asyncio
import base64
import os
from collections.abc import Callable
from pathlib import Path

from minichat.paths import private_folder

MOST = 74_994  # encoded bytes that terminals take


async def send(text: str, file: Path, write: Callable[[str], None], *, tmux: bool) -> str:
    """Sends the text to the clipboard; returns what a person should know."""
    private_folder(file.parent)
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as kept:
        kept.write(text)
    encoded = base64.b64encode(text.encode()).decode()
    if tmux and await _through_tmux(text):
        return f"sent to the clipboard, and to {file}"
    if len(encoded) > MOST:
        return f"too long for the clipboard ({len(text)} characters): it is in {file}"
    sequence = f"\x1b]52;c;{encoded}\a"
    write(f"\x1bPtmux;\x1b{sequence}\x1b\\" if tmux else sequence)
    return f"sent to the clipboard, and to {file}"


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
