"""Folders, and networked file systems, where write-ahead logging fails: it needs shared memory."""

import os
import re
from pathlib import Path

# File systems shared by several machines; a FUSE type is written fuse.NAME.
NETWORKED = frozenset(
    "nfs nfs4 cifs smb3 smbfs 9p afs ceph lustre gpfs beegfs glusterfs panfs pvfs2 orangefs wekafs "
    "sshfs davfs vboxsf virtiofs".split()
)
MOUNTS = Path("/proc/mounts")


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether it is a folder. One that cannot be examined, such as a link to itself, is none."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def networked(path: Path, mounts: Path = MOUNTS) -> str:
    """The type of the networked file system that holds the path; empty if it is local or unknown."""
    try:
        table = mounts.read_text(errors="surrogateescape")
    except OSError:
        return ""
    kind = _kind(path.resolve(), table).removeprefix("fuse.")
    return kind if kind in NETWORKED else ""


def _kind(path: Path, table: str) -> str:
    """The type of the innermost mount that contains the path; of two on one path, the later one."""
    best, deepest = "", -1
    for line in table.splitlines():
        _, place, kind, *_ = [*line.split(" "), "", "", ""]
        point = Path(_unescape(place))
        if (path == point or point in path.parents) and len(point.parts) >= deepest:
            best, deepest = kind, len(point.parts)
    return best


def _unescape(place: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), place)
