"""The SQL statements of the store. Each runs inside its caller's transaction."""

import os
import socket
import sqlite3
from collections.abc import Collection
from itertools import groupby
from typing import Any

from minichat.chats.errors import ChatChanged, ChatGone, MessageGone
from minichat.chats.letters import free_letter
from minichat.chats.model import UNTITLED, Chat, ChatLine, Edit, Message, fork_title
from minichat.chats.rows import GONE, chat_from, message_from, packed, packed_attachments, storable
from minichat.chats.search import SearchHit, found_in, holds, snippet

PAGE = 20  # messages of a chat to load at first
MOST_VERSIONS = 20  # of a reply, with the one that is shown
END = 2**63 - 1  # larger than any id
_COLUMNS = "id, chat_id, role, at, state, writer, error, stats, params, text, reasoning, attachments"
INTERRUPTED = "minichat quit while this reply was streaming"

Db = sqlite3.Connection


def chat_row(db: Db, chat_id: int) -> sqlite3.Row:
    typed = "SELECT text FROM typed_systems WHERE typed_systems.id = chats.id"
    select = f"SELECT *, ({typed}) AS typed_system FROM chats WHERE id = ?"
    row = db.execute(select, (chat_id,)).fetchone()
    if row is None:
        raise ChatGone
    return row


def chat(db: Db, chat_id: int, last: int = PAGE) -> Chat:
    """The chat with its last messages, at least from the one that is edited, or before what was replaced."""
    row = chat_row(db, chat_id)
    edit = db.execute("SELECT message, text FROM edits WHERE id = ?", (chat_id,)).fetchone()
    after = replaced_after(db, chat_id)
    needed = [*([edit["message"]] if edit else ()), *(() if after is None else (after,))]
    if needed and last > 0:
        count = "SELECT count(*) FROM messages WHERE chat_id = ? AND id >= ?"
        last = max(last, db.execute(count, (chat_id, min(needed))).fetchone()[0])
    messages = last_messages(db, chat_id, last)
    earlier = 0
    if messages:
        count = "SELECT count(*) FROM messages WHERE chat_id = ? AND id < ?"
        earlier = db.execute(count, (chat_id, messages[0].id)).fetchone()[0]
    return chat_from(row, messages, earlier, Edit(**dict(edit)) if edit is not None else None)


def insert_chat(db: Db, title: str, system: str, params: str, at: float, shown: Collection[str] = ()) -> int:
    """Insert a chat and return its id. `params` is packed JSON. `shown`: letters that it must not get."""
    letter = free_letter(taken_letters(db).union(shown))
    insert = "INSERT INTO chats (letter, title, system, params, created_at) VALUES (?, ?, ?, ?, ?)"
    return db.execute(insert, (letter, storable(title), storable(system), params, at)).lastrowid or 0


def update_chat(db: Db, chat_id: int, changes: dict[str, Any]) -> None:
    columns = ", ".join(f"{name} = ?" for name in changes)
    if not db.execute(f"UPDATE chats SET {columns} WHERE id = ?", (*changes.values(), chat_id)).rowcount:
        raise ChatGone


def keep_typed_system(db: Db, chat_id: int, text: str | None, before: str | None) -> None:
    chat_row(db, chat_id)
    if text is None:
        own = None if before is None else storable(before)
        db.execute("DELETE FROM typed_systems WHERE id = ? AND text = coalesce(?, text)", (chat_id, own))
    else:
        db.execute("INSERT OR REPLACE INTO typed_systems (id, text) VALUES (?, ?)", (chat_id, storable(text)))


def keep_edit(db: Db, chat_id: int, edit: Edit | None) -> None:
    """Keep the edit instead of another one, unless its message is gone."""
    chat_row(db, chat_id)
    db.execute("DELETE FROM edits WHERE id = ?", (chat_id,))
    if edit is not None:
        insert = "INSERT INTO edits SELECT chat_id, id, ? FROM messages WHERE chat_id = ? AND id = ?"
        db.execute(insert, (storable(edit.text), chat_id, edit.message))


def closed_last(db: Db) -> int | None:
    """The most recently closed chat."""
    newest = "SELECT id FROM chats WHERE closed_at IS NOT NULL ORDER BY closed_at DESC, id DESC LIMIT 1"
    row = db.execute(newest).fetchone()
    return row["id"] if row else None


