"""The statements that the store is made of. Each runs inside the transaction of its caller."""

import os
import socket
import sqlite3
from typing import Any

from minichat.chats.errors import ChatGone, MessageGone
from minichat.chats.letters import free_letter
from minichat.chats.model import Chat, ChatLine, Message, fork_title
from minichat.chats.rows import chat_from, message_from, packed, packed_attachments, storable
from minichat.chats.search import SearchHit, snippet

PAGE = 20  # messages of a chat that are read at first
END = 2**63 - 1  # no id is larger
INTERRUPTED = "minichat ended while this reply was streaming"

Db = sqlite3.Connection


def chat_row(db: Db, chat_id: int) -> sqlite3.Row:
    row = db.execute("SELECT * FROM chats WHERE id = ?", (chat_id,)).fetchone()
    if row is None:
        raise ChatGone(chat_id)
    return row


def chat(db: Db, chat_id: int, last: int = PAGE) -> Chat:
    row = chat_row(db, chat_id)
    messages = last_messages(db, chat_id, last)
    earlier = 0
    if messages:
        count = "SELECT count(*) FROM messages WHERE chat_id = ? AND id < ?"
        earlier = db.execute(count, (chat_id, messages[0].id)).fetchone()[0]
    return chat_from(row, messages, earlier)


def insert_chat(db: Db, title: str, system: str, params: str, at: float) -> int:
    """The new chat's id. `params` are packed already."""
    letter = free_letter(taken_letters(db))
    insert = "INSERT INTO chats (letter, title, system, params, created_at) VALUES (?, ?, ?, ?, ?)"
    return db.execute(insert, (letter, storable(title), storable(system), params, at)).lastrowid or 0


def update_chat(db: Db, chat_id: int, changes: dict[str, Any]) -> None:
    columns = ", ".join(f"{name} = ?" for name in changes)
    if not db.execute(f"UPDATE chats SET {columns} WHERE id = ?", (*changes.values(), chat_id)).rowcount:
        raise ChatGone(chat_id)


def closed_last(db: Db) -> int | None:
    """The chat that an undo opens again."""
    newest = "SELECT id FROM chats WHERE closed_at IS NOT NULL ORDER BY closed_at DESC, id DESC LIMIT 1"
    row = db.execute(newest).fetchone()
    return row["id"] if row else None


def reopen(db: Db, chat_id: int) -> Chat:
    row = chat_row(db, chat_id)
    if row["closed_at"] is not None:
        taken = taken_letters(db)
        letter = free_letter(taken) if row["letter"] in taken else row["letter"]
        update_chat(db, chat_id, {"closed_at": None, "letter": letter})
    return chat(db, chat_id)


def listing(db: Db, limit: int) -> list[ChatLine]:
    """One row a chat; its last message is found in the index."""
    rows = db.execute(
        "SELECT id, letter, title, closed_at,"
        " (SELECT count(*) FROM messages WHERE chat_id = chats.id) AS messages,"
        " coalesce((SELECT at FROM messages WHERE chat_id = chats.id ORDER BY id DESC LIMIT 1), created_at)"
        " AS spoken_at FROM chats ORDER BY spoken_at DESC, id DESC LIMIT ?",
        (limit,),
    )
    return [ChatLine(**dict(row)) for row in rows]


def copy_chat(db: Db, chat_id: int, message_id: int, at: float) -> int:
    """A new chat with the messages up to this one; returns its id."""
    row = chat_row(db, chat_id)
    exists = "SELECT 1 FROM messages WHERE chat_id = ? AND id = ?"
    if not db.execute(exists, (chat_id, message_id)).fetchone():
        raise MessageGone(message_id, chat_id)
    copy = insert_chat(db, fork_title(row["title"]), row["system"], row["params"], at)
    db.execute(
        "INSERT INTO messages (chat_id, role, at, state, error, stats, params, text, reasoning, attachments)"
        " SELECT ?, role, at, CASE state WHEN 'streaming' THEN 'stopped' ELSE state END, error, stats,"
        " params, text, reasoning, attachments FROM messages WHERE chat_id = ? AND id <= ? ORDER BY id",
        (copy, chat_id, message_id),
    )
    return copy


