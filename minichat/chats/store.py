"""Every chat and every message, in one SQLite file that several screens may share.

The store has no threads of its own. Any thread may call it: calls are taken one at a time, and all but a
search and an export take a few milliseconds at most, so that a screen calls it where it stands. A write waits
at most two seconds for another process. Messages are written by id, and a chat column by column: two screens
never undo each other's work. What goes wrong with the disk is told in `notices`, and the store goes on.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.api.params import SamplingParams
from minichat.chats import queries
from minichat.chats.database import Database
from minichat.chats.export import from_json, to_json, to_markdown
from minichat.chats.model import Attachment, Chat, ChatLine, Message, ReplyStats, Role, State
from minichat.chats.queries import PAGE, Db
from minichat.chats.rows import packed_params, storable
from minichat.chats.search import SearchHit, words_of


class Store:
    """The chats at a path; without one, in memory."""

    def __init__(self, path: Path | None, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._database = Database(path)
        self._database.write(queries.settle_interrupted)

    @property
    def path(self) -> Path | None:
        """Where the chats are kept; None while they are in memory only."""
        return self._database.path

    @property
    def notices(self) -> list[str]:
        """Sentences for the person; the screen shows them and empties the list."""
        return self._database.notices

    def changed(self) -> bool:
        """Whether another screen has written since the last time this was asked. Costs microseconds."""
        return self._database.changed()

    def close(self) -> None:
        self._database.close()

    # Chats

    def open_chats(self, last: int = PAGE) -> list[Chat]:
        """The chats that are not closed, oldest first, each with its last messages."""

        def work(db: Db) -> list[Chat]:
            ids = db.execute("SELECT id FROM chats WHERE closed_at IS NULL ORDER BY id").fetchall()
            return [queries.chat(db, row["id"], last) for row in ids]

        return self._database.read(work)

    def chat(self, chat_id: int, last: int = PAGE) -> Chat:
        """One chat, closed or not, with its last messages; a negative number means all of them."""
        return self._database.read(lambda db: queries.chat(db, chat_id, last))

    def listing(self, limit: int = 200) -> list[ChatLine]:
        """All chats, closed ones too, the one last spoken in first."""
        return self._database.read(lambda db: queries.listing(db, limit))

    def create_chat(self, title: str = "", system: str = "", params: SamplingParams | None = None) -> Chat:
        packed = packed_params(params or SamplingParams())

        def work(db: Db) -> Chat:
            return queries.chat(db, queries.insert_chat(db, title, system, packed, self._clock()))

        return self._database.write(work)

    def change_chat(
        self,
        chat_id: int,
        *,
        title: str | None = None,
        system: str | None = None,
        params: SamplingParams | None = None,
        draft: str | None = None,
    ) -> None:
        """Writes what is given, and leaves the rest as another screen may have set it."""
        texts = {"title": title, "system": system, "draft": draft}
        changes = {name: storable(text) for name, text in texts.items() if text is not None}
        if params is not None:
            changes["params"] = packed_params(params)
        if changes:
            self._database.write(lambda db: queries.update_chat(db, chat_id, changes))

    def rename(self, chat_id: int, title: str) -> None:
        self.change_chat(chat_id, title=title)

    def close_chat(self, chat_id: int) -> None:
        """Takes the chat off the screen; `reopen_chat` undoes it."""
        self._database.write(lambda db: queries.update_chat(db, chat_id, {"closed_at": self._clock()}))

    def reopen_chat(self, chat_id: int | None = None) -> Chat | None:
        """Opens a closed chat again, without an id the one closed last; None where none is closed.

        The chat gets another letter if its own is taken meanwhile.
        """

        def work(db: Db) -> Chat | None:
            found = queries.closed_last(db) if chat_id is None else chat_id
            return None if found is None else queries.reopen(db, found)

        return self._database.write(work)

    def delete_chat(self, chat_id: int) -> None:
        """For good, with its messages. One that is gone already is no error."""
        self._database.write(lambda db: db.execute("DELETE FROM chats WHERE id = ?", (chat_id,)))

    def fork(self, chat_id: int, message_id: int) -> Chat:
        """A new chat with all messages up to this one, and the message itself."""

        def work(db: Db) -> Chat:
            return queries.chat(db, queries.copy_chat(db, chat_id, message_id, self._clock()))

        return self._database.write(work)

    # Messages

    def append(
        self,
        chat_id: int,
        role: Role,
        text: str,
        *,
        reasoning: str = "",
        state: State = "done",
        error: str = "",
        stats: ReplyStats | None = None,
        params: dict[str, Any] | None = None,
        attachments: tuple[Attachment, ...] = (),
    ) -> Message:
        """A new message at the end of the chat."""
        message = Message(0, role, text, reasoning, self._clock(), state, error, stats, params, attachments)

        def work(db: Db) -> Message:
            queries.chat_row(db, chat_id)
            return replace(message, id=queries.insert_message(db, chat_id, message))

        return self._database.write(work)

    def update(self, message: Message) -> bool:
        """Writes what may change in a message: each second while it streams, and when it is settled.

        False if the message was deleted meanwhile.
        """
        return self._database.write(lambda db: queries.update_message(db, message))

    def cut(self, chat_id: int, message_id: int) -> None:
        """Deletes the message and all after it: what an edited or retried one replaces."""
        delete = "DELETE FROM messages WHERE chat_id = ? AND id >= ?"
        self._database.write(lambda db: db.execute(delete, (chat_id, message_id)))

    def older(self, chat_id: int, before: int, limit: int = 50) -> list[Message]:
        """A page of the messages before the one of that id, in the order they were said."""
        return self._database.read(lambda db: queries.last_messages(db, chat_id, limit, before))

    def history(self, chat_id: int) -> list[Message]:
        """All messages of the chat: what a prompt is made of."""
        return self._database.read(lambda db: queries.last_messages(db, chat_id, -1))

    # Finding and carrying away

    def search(self, query: str, limit: int = 50) -> list[SearchHit]:
        """Titles, then messages, newest first, that hold every word of the query."""
        words = words_of(query)
        return self._database.read(lambda db: queries.find(db, words, limit)) if words else []

    def export_markdown(self, chat_id: int) -> str:
        return to_markdown(self.chat(chat_id, last=-1))

    def export_json(self, chat_id: int) -> str:
        return to_json(self.chat(chat_id, last=-1))

    def import_json(self, text: str) -> Chat:
        """A new chat from what `export_json` gave; any other text is refused with the place of the fault."""
        given = from_json(text)
        packed = packed_params(given.params)

        def work(db: Db) -> Chat:
            chat_id = queries.insert_chat(db, given.title, given.system, packed, given.created_at)
            for message in given.messages:
                queries.insert_message(db, chat_id, message)
            return queries.chat(db, chat_id)

        return self._database.write(work)