def reopen(db: Db, chat_id: int, shown: Collection[str] = ()) -> None:
    """Mark the chat as open, with another letter if its own is in use, or one of `shown`."""
    row = chat_row(db, chat_id)
    if row["closed_at"] is not None:
        taken = taken_letters(db).union(shown)
        letter = free_letter(taken) if row["letter"] in taken else row["letter"]
        update_chat(db, chat_id, {"closed_at": None, "letter": letter})


def listing(db: Db, limit: int) -> list[ChatLine]:
    """One row per chat; the index finds its last message."""
    rows = db.execute(
        "SELECT id, letter, title, closed_at,"
        " (SELECT count(*) FROM messages WHERE chat_id = chats.id) AS messages,"
        " coalesce((SELECT at FROM messages WHERE chat_id = chats.id ORDER BY id DESC LIMIT 1), created_at)"
        " AS spoken_at FROM chats ORDER BY spoken_at DESC, id DESC LIMIT ?",
        (limit,),
    )
    return [ChatLine(**dict(row)) for row in rows]


def copy_chat(db: Db, chat_id: int, message_id: int, at: float, shown: Collection[str] = ()) -> int:
    """Copy a chat up to and including this message; return the new id. `shown`: as of `insert_chat`."""
    row = chat_row(db, chat_id)
    exists = "SELECT 1 FROM messages WHERE chat_id = ? AND id = ?"
    if not db.execute(exists, (chat_id, message_id)).fetchone():
        raise MessageGone
    taken = {each["title"] for each in db.execute("SELECT title FROM chats WHERE closed_at IS NULL")}
    copy = insert_chat(db, fork_title(row["title"], taken), row["system"], row["params"], at, shown)
    update_chat(db, copy, {name: row[name] for name in ("adapter", "own_params")})
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
    """The last messages, optionally before an id, in chronological order; a limit of -1 returns all."""
    select = "SELECT * FROM messages WHERE chat_id = ? AND id < ? ORDER BY id DESC LIMIT ?"
    rows = db.execute(select, (chat_id, END if before is None else before, limit))
    return [message_from(row) for row in rows][::-1]


def check_newest(db: Db, chat_id: int, newest: int) -> None:
    """Raise ChatChanged unless `newest` is the chat's last message (0: it has none)."""
    chat_row(db, chat_id)
    if [each.id for each in last_messages(db, chat_id, 1)] != ([newest] if newest else []):
        raise ChatChanged


def insert_message(db: Db, chat_id: int, message: Message) -> int:
    """Insert a message and return its id: its own, or a new one if it has none."""
    insert = (
        "INSERT INTO messages"
        " (state, writer, error, stats, params, text, reasoning, chat_id, role, at, attachments, id)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
    )
    once = (message.role, message.at, packed_attachments(message.attachments), message.id or None)
    return db.execute(insert, (*_changeable(message), chat_id, *once)).lastrowid or 0


def update_message(db: Db, message: Message) -> bool:
    columns = "state = ?, writer = ?, error = ?, stats = ?, params = ?, text = ?, reasoning = ?"
    update = f"UPDATE messages SET {columns} WHERE id = ?"
    return db.execute(update, (*_changeable(message), message.id)).rowcount > 0


def replaced_after(db: Db, chat_id: int) -> int | None:
    """The message before what was replaced: 0 if that begins the chat; None if nothing is kept."""
    row = db.execute("SELECT after FROM versions WHERE chat_id = ?", (chat_id,)).fetchone()
    return row["after"] if row else None


def replaced(db: Db, chat_id: int) -> tuple[int, list[list[Message]]]:
    """What regenerations or edits have replaced, the last one last, and the message before that."""
    if (after := replaced_after(db, chat_id)) is None:
        return 0, []
    select = "SELECT * FROM earlier_versions WHERE chat_id = ? AND after = ? ORDER BY place, id"
    earlier = groupby(db.execute(select, (chat_id, after)), key=lambda row: row["place"])
    last = db.execute("SELECT * FROM versions WHERE chat_id = ? ORDER BY id", (chat_id,))
    return after, [
        [message_from(row) for row in rows] for rows in (*(list(each) for _, each in earlier), last)
    ]


