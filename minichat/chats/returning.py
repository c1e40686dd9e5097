"""The way back from memory to a file that could not be written for a while, such as on a full disk."""

import logging
import os
import sqlite3
import time
from dataclasses import replace
from pathlib import Path

from minichat.chats.errors import NewerStore
from minichat.chats.opening import TIMEOUT, Opened, connected
from minichat.chats.schema import set_ids_apart

log = logging.getLogger("minichat.app")

_AGAIN = 10.0  # seconds between two attempts


class Return:
    """Writes the chats in memory to their file once that works, unless another screen has written to it.

    A connection to the file stays open, because only it can tell what others have written since.
    """

    def __init__(self, path: Path) -> None:
        """Call it right after a write has failed. Raises sqlite3.DatabaseError if the file cannot be read."""
        self.tried_at = time.monotonic()
        self._path = path
        self._file = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            self._version = self._newest()  # changes with each write of another connection
        except BaseException:
            self._file.close()
            raise

    @property
    def due(self) -> bool:
        return time.monotonic() - self.tried_at >= _AGAIN

    def attempt(self, memory: sqlite3.Connection) -> Opened | None:
        """The file with everything from memory; None: it still cannot be written, or has other work."""
        self.tried_at = time.monotonic()
        opened: Opened | None = None
        try:
            if self._others_wrote() or _free(self._path.parent) < _size(memory):
                return None
            file = (opened := connected(self._path)).connection
            file.execute("PRAGMA busy_timeout = 0")  # the user waits
            with file:
                file.execute("BEGIN IMMEDIATE")
                if alone := not self._others_wrote():
                    _replace(file, memory)
            if alone:
                file.execute(f"PRAGMA busy_timeout = {round(1000 * TIMEOUT)}")
                self.close()
                return replace(opened, notice=f"The chats are saved in {self._path} again.")
        except (OSError, NewerStore, sqlite3.DatabaseError) as error:  # the screen says that nothing is saved
            log.info("chats stay in memory: %s", error)
        if opened is not None:
            opened.connection.close()
        return None

    def saved(self) -> set[tuple[int, str, str]]:
        """The messages in the file: their ids, texts and reasoning; none if it cannot be read any more."""
        try:
            return set(self._file.execute("SELECT id, text, reasoning FROM messages"))
        except sqlite3.DatabaseError as error:
            log.info("the file cannot be read: %s", error)
            return set()

    def close(self) -> None:
        self._file.close()

    def _others_wrote(self) -> bool:
        return self._newest() != self._version

    def _newest(self) -> int:
        return self._file.execute("PRAGMA data_version").fetchone()[0]


def _replace(file: sqlite3.Connection, memory: sqlite3.Connection) -> None:
    """Replace all rows of the file by those in memory."""
    file.execute("PRAGMA defer_foreign_keys = ON")
    named = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite!_%' ESCAPE '!'"
    tables = [row[0] for row in memory.execute(named)]
    for table in tables:
        file.execute(f"DELETE FROM {table}")
    for table in tables:
        columns = [row[1] for row in memory.execute(f"PRAGMA table_info({table})")]
        names, holes = ", ".join(columns), ", ".join("?" * len(columns))
        rows = memory.execute(f"SELECT {names} FROM {table}")
        file.executemany(f"INSERT INTO {table} ({names}) VALUES ({holes})", map(tuple, rows))
    set_ids_apart(file)


def _size(memory: sqlite3.Connection) -> int:
    pages, size = (memory.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
    return pages * size


def _free(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize
