"""What SQLite leaves to its users."""

import sqlite3
import time

_PAUSE = 0.02  # seconds


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
