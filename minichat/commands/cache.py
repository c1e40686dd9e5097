"""`minichat cache`: show or clear the cache blocks that chats keep on disk."""

import argparse
import json
import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path

from engine.api.places import DiskRoom, expanded
from engine.kv.tiers.disk_index import Contents, DiskIndex
from minichat.models.progress import duration, size
from minichat.plural import plural
from minichat.shell.paths import locate


def run(options: argparse.Namespace) -> int:
    place = expanded(options.folder) if options.folder else locate().cache
    disk = DiskRoom.parse(f"{place}:1")
    try:
        if options.folder and not Path(place).is_dir():
            print(f"minichat: there is no folder {place}", file=sys.stderr)
            return 1
        found = _found(disk, options.clear)
    except (OSError, sqlite3.Error) as error:
        why = error.strerror if isinstance(error, OSError) else error
        print(f"minichat: cannot use {disk.folder}: {why}", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps(_record(disk.folder, found or Contents(0, 0, 0, 0.0), options.clear), indent=2))
    elif found is None:
        print(f"no blocks in {disk.folder}")
    else:
        print(_cleared(found) if options.clear else _shown(disk.folder, found))
    return 0


def _found(disk: DiskRoom, clear: bool) -> Contents | None:
    """What the folder holds, or held before it was cleared; None without a folder."""
    if not disk.folder.is_dir():
        return None
    with closing(DiskIndex(disk.folder, disk.nbytes)) as index:
        return index.clear() if clear else index.contents()


def _record(folder: Path, found: Contents, cleared: bool) -> dict[str, object]:
    """What was found there; `cleared`: it has been removed since."""
    counts = {"blocks": found.blocks, "bytes": found.nbytes, "chats": found.chats}
    return {"folder": str(folder), **counts, "oldest": found.oldest or None, "cleared": cleared}


def _cleared(found: Contents) -> str:
    return f"removed {plural(found.blocks, 'block')}, {size(found.nbytes)}"


def _shown(folder: Path, found: Contents) -> str:
    chats = f" of {plural(found.chats, 'chat')}" if found.chats else ""  # those of a server have none
    sizes = f", in {found.sizes} sizes: an engine uses those of its own" if found.sizes > 1 else ""
    kept = f"{plural(found.blocks, 'block')}{chats}, {size(found.nbytes)}{sizes}"
    lines = [f"folder  {folder}", f"blocks  {kept}"]
    if found.blocks:
        lines.append(f"oldest  last used {duration(time.time() - found.oldest)} ago")
    return "\n".join(lines)