def taken_letters(db: Db) -> set[str]:
    return {row["letter"] for row in db.execute("SELECT letter FROM chats WHERE closed_at IS NULL")}


def last_messages(db: Db, chat_id: int, limit: int, before: int | None = None) -> list[Message]:
    """The last ones, of all or of those before an id, in the order they were said; -1 takes them all."""
    select = "SELECT * FROM messages WHERE chat_id = ? AND id < ? ORDER BY id DESC LIMIT ?"
    rows = db.execute(select, (chat_id, END if before is None else before, limit))
    return [message_from(row) for row in rows][::-1]


def insert_message(db: Db, chat_id: int, message: Message) -> int:
    """The new message's id."""
    insert = (
        "INSERT INTO messages"
        " (state, writer, error, stats, text, reasoning, chat_id, role, at, params, attachments)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
    )
    once = (message.role, message.at, packed(message.params), packed_attachments(message.attachments))
    return db.execute(insert, (*_changeable(message), chat_id, *once)).lastrowid or 0


def update_message(db: Db, message: Message) -> bool:
    columns = "state = ?, writer = ?, error = ?, stats = ?, text = ?, reasoning = ?"
    update = f"UPDATE messages SET {columns} WHERE id = ?"
    return db.execute(update, (*_changeable(message), message.id)).rowcount > 0


def settle_interrupted(db: Db) -> None:
    """Replies whose writer is no more, because it was killed, are stopped where they are."""
    for row in db.execute("SELECT id, writer FROM messages WHERE state = 'streaming'").fetchall():
        if not _alive(row["writer"]):
            settle = "UPDATE messages SET state = 'stopped', writer = '', error = ? WHERE id = ?"
            db.execute(settle, (INTERRUPTED, row["id"]))


def find(db: Db, words: tuple[str, ...], limit: int) -> list[SearchHit]:
    """Titles first, then messages, newest first."""
    sources = {
        "title": "SELECT id AS chat, title, closed_at, NULL AS message, '' AS role, created_at AS at,"
        " title AS text FROM chats",
        # CROSS keeps SQLite going down the messages, so that it ends as soon as there are enough
        "text": "SELECT chat_id AS chat, title, closed_at, messages.id AS message, role, at, text"
        " FROM messages CROSS JOIN chats ON chats.id = chat_id",
    }
    hits: list[SearchHit] = []
    for column, source in sources.items():
        holds = " AND ".join([f"holds({column}, ?)"] * len(words))
        order = "messages.id" if column == "text" else "id"
        select = f"{source} WHERE {holds} ORDER BY {order} DESC LIMIT ?"
        rows = db.execute(select, (*words, limit - len(hits)))
        hits += [_hit(row, words) for row in rows]
    return hits


def _hit(row: sqlite3.Row, words: tuple[str, ...]) -> SearchHit:
    line, marks = snippet(row["text"], words)
    closed = row["closed_at"] is not None
    return SearchHit(row["chat"], row["title"], closed, row["message"], row["role"], row["at"], line, marks)


def _changeable(message: Message) -> tuple[str | None, ...]:
    writer = f"{socket.gethostname()} {os.getpid()}" if message.state == "streaming" else ""
    texts = map(storable, (message.text, message.reasoning))
    return message.state, writer, storable(message.error), packed(message.stats), *texts


def _alive(writer: str) -> bool:
    """Whether another process still writes. None can tell for another host: it may."""
    host, _, pid = writer.rpartition(" ")
    if host != socket.gethostname():
        return bool(host)
    if not pid.isdigit() or int(pid) == os.getpid():  # in a container, the next program often has the same
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
