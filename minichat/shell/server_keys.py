"""The keys of `minichat serve`: those of a file, or the user's own."""

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from engine.api.errors import BadInput
from minichat.shell.paths import locate, private_folder

_SHORTEST_KEY = 16


def find_keys(file: str | None) -> tuple[str, ...]:
    """Return the keys of a file, one per line; without a file, the user's own key, created if missing."""
    if file is None:
        return (own_key(locate().server_key),)
    try:
        with open(file, encoding="utf-8") as opened:
            if (mode := os.fstat(opened.fileno()).st_mode) & 0o077 and stat.S_ISREG(mode):
                raise BadInput(f"--api-key-file {file} is readable by others; run chmod 600 on it")
            lines = opened.read().splitlines()
    except OSError as error:
        raise BadInput(f"cannot read --api-key-file {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadInput(f"--api-key-file {file} is not UTF-8 text") from None
    keys = tuple(line.strip() for line in lines if line.strip() and not line.startswith("#"))
    if not keys:
        raise BadInput(f"--api-key-file {file} contains no key; write one key per line")
    if short := [key for key in keys if len(key) < _SHORTEST_KEY]:
        raise BadInput(
            f"--api-key-file {file} has a key of {len(short[0])} characters; use {_SHORTEST_KEY} or more"
        )
    return keys


def own_key(file: Path) -> str:
    """Return the key in this file, which only its owner can read. The first server to start creates it."""
    try:
        private_folder(file.parent)
        if not file.exists():
            _make_key(file)
        if file.stat().st_mode & 0o077:
            raise BadInput(f"{file} is readable by others; chmod 600 it, or delete it to create a new key")
        key = file.read_text(encoding="ascii").strip()
    except OSError as error:
        raise BadInput(
            f"cannot store the server key in {file}: {error.strerror}; use --api-key-file"
        ) from None
    except UnicodeDecodeError:
        key = ""
    if len(key) < _SHORTEST_KEY:
        raise BadInput(f"{file} contains no valid key; delete it to create a new one")
    return key


def _make_key(file: Path) -> None:
    """Create the key file atomically, because a server that starts concurrently may read it."""
    fresh = file.with_name(f"{file.name}.{secrets.token_hex(4)}")
    try:
        with open(fresh, "x", encoding="ascii", opener=_private) as made:
            made.write(f"sk-minichat-{secrets.token_urlsafe(32)}\n")
        with suppress(FileExistsError):
            os.link(fresh, file)
    finally:
        fresh.unlink(missing_ok=True)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