def keep_replaced(db: Db, chat_id: int, first: int) -> None:
    """Keep the messages from this id on, as the last version; others only if they are of the same place."""
    before = "SELECT coalesce(max(id), 0) FROM messages WHERE chat_id = ? AND id < ?"
    after = db.execute(before, (chat_id, first)).fetchone()[0]
    db.execute("DELETE FROM versions WHERE chat_id = ? AND after != ?", (chat_id, after))
    _forget_strays(db, chat_id)
    columns = f"{_COLUMNS}, after"
    move = (
        f"INSERT INTO earlier_versions ({columns}, place) SELECT {columns}, ? FROM versions WHERE chat_id = ?"
    )
    db.execute(move, (_places(db, chat_id)[1] + 1, chat_id))
    db.execute("DELETE FROM versions WHERE chat_id = ?", (chat_id,))
    _set_aside(db, chat_id, after, _places(db, chat_id)[1] + 1)
    _forget_oldest(db, chat_id)
    make_last(db, chat_id)


def put_back(db: Db, chat_id: int, after: int, *, back: bool) -> list[Message]:
    """Put the last version in place of what is after that message. Keep that one as the first if the user
    goes `back`, else as the last. Return the messages of the version.
    """
    if replaced_after(db, chat_id) != after:
        raise ChatChanged
    _forget_strays(db, chat_id)
    first, last = _places(db, chat_id)
    _set_aside(db, chat_id, after, first - 1 if back else last + 1)
    db.execute("DELETE FROM messages WHERE chat_id = ? AND id > ?", (chat_id, after))
    put = f"INSERT INTO messages ({_COLUMNS}) SELECT {_COLUMNS} FROM versions WHERE chat_id = ?"
    db.execute(put, (chat_id,))
    db.execute("DELETE FROM versions WHERE chat_id = ?", (chat_id,))
    make_last(db, chat_id)
    select = "SELECT * FROM messages WHERE chat_id = ? AND id > ? ORDER BY id"
    return [message_from(row) for row in db.execute(select, (chat_id, after))]


def make_last(db: Db, chat_id: int) -> None:
    """The last of the earlier versions becomes the last version, which there is none of now."""
    of_chat, columns = (chat_id, _places(db, chat_id)[1]), f"{_COLUMNS}, after"
    rows = "FROM earlier_versions WHERE chat_id = ? AND place = ?"
    db.execute(f"INSERT INTO versions ({columns}) SELECT {columns} {rows}", of_chat)
    db.execute(f"DELETE {rows}", of_chat)


def forget_replaced(db: Db, chat_id: int) -> None:
    for table in ("versions", "earlier_versions"):
        db.execute(f"DELETE FROM {table} WHERE chat_id = ?", (chat_id,))


def _forget_strays(db: Db, chat_id: int) -> None:
    """Forget what an older minichat, which does not know earlier versions, has left there: those of another
    place, and those that it has shown or kept otherwise since.
    """
    last = "SELECT after FROM versions WHERE chat_id = ?1 LIMIT 1"
    elsewhere = "id IN (SELECT id FROM messages) OR id IN (SELECT id FROM versions)"
    strays = f"chat_id = ?1 AND (after IS NOT ({last}) OR {elsewhere})"
    db.execute(f"DELETE FROM earlier_versions WHERE {strays}", (chat_id,))


def _places(db: Db, chat_id: int) -> tuple[int, int]:
    """The first and the last place of the earlier versions."""
    ends = "SELECT coalesce(min(place), 0), coalesce(max(place), 0) FROM earlier_versions WHERE chat_id = ?"
    first, last = db.execute(ends, (chat_id,)).fetchone()
    return first, last


def _set_aside(db: Db, chat_id: int, after: int, place: int) -> None:
    """Copy what is shown after that message to the earlier versions, unless it begins with an empty one."""
    shown = "FROM messages WHERE chat_id = ? AND id > ?"
    begin = f"SELECT text || reasoning AS text {shown} ORDER BY id LIMIT 1"
    begins = db.execute(begin, (chat_id, after)).fetchone()
    if begins is not None and begins["text"]:
        copy = f"INSERT INTO earlier_versions ({_COLUMNS}, after, place) SELECT {_COLUMNS}, ?, ? {shown}"
        db.execute(copy, (after, place, chat_id, after))


