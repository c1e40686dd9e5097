"""The database connection: one transaction at a time, from any thread, with recovery from damage."""

import os
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import RLock
from typing import TypeVar

from minichat.chats.errors import StoreBusy
from minichat.chats.opening import TIMEOUT, Opened, in_memory, open_database, repaired, trouble
from minichat.chats.returning import Return
from minichat.chats.search import holds

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]


class Database:
    """The file at a path; in memory without one, or if it cannot be opened."""

    def __init__(self, path: Path | None, first: Work[None]) -> None:
        """`first` is the first write."""
        self.notices: list[str] = []
        self._seen = 0
        self._lock = RLock()
        self._return: Return | None = None
        self._to_file = path is not None
        self._adopt(open_database(path) if path else in_memory())
        try:
            self.write(first)
        except StoreBusy:
            why = f"Cannot use {path}: another program has locked it"
            self._adopt(in_memory(why, copy=self._opened.connection))
            self.write(first)

    @property
    def unsaved(self) -> bool:
        """Whether the chats should be in a file and are in memory only."""
        return self._to_file and self._opened.path is None

    @property
    def path(self) -> Path | None:
        return self._opened.path

    def read(self, work: Work[T]) -> T:
        """Run a read transaction with a consistent view; return its result."""
        return self._run("BEGIN", work)

    def write(self, work: Work[T]) -> T:
        """Run a write transaction atomically; return its result."""
        with self._lock:
            if self._return is not None and self._return.due:
                self._go_back(self._return)
            opened = self._opened
            if opened.path is not None and not os.path.exists(opened.path):  # SQLite would not notice
                self._adopt(in_memory(f"{opened.path} was deleted", copy=opened.connection))
            return self._run("BEGIN IMMEDIATE", work)

    def changed(self) -> bool:
        with self._lock:
            before = self._seen
            self._seen = self._data_version()
            return self._seen != before

    def empty_journal(self) -> None:
        """Bring all changes into the file: the journal beside it still has what was deleted.

        While another program reads or writes for long, the journal stays until the next time.
        """
        with self._lock, suppress(sqlite3.OperationalError):  # the next write reports it
            self._opened.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def return_now(self) -> None:
        """Continue in the file, if it can be written again."""
        with self._lock:
            if self._return is not None:
                self._go_back(self._return)

    def lost(self) -> dict[str, int]:
        """How many messages that are in memory the file does not have, by the titles of their chats."""
        with self._lock:
            memory = self._opened.connection
            saved = self._return.saved() if self._return is not None else set()
            query = (
                "SELECT title, messages.id, text, reasoning FROM messages JOIN chats ON chats.id = chat_id"
            )
            return dict(Counter(row[0] for row in memory.execute(query) if tuple(row)[1:] not in saved))

    def close(self) -> None:
        with self._lock:
            self.return_now()
            if self._return is not None:
                self._return.close()
                self._return = None
            self._opened.connection.close()

    def _run(self, begin: str, work: Work[T]) -> T:
        with self._lock:
            try:
                return self._transact(begin, work)
            except sqlite3.DatabaseError as error:
                self._recover(error)
                return self._transact(begin, work)

    def _transact(self, begin: str, work: Work[T]) -> T:
        with self._opened.connection as connection:
            connection.execute(begin)
            return work(connection)

    def _recover(self, error: sqlite3.DatabaseError) -> None:
        """Make the database usable again, or raise."""
        opened, found = self._opened, trouble(error)
        if found == "busy":
            locked = f"another program has locked {opened.path} for more than {TIMEOUT:g} s; try again"
            raise StoreBusy(locked) from error
        if opened.path is None or found == "other":
            raise error
        if found == "unwritable":
            why = f"Cannot write {opened.path}: {error}. Until that works, chats are in memory"
            with suppress(sqlite3.DatabaseError):  # then there is no way back
                self._return = Return(opened.path)
            self._adopt(in_memory(why, copy=opened.connection))
        else:
            opened.connection.close()
            self._adopt(repaired(opened.path, opened.inode))

    def _go_back(self, way: Return) -> None:
        memory = self._opened.connection
        if (opened := way.attempt(memory)) is not None:
            memory.close()
            self._return = None
            self._adopt(opened)

    def _adopt(self, opened: Opened) -> None:
        self._opened = opened
        self._seen = self._data_version()
        opened.connection.create_function("holds", 2, holds, deterministic=True)
        if opened.notice:
            self.notices.append(opened.notice)

    def _data_version(self) -> int:
        return self._opened.connection.execute("PRAGMA data_version").fetchone()[0]
