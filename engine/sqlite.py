"""What SQLite leaves to its users."""

import errno
import os
import sqlite3
import time
from contextlib import suppress
from pathlib import Path

_PAUSE = 0.02  # seconds


def create_private(path: Path) -> None:
    """Create a database's file for its user only, unless it exists. Raises OSError if it cannot be used.

    An existing file is not opened: closing it would drop the locks of all connections of this process.
    """
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    if os.path.isdir(path):
        reason = errno.EISDIR
    elif os.access(path, os.R_OK | os.W_OK):
        return
    else:
        read_only = os.statvfs(path.parent).f_flag & os.ST_RDONLY
        reason = errno.EROFS if read_only else errno.EACCES
    raise OSError(reason, os.strerror(reason), str(path))


def set_journal(db: sqlite3.Connection, mode: str, seconds: float) -> None:
    """Set the journal mode. SQLite does not wait for another process that does the same; this waits."""
    latest = time.monotonic() + seconds
    while True:
        try:
            db.execute(f"PRAGMA journal_mode = {mode}")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > latest:
                raise
            time.sleep(_PAUSE)
        else:
            return