def _forget_oldest(db: Db, chat_id: int) -> None:
    """Leave room for the version that is shown; those that were stopped go first."""
    # With min(), SQLite takes the state from the same row: the first one of the version
    written = "SELECT place, state, min(id) AS first FROM earlier_versions WHERE chat_id = ? GROUP BY place"
    found = db.execute(f"{written} ORDER BY state = 'done', first", (chat_id,)).fetchall()
    for row in found[: max(len(found) - (MOST_VERSIONS - 1), 0)]:
        db.execute("DELETE FROM earlier_versions WHERE chat_id = ? AND place = ?", (chat_id, row["place"]))


def settle_interrupted(db: Db) -> None:
    """Mark replies as stopped if the process that was writing them was killed."""
    for row in db.execute("SELECT id, writer FROM messages WHERE state = 'streaming'").fetchall():
        if not _alive(row["writer"]):
            settle = "UPDATE messages SET state = 'stopped', writer = ?, error = ? WHERE id = ?"
            db.execute(settle, (GONE, INTERRUPTED, row["id"]))


def piece_before(db: Db, before: int, most: int) -> int:
    """The first id of the newest messages before an id; 0 if that is all of them."""
    older = "SELECT id FROM messages WHERE id < ? ORDER BY id DESC LIMIT 1 OFFSET ?"
    row = db.execute(older, (before, most - 1)).fetchone()
    return row["id"] if row else 0


def find(
    db: Db, words: tuple[str, ...], limit: int, messages: tuple[int, int] | None = None
) -> list[SearchHit]:
    """Find titles; or in the messages from one id to before another, reasoning too. The newest come first."""
    if messages is None:
        shown = f"CASE trim(title) WHEN '' THEN '{UNTITLED}' ELSE title END"
        held, source = (
            f"holds({shown}, ?1)",
            "SELECT id, id AS chat, title, closed_at, NULL AS message, '' AS role,"
            f" created_at AS at, {shown} AS text, '' AS reasoning FROM chats",
        )
    else:
        # CROSS makes SQLite scan the messages in order, so that it can stop at the limit
        held, source = (
            "(holds(text, ?1) OR holds(reasoning, ?1))",
            "SELECT messages.id, chat_id AS chat, title, closed_at, messages.id AS message, role, at, text,"
            " reasoning FROM messages CROSS JOIN chats ON chats.id = chat_id"
            f" AND messages.id >= {messages[0]:d} AND messages.id < {messages[1]:d}",
        )
    all_held = " AND ".join(held.replace("?1", f"?{place}") for place in range(1, len(words) + 1))
    rows = db.execute(f"{source} WHERE {all_held} ORDER BY 1 DESC LIMIT ?", (*words, limit))
    return [_hit(row, words) for row in rows]


def _hit(row: sqlite3.Row, words: tuple[str, ...]) -> SearchHit:
    text, reasoning = row["text"], row["reasoning"]
    if reasoning and not all(holds(text, word) for word in words):
        text = reasoning if all(holds(reasoning, word) for word in words) else f"{text}\n\n{reasoning}"
    line, marks = snippet(text, words)
    closed = row["closed_at"] is not None
    found = found_in(text, words)
    return SearchHit(
        row["chat"], row["title"], closed, row["message"], row["role"], row["at"], line, marks, found
    )


def _changeable(message: Message) -> tuple[str | None, ...]:
    writer = GONE if message.interrupted else ""
    if message.state == "streaming":
        writer = f"{socket.gethostname()} {os.getpid()}"
    texts = map(storable, (message.text, message.reasoning))
    figures = packed(message.stats), packed(message.params)
    return message.state, writer, storable(message.error), *figures, *texts


def _alive(writer: str) -> bool:
    """Whether another process is still writing. On another host this is unknown, so assume yes."""
    host, _, pid = writer.rpartition(" ")
    if host != socket.gethostname():
        return bool(host)
    if not pid.isdigit() or int(pid) == os.getpid():  # in a container, the next process often has the same id
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
