"""Room on disk for the cache blocks of chats."""

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from engine.api.places import DiskRoom
from minichat.shell.filesystems import networked
from minichat.shell.paths import files_in

_MOST = 2e9  # bytes
_SHARE = 10  # one byte in so many of what is free
_LEAST = 5e7
_BUSY = 1.0  # seconds to wait for another engine


def disk_room(option: str | None, cache: Path) -> str | None:
    """Return EngineConfig.kv_disk for an option: DIR:GB, off, or auto. None: nothing is kept."""
    if option != "auto":
        return None if option in (None, "off") else option
    folder = DiskRoom.parse(f"{cache}:1").folder
    place = next(each for each in (folder, *folder.parents) if os.path.exists(each))
    if not os.path.isdir(place) or networked(place):
        return None
    if not all(os.access(each, os.R_OK | os.W_OK) for each in (place, *files_in(place, "index.sqlite*"))):
        return None  # of another user, as after sudo
    if _locked(folder / "index.sqlite"):
        return None
    room = min(_MOST, shutil.disk_usage(place).free / _SHARE)
    return f"{cache}:{room / 1e9:.3f}" if room >= _LEAST else None


def _locked(index: Path) -> bool:
    """Whether another program locks the index, without which no engine would start."""
    if not os.path.exists(index):
        return False
    try:
        with closing(sqlite3.connect(index, timeout=_BUSY, isolation_level=None)) as db:
            db.execute("BEGIN IMMEDIATE")
    except sqlite3.Error as error:  # the engine replaces a damaged one
        return error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
    return False


def nearest(folder: Path) -> Path:
    """Return the folder, or the closest one above it that exists."""
    return next(each for each in (folder, *folder.parents) if os.path.isdir(each))
