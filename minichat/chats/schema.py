"""The tables and their migrations."""

import sqlite3
import time
from collections.abc import Sequence

from minichat.chats.errors import NewerStore

# Each entry migrates by one version. Never edit a released one; add another.
MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE chats (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        letter TEXT NOT NULL,
        title TEXT NOT NULL,
        system TEXT NOT NULL,
        params TEXT NOT NULL,
        draft TEXT NOT NULL DEFAULT '',
        created_at REAL NOT NULL,
        closed_at REAL
    );
    CREATE TABLE messages (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        chat_id INTEGER NOT NULL REFERENCES chats (id) ON DELETE CASCADE,
        role TEXT NOT NULL CHECK (role IN ('system', 'user', 'assistant')),
        at REAL NOT NULL,
        state TEXT NOT NULL CHECK (state IN ('done', 'streaming', 'stopped', 'failed')),
        writer TEXT NOT NULL DEFAULT '',
        error TEXT NOT NULL DEFAULT '',
        stats TEXT,
        params TEXT,
        text TEXT NOT NULL,
        reasoning TEXT NOT NULL DEFAULT ''
    );
    CREATE INDEX messages_of_chat ON messages (chat_id, id);
    CREATE INDEX messages_streaming ON messages (id) WHERE state = 'streaming';
    """,
    "ALTER TABLE messages ADD COLUMN attachments TEXT",
    "ALTER TABLE chats ADD COLUMN adapter TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE chats ADD COLUMN own_params TEXT",
    "CREATE TABLE deleted_chats (key TEXT PRIMARY KEY) WITHOUT ROWID",
)
_KEPT = """
        id INTEGER PRIMARY KEY,
        chat_id INTEGER NOT NULL REFERENCES chats (id) ON DELETE CASCADE,
        after INTEGER NOT NULL,
        role TEXT NOT NULL,
        at REAL NOT NULL,
        state TEXT NOT NULL,
        writer TEXT NOT NULL,
        error TEXT NOT NULL,
        stats TEXT,
        params TEXT,
        text TEXT NOT NULL,
        reasoning TEXT NOT NULL,
        attachments TEXT
"""
# No migrations, since an older minichat would refuse the file. It ignores these tables, except `versions`: it
# takes all rows of a chat there for one version. So that holds the one that was shown last, and another table
# those that were shown before, in the order of their places.
_ADDED = (
    """
    CREATE TABLE IF NOT EXISTS typed_systems (
        id INTEGER PRIMARY KEY REFERENCES chats (id) ON DELETE CASCADE,
        text TEXT NOT NULL
    )
    """,
    """
    CREATE TABLE IF NOT EXISTS edits (
        id INTEGER PRIMARY KEY REFERENCES chats (id) ON DELETE CASCADE,
        message INTEGER NOT NULL REFERENCES messages (id) ON DELETE CASCADE,
        text TEXT NOT NULL
    )
    """,
    f"CREATE TABLE IF NOT EXISTS versions ({_KEPT})",
    f"CREATE TABLE IF NOT EXISTS earlier_versions ({_KEPT}, place INTEGER NOT NULL)",
    "CREATE INDEX IF NOT EXISTS earlier_versions_of_chat ON earlier_versions (chat_id, place)",
)


def migrate(connection: sqlite3.Connection, migrations: Sequence[str] = MIGRATIONS) -> None:
    """Migrate the database to the newest version in one transaction."""
    if _version(connection) != len(migrations):
        _advance(connection, migrations)
    for statement in _ADDED:
        connection.execute(statement)


def set_ids_apart(connection: sqlite3.Connection) -> None:
    """After rows were copied: new messages get larger ids than the versions, which may be put back."""
    tables = ("messages", "versions", "earlier_versions")
    found = [
        connection.execute(f"SELECT coalesce(max(id), 0) FROM {table}").fetchone()[0] for table in tables
    ]
    used = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'messages'").fetchone()
    connection.execute("DELETE FROM sqlite_sequence WHERE name = 'messages'")
    newest = max(*found, used[0] if used else 0)
    connection.execute("INSERT INTO sqlite_sequence (name, seq) VALUES ('messages', ?)", (newest,))


def _advance(connection: sqlite3.Connection, migrations: Sequence[str]) -> None:
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        version = _version(connection)  # another process may have migrated it
        if version > len(migrations):
            raise NewerStore(f"it has schema {version}, this minichat supports {len(migrations)}")
        connection.execute(
            "CREATE TABLE IF NOT EXISTS migrations (version INTEGER PRIMARY KEY, at REAL NOT NULL)"
        )
        for number, script in enumerate(migrations[version:], start=version + 1):
            for statement in script.split(";"):  # executescript() would commit first
                connection.execute(statement)
            connection.execute("INSERT INTO migrations VALUES (?, ?)", (number, time.time()))


def _version(connection: sqlite3.Connection) -> int:
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'migrations'").fetchone():
        return 0
    return connection.execute("SELECT coalesce(max(version), 0) FROM migrations").fetchone()[0]
