"""Room on disk for the cache blocks of chats."""

import os
import shutil
from pathlib import Path

from engine.api.places import DiskRoom
from minichat.shell.filesystems import networked

_MOST = 2e9  # bytes
_SHARE = 10  # one byte in so many of what is free
_LEAST = 5e7


def disk_room(option: str | None, cache: Path) -> str | None:
    """Return EngineConfig.kv_disk for an option: DIR:GB, off, or auto. None: nothing is kept."""
    if option != "auto":
        return None if option in (None, "off") else option
    folder = DiskRoom.parse(f"{cache}:1").folder
    place = next(each for each in (folder, *folder.parents) if each.exists())
    if not (place.is_dir() and os.access(place, os.W_OK)) or networked(place):
        return None
    room = min(_MOST, shutil.disk_usage(place).free / _SHARE)
    return f"{cache}:{room / 1e9:.3f}" if room >= _LEAST else None


def nearest(folder: Path) -> Path:
    """Return the folder, or the closest one above it that exists."""
    return next(each for each in (folder, *folder.parents) if each.is_dir())
