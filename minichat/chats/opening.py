"""Open the chat database in any state: damaged, locked, newer or read-only. The result is always usable."""

import os
import sqlite3
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from engine.sqlite import set_journal
from minichat.chats.errors import NewerStore
from minichat.chats.queries import make_last
from minichat.chats.schema import migrate, set_ids_apart
from minichat.shell.filesystems import networked
from minichat.shell.paths import damaged_name, private_folder

TIMEOUT = 2.0  # seconds to wait for another process's write
# The modes of SQLite's journal and of its waits for the disk, here and on a networked file system. NORMAL
# loses nothing if the program is killed, and at most the last moments on a power failure.
LOCAL, NETWORKED = ("WAL", "NORMAL"), ("TRUNCATE", "FULL")

Trouble = Literal["busy", "unwritable", "damaged", "other"]
_TROUBLES: dict[int, Trouble] = {
    **dict.fromkeys((sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL), "busy"),
    **dict.fromkeys((sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR), "unwritable"),
    **dict.fromkeys((sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_NOLFS), "unwritable"),
    **dict.fromkeys((sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB), "damaged"),
}


@dataclass(frozen=True, slots=True)
class Opened:
    """A usable database. Without a path it is in memory and ends with the program."""

    connection: sqlite3.Connection
    path: Path | None = None
    inode: int = 0
    notice: str = ""


def open_database(path: Path) -> Opened:
    """Open the database at the path; if that fails, one in memory with the reason."""
    try:
        private_folder(path.parent)
        _make(path)
        return connected(path)
    except NewerStore as error:
        return in_memory(f"The chats in {path} were written by a newer minichat and are not changed: {error}")
    except OSError as error:
        return in_memory(f"Cannot write {path}: {error.strerror}", copy=_read_only(path))
    except sqlite3.DatabaseError as error:
        if trouble(error) == "damaged":
            return repaired(path, path.stat().st_ino)
        where = f", on a networked file system ({on})" if (on := networked(path)) else ""
        return in_memory(f"Cannot use {path}{where}: {error}", copy=_read_only(path))


def trouble(error: sqlite3.Error) -> Trouble:
    """The kind of an SQLite error, from the low byte of its code; the other bytes hold details."""
    return _TROUBLES.get(getattr(error, "sqlite_errorcode", 0) & 0xFF, "other")


def in_memory(why: str = "", copy: sqlite3.Connection | None = None) -> Opened:
    """An in-memory database with the readable content of `copy`."""
    memory = _memory()
    if copy is not None:
        with closing(copy):
            try:
                copy.backup(memory)
            except sqlite3.DatabaseError:
                memory.close()
                memory = _memory()
                migrate(memory)
                _salvage(copy, memory)
    migrate(memory)
    advice = "new messages are lost when minichat quits (export what you need)."
    return Opened(memory, notice=f"{why}; {advice}" if why else "")


def repaired(path: Path, inode: int) -> Opened:
    """Replace a damaged database by a new one with all rows that can still be read."""
    try:
        return _replace_damaged(path, inode)
    except (OSError, sqlite3.DatabaseError) as error:
        return in_memory(f"The chats in {path} are damaged, and no new file can be created: {error}")


def _replace_damaged(path: Path, inode: int) -> Opened:
    if os.stat(path).st_ino != inode:  # another process has already replaced it
        return connected(path)
    aside = damaged_name(path)
    os.rename(path, aside)
    for suffix in ("-wal", "-journal"):  # what SQLite had not yet written to the main file
        with suppress(FileNotFoundError):
            os.rename(f"{path}{suffix}", f"{aside}{suffix}")
    with suppress(FileNotFoundError):
        os.unlink(f"{path}-shm")
    _make(path)
    fresh = connected(path)
    saved = 0
    with suppress(sqlite3.DatabaseError), closing(sqlite3.connect(aside, isolation_level=None)) as broken:
        saved = _salvage(broken, fresh.connection)
    found = f"messages saved from it: {saved}" if saved else "nothing could be read"
    notice = f"The chats in {path} were damaged: the file was renamed to {aside.name}; {found}."
    return Opened(fresh.connection, path, fresh.inode, notice)


def _make(path: Path) -> None:
    """Create an empty file for its owner only; SQLite gives its companion files the same mode."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    os.chmod(path, 0o600)


def _memory() -> sqlite3.Connection:
    return _prepared(sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False))


def connected(path: Path) -> Opened:
    connection = sqlite3.connect(path, timeout=TIMEOUT, isolation_level=None, check_same_thread=False)
    try:
        journal, synchronous = NETWORKED if networked(path) else LOCAL
        connection.execute(f"PRAGMA synchronous = {synchronous}")
        set_journal(connection, journal, TIMEOUT)
        connection.execute("PRAGMA journal_size_limit = 4000000")
        migrate(_prepared(connection))
    except BaseException:
        connection.close()
        raise
    return Opened(connection, path, os.stat(path).st_ino)


def _prepared(connection: sqlite3.Connection) -> sqlite3.Connection:
    connection.row_factory = sqlite3.Row
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA secure_delete = ON")  # overwrite deleted content
    connection.execute("PRAGMA temp_store = MEMORY")
    return connection


def _read_only(path: Path) -> sqlite3.Connection | None:
    """A read-only connection, if there is anything to read."""
    for options in ("mode=ro", "mode=ro&immutable=1"):  # the second also works where locking fails
        with suppress(sqlite3.DatabaseError, OSError):
            uri = f"{path.absolute().as_uri()}?{options}"
            connection = sqlite3.connect(uri, uri=True, isolation_level=None)
            try:
                connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            except sqlite3.DatabaseError:
                connection.close()
                raise
            return connection
    return None


def _salvage(broken: sqlite3.Connection, into: sqlite3.Connection) -> int:
    """Copy every readable row, from both ends toward the damage. Return the number of messages."""
    broken.text_factory = lambda data: data.decode(errors="replace")
    broken.row_factory = None
    with into:
        into.execute("BEGIN IMMEDIATE")
        into.execute("PRAGMA defer_foreign_keys = ON")
        for table in ("chats", "messages", "typed_systems", "edits", "versions", "earlier_versions"):
            for order in ("ASC", "DESC"):
                with suppress(sqlite3.DatabaseError):
                    columns = [row[1] for row in broken.execute(f"PRAGMA table_info({table})")]
                    names, holes = ", ".join(columns), ", ".join("?" * len(columns))
                    for row in broken.execute(f"SELECT {names} FROM {table} ORDER BY id {order}"):
                        into.execute(f"INSERT OR IGNORE INTO {table} ({names}) VALUES ({holes})", row)
        into.execute(
            "INSERT INTO chats (id, letter, title, system, params, created_at)"
            " SELECT chat_id, '?', 'recovered', '', '{}', min(at) FROM messages"
            " WHERE chat_id NOT IN (SELECT id FROM chats) GROUP BY chat_id"
        )
        into.execute("DELETE FROM typed_systems WHERE id NOT IN (SELECT id FROM chats)")
        for table in ("versions", "earlier_versions"):
            into.execute(f"DELETE FROM {table} WHERE chat_id NOT IN (SELECT id FROM chats)")
        lacking = "SELECT chat_id FROM earlier_versions EXCEPT SELECT chat_id FROM versions"
        for row in into.execute(lacking).fetchall():
            make_last(into, row["chat_id"])
        set_ids_apart(into)
        into.execute("DELETE FROM edits WHERE (id, message) NOT IN (SELECT chat_id, id FROM messages)")
        return into.execute("SELECT count(*) FROM messages").fetchone()[0]
