"""Every chat and message in one SQLite file, which several screens may share.

The store has no threads. Any thread may call it; calls are serialized. All but `search`, export and import
take a few milliseconds at most, so the screen calls them directly. A write waits at most two seconds for
another process. Messages are written by id, and chats column by column, so that two screens never overwrite
each other's work. Disk problems are reported in `notices`, and the store keeps working.
"""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from engine.api.errors import BadParams
from engine.api.params import SamplingParams
from minichat.chats import queries
from minichat.chats.database import Database
from minichat.chats.export import from_json, to_json, to_markdown
from minichat.chats.model import Attachment, Chat, ChatLine, Edit, Message, ReplyStats, Role, State, chat_key
from minichat.chats.queries import PAGE, Db
from minichat.chats.rows import changes_between, packed_params, storable
from minichat.chats.search import SearchHit, words_of

_AT_ONCE = 300_000  # characters of an import that are written at once
_ROW = 300  # characters that are written in the same time as the rest of a row
_GIVE_WAY = 0.001  # seconds; a lock alone would rarely reach another thread
_PIECE = 200  # messages that are searched at a time


class Store:
    """The chats at a path, or in memory."""

    def __init__(self, path: Path | None, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        # Letters on the screen, where a chat that another screen has deleted keeps its own.
        self.shown: Callable[[], Collection[str]] = tuple
        self._database = Database(path, queries.settle_interrupted)

    @property
    def path(self) -> Path | None:
        """Where the chats are stored; None if they are in memory only."""
        return self._database.path

    @property
    def unsaved(self) -> bool:
        """Whether new messages are lost at the end, because the file cannot be written."""
        return self._database.unsaved

    @property
    def notices(self) -> list[str]:
        """Messages for the user; the screen shows them and clears the list."""
        return self._database.notices

    def changed(self) -> bool:
        """Whether another screen has written since the last call. Costs microseconds."""
        return self._database.changed()

    def save_again(self) -> None:
        """If chats are in memory because their file could not be written, and now it can, save them."""
        self._database.return_now()

    def loses(self) -> bool:
        """Whether messages would be lost if the program ended now. If there is room again, they are saved."""
        self.save_again()
        return self.unsaved and any(each.messages for each in self.listing())

    def lost(self) -> dict[str, int]:
        """How many messages of which chats, by title, are lost if the program ends now."""
        return self._database.lost() if self.loses() else {}

    def close(self) -> None:
        self._database.close()

    def settle_interrupted(self) -> None:
        """Mark replies as stopped if the process that was writing them was killed."""
        self._database.write(queries.settle_interrupted)

    # Chats

    def open_chats(self, last: int = PAGE, known: Collection[int] = ()) -> list[Chat]:
        """The open chats, oldest first, each with its last messages; none of those in `known`."""

        def work(db: Db) -> list[Chat]:
            ids = db.execute("SELECT id FROM chats WHERE closed_at IS NULL ORDER BY id").fetchall()
            return [queries.chat(db, row["id"], last) for row in ids if row["id"] not in known]

        return self._database.read(work)

    def chat(self, chat_id: int, last: int = PAGE) -> Chat:
        """A chat, open or closed, with its last messages; a negative number loads all."""
        return self._database.read(lambda db: queries.chat(db, chat_id, last))

    def listing(self, limit: int = 200) -> list[ChatLine]:
        """All chats, including closed ones, most recently used first."""
        return self._database.read(lambda db: queries.listing(db, limit))

    def create_chat(self, title: str = "", system: str = "", params: SamplingParams | None = None) -> Chat:
        packed = packed_params(params or SamplingParams())

        def work(db: Db) -> Chat:
            return queries.chat(
                db, queries.insert_chat(db, title, system, packed, self._clock(), self.shown())
            )

        return self._database.write(work)

    def change_chat(
        self,
        chat_id: int,
        *,
        title: str | None = None,
        system: str | None = None,
        adapter: str | None = None,
    ) -> None:
        """Write the given columns, and keep others as another screen may have set them."""
        texts = {"title": title, "system": system, "adapter": adapter}
        changes = {name: storable(text) for name, text in texts.items() if text is not None}
        if changes:
            self._database.write(lambda db: queries.update_chat(db, chat_id, changes))

    def keep_draft(self, chat_id: int, text: str, before: str | None = None) -> None:
        """Keep what was typed and not sent. If there is nothing now, another draft than `before` stays: of
        another screen.
        """

        def work(db: Db) -> None:
            if text or before is None or queries.chat_row(db, chat_id)["draft"] == storable(before):
                queries.update_chat(db, chat_id, {"draft": storable(text)})

        self._database.write(work)

    def keep_typed_system(self, chat_id: int, text: str | None, before: str | None = None) -> None:
        """Keep a system prompt that was typed and not accepted; None: there is none.

        `before`: the one that was kept. If there is none now, another one stays: of another screen.
        """
        self._database.write(lambda db: queries.keep_typed_system(db, chat_id, text, before))

    def keep_edit(self, chat_id: int, edit: Edit | None) -> None:
        """Keep an edit that was typed and not sent; None: there is none."""
        self._database.write(lambda db: queries.keep_edit(db, chat_id, edit))

    def tune(
        self, chat_id: int, before: SamplingParams, after: SamplingParams, own: SamplingParams | None = None
    ) -> SamplingParams:
        """Write the parameters that have changed, and keep others as another screen may have set them.

        Return all that are stored: those of `after` if the two cannot be combined. `own` are the newest ones
        that no preset has.
        """

        def work(db: Db) -> SamplingParams:
            stored = queries.chat(db, chat_id, 0).params
            try:
                tuned = stored.changed(**changes_between(before, after))
            except BadParams:
                tuned = after
            columns = {"params": packed_params(tuned)}
            if own is not None:
                columns["own_params"] = packed_params(own)
            queries.update_chat(db, chat_id, columns)
            return tuned

        return self._database.write(work)

    def rename(self, chat_id: int, title: str) -> None:
        self.change_chat(chat_id, title=title)

    def close_chat(self, chat_id: int) -> None:
        """Close the chat; `reopen_chat` undoes it."""
        self._database.write(lambda db: queries.update_chat(db, chat_id, {"closed_at": self._clock()}))

    def reopen_chat(self, chat_id: int | None = None) -> Chat | None:
        """Reopen a chat, by default the last closed one; None if none is closed.

        It gets another letter if its own is in use.
        """

        def work(db: Db) -> Chat | None:
            found = queries.closed_last(db) if chat_id is None else chat_id
            if found is None:
                return None
            queries.reopen(db, found, self.shown())
            return queries.chat(db, found)

        return self._database.write(work)

    def delete_chat(self, chat_id: int) -> None:
        """Delete the chat and its messages permanently. Its key is kept for `deleted`."""

        def work(db: Db) -> None:
            query = "DELETE FROM chats WHERE id = ? RETURNING created_at"
            if row := db.execute(query, (chat_id,)).fetchone():
                db.execute("INSERT OR IGNORE INTO deleted_chats VALUES (?)", (chat_key(chat_id, row[0]),))

        self._database.write(work)
        self._database.empty_journal()

    def deleted(self) -> list[str]:
        """The keys of deleted chats whose cache blocks may still be on the engine's disk."""
        query = "SELECT key FROM deleted_chats"
        return self._database.read(lambda db: [row[0] for row in db.execute(query)])

    def forgotten(self, key: str) -> None:
        """The blocks of this deleted chat are gone."""
        self._database.write(lambda db: db.execute("DELETE FROM deleted_chats WHERE key = ?", (key,)))

    def fork(self, chat_id: int, message_id: int) -> Chat:
        """Copy the chat up to and including this message."""

        def work(db: Db) -> Chat:
            return queries.chat(db, queries.copy_chat(db, chat_id, message_id, self._clock(), self.shown()))

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
        """Add a message to the chat."""
        message = Message(0, role, text, reasoning, self._clock(), state, error, stats, params, attachments)

        def work(db: Db) -> Message:
            queries.chat_row(db, chat_id)
            return replace(message, id=queries.insert_message(db, chat_id, message))

        return self._database.write(work)

    def update(self, message: Message) -> bool:
        """Save the changeable fields of a message: every second while it streams, and at its end.

        Return False if the message was deleted.
        """
        return self._database.write(lambda db: queries.update_message(db, message))

    def add_turn(
        self,
        chat_id: int,
        newest: int,
        messages: Sequence[Message],
        *,
        instead_of: int | None = None,
        title: str | None = None,
    ) -> list[Message]:
        """Add messages, maybe in place of one and all after it, and maybe a title. Return them as stored.

        Raise ChatChanged unless `newest` is the chat's last message (0: it has none). So of two screens that
        answer the same message, the second changes nothing.
        """

        def work(db: Db) -> list[Message]:
            queries.reopen(db, chat_id)  # another screen may have closed it
            queries.check_newest(db, chat_id, newest)
            if instead_of is None:
                queries.forget_replaced(db, chat_id)
            else:
                queries.keep_replaced(db, chat_id, instead_of)
                db.execute("DELETE FROM messages WHERE chat_id = ? AND id >= ?", (chat_id, instead_of))
            if title is not None:
                queries.update_chat(db, chat_id, {"title": storable(title)})
            added = [replace(message, at=self._clock()) for message in messages]
            return [replace(each, id=queries.insert_message(db, chat_id, each)) for each in added]

        return self._database.write(work)

    def replace_end(self, chat_id: int, newest: int, after: int, *, back: bool = True) -> list[Message]:
        """Put the last version that `add_turn` has replaced in place of all after that message; return it.

        What it replaces is kept as the first version, or as the last if not `back`. Raise ChatChanged unless
        `newest` is the chat's last message, and the versions are of that place.
        """

        def work(db: Db) -> list[Message]:
            queries.check_newest(db, chat_id, newest)
            return queries.put_back(db, chat_id, after, back=back)

        return self._database.write(work)

    def replaced(self, chat_id: int) -> tuple[int, list[list[Message]]]:
        """What regenerations or edits have replaced until the chat goes on, and the message before that."""
        return self._database.read(lambda db: queries.replaced(db, chat_id))

    def check_newest(self, chat_id: int, newest: int) -> None:
        """Raise ChatGone or ChatChanged if `add_turn` would."""
        self._database.read(lambda db: queries.check_newest(db, chat_id, newest))

    def older(self, chat_id: int, before: int, limit: int = 50) -> list[Message]:
        """A page of messages before that id, in chronological order."""
        return self._database.read(lambda db: queries.last_messages(db, chat_id, limit, before))

    def history(self, chat_id: int) -> list[Message]:
        """All messages of the chat, for building a prompt."""
        return self._database.read(lambda db: queries.last_messages(db, chat_id, -1))

    # Search and export

    def search(self, query: str, limit: int = 50) -> list[SearchHit]:
        """Titles, then messages, newest first, that contain every word of the query."""
        *_, hits = [], *self.searching(query, limit)
        return hits

    def searching(self, query: str, limit: int = 50) -> Iterator[list[SearchHit]]:
        """The same in pieces that take a few milliseconds each: what was found so far."""
        if not (words := words_of(query)):
            return
        yield (hits := self._database.read(lambda db: queries.find(db, words, limit)))
        before = queries.END
        while before and len(hits) < limit:
            found, before = self._database.read(partial(_piece, words, limit - len(hits), before))
            yield (hits := [*hits, *found])

    def export_markdown(self, chat_id: int) -> str:
        return to_markdown(self.chat(chat_id, last=-1))

    def export_json(self, chat_id: int) -> str:
        return to_json(self.chat(chat_id, last=-1))

    def import_json(self, text: str) -> Chat:
        """Import a chat from JSON; errors name the invalid field.

        It may take seconds. Other threads can write meanwhile, and the chat is closed until it is complete.
        """
        given = from_json(text)
        packed = packed_params(given.params)
        title = f"{given.title} (import not finished)"

        def begin(db: Db) -> int:
            chat_id = queries.insert_chat(db, title, given.system, packed, given.created_at)
            columns = {"adapter": storable(given.adapter), "closed_at": given.created_at}
            queries.update_chat(db, chat_id, columns)
            return chat_id

        def add(messages: Sequence[Message], db: Db) -> None:
            queries.chat_row(db, chat_id)
            for message in messages:
                queries.insert_message(db, chat_id, message)

        def end(db: Db) -> Chat:
            queries.update_chat(db, chat_id, {"title": storable(given.title)})
            queries.reopen(db, chat_id, self.shown())
            return queries.chat(db, chat_id)

        chat_id = self._database.write(begin)
        try:
            for messages in _parts(given.messages):
                self._database.write(partial(add, messages))
                time.sleep(_GIVE_WAY)
            return self._database.write(end)
        except BaseException:
            self.delete_chat(chat_id)
            raise


def _parts(messages: Iterable[Message]) -> Iterator[list[Message]]:
    """The messages in parts that are written in milliseconds."""
    part, size = list[Message](), 0
    for message in messages:
        part.append(message)
        size += len(message.whole) + len(message.reasoning) + _ROW
        if size > _AT_ONCE:
            yield part
            part, size = [], 0
    yield part


def _piece(words: tuple[str, ...], limit: int, before: int, db: Db) -> tuple[list[SearchHit], int]:
    """What the newest messages before an id have, and the first of their ids."""
    first = queries.piece_before(db, before, _PIECE)
    return queries.find(db, words, limit, (first, before)), first
