"""The index of blocks on disk: which block is in which slot of which file, and to which chats it belongs.

It is an SQLite database, so several engines share it, and a process killed at any moment leaves it intact.
A block's bytes are written before the transaction that names them ends.
"""

import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from errno import EIO, ENOSPC
from itertools import groupby, islice
from pathlib import Path
from typing import NamedTuple

from engine.api.events import log
from engine.api.places import DiskRoom
from engine.kv.tiers.erasing import erase
from engine.sqlite import create_private, set_journal

VERSION = 1
_FILE = "index.sqlite"
_BUSY = 5.0  # seconds to wait for another engine
_SEGMENT = 2**26  # bytes of a file
_SEGMENTS = 16  # files that the room is divided into, at least
_INDEX = 2**20  # bytes that an index and its journal may need at first
_MANY = 500  # names in one statement

_NAME = 32  # bytes of a block's name; those of shares of ranks above 0 are longer

_SCHEMA = (
    "CREATE TABLE segments (id INTEGER PRIMARY KEY AUTOINCREMENT, stride INTEGER NOT NULL,"
    " slots INTEGER NOT NULL, used INTEGER NOT NULL DEFAULT 0)",
    "CREATE TABLE blocks (name BLOB PRIMARY KEY, segment INTEGER NOT NULL, slot INTEGER NOT NULL,"
    " sum BLOB NOT NULL, used_at REAL NOT NULL) WITHOUT ROWID",
    "CREATE UNIQUE INDEX by_slot ON blocks (segment, slot)",
    "CREATE INDEX by_use ON blocks (used_at)",
    "CREATE TABLE owners (chat TEXT NOT NULL, name BLOB NOT NULL, PRIMARY KEY (chat, name)) WITHOUT ROWID",
    "CREATE INDEX by_block ON owners (name)",
    "CREATE TABLE deleted (chat TEXT PRIMARY KEY) WITHOUT ROWID",
    "CREATE TRIGGER taken AFTER INSERT ON blocks BEGIN"
    " UPDATE segments SET used = used + 1 WHERE id = new.segment; END",
    "CREATE TRIGGER dropped AFTER DELETE ON blocks BEGIN"
    " UPDATE segments SET used = used - 1 WHERE id = old.segment;"
    " DELETE FROM owners WHERE name = old.name; END",
)


class DiskSlot(NamedTuple):
    """Where a block is stored, and the checksum of its bytes."""

    file: int
    offset: int
    sum: bytes


class Contents(NamedTuple):
    """What a folder holds."""

    blocks: int
    nbytes: int  # of the files of blocks
    chats: int
    oldest: float  # when the block that is dropped next was last used, in seconds since 1970; 0: no block
    sizes: int = 0  # of blocks; an engine uses those that its cache has now


def share_of(rank: int) -> bytes:
    """What the name of a rank's share of a block has in addition."""
    return b" of rank %d" % rank if rank else b""


class DiskIndex:
    """One connection. Use it from one thread at a time."""

    def __init__(self, folder: Path, room: int) -> None:
        """`room`: the maximum bytes of all files. Raises OSError or sqlite3.Error."""
        self.folder, self._room = folder, room
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            self._db = _connected(folder)
        except sqlite3.DatabaseError as error:
            if not _damaged(error):
                raise
            log.warning("the blocks in %s are dropped, because their index is damaged: %s", folder, error)
            _remove(folder)
            self._db = _connected(folder)
        self._drop_stray_files()

    def close(self) -> None:
        self._db.close()

    @property
    def generation(self) -> int:
        """Changes when another connection changes the index."""
        return int(self._db.execute("PRAGMA data_version").fetchone()[0])

    def path(self, file: int) -> Path:
        return self.folder / f"{file}.kv"

    def slots(self, stride: int, rank: int = 0) -> dict[bytes, DiskSlot]:
        """All blocks, or shares of this rank, in slots of `stride` bytes."""
        rows = self._db.execute(
            "SELECT name, segment, slot, sum FROM blocks JOIN segments ON segment = id WHERE stride = ?"
            f" AND substr(name, {_NAME + 1}) = ?",
            (stride, share_of(rank)),
        )
        return {name: DiskSlot(file, slot * stride, digest) for name, file, slot, digest in rows}

    def contents(self) -> Contents:
        one = self._db.execute(
            f"SELECT (SELECT count(*) FROM blocks WHERE length(name) <= {_NAME}),"
            " (SELECT count(DISTINCT chat) FROM owners JOIN blocks USING (name)),"
            " (SELECT min(used_at) FROM blocks),"
            " (SELECT count(DISTINCT stride) FROM segments JOIN blocks ON segment = id"
            f" WHERE length(name) <= {_NAME})"
        ).fetchone()
        nbytes = sum(map(_taken, self.folder.glob("*.kv")))
        return Contents(one[0], nbytes, one[1], one[2] or 0.0, one[3])

    def put(
        self,
        names: Sequence[bytes],
        stride: int,
        write: Callable[[int, DiskSlot], bytes],
        evicted: list[bytes],
    ) -> dict[bytes, DiskSlot]:
        """Store new blocks. `write` writes the one at an index into a slot, and returns its checksum.

        Blocks that were used least recently are dropped to make room, and are added to `evicted`. Returns the
        slots of the blocks stored.
        """
        stored = {}
        with self._transaction() as dropped:
            known = self._known(names)
            fresh = [at for at, name in enumerate(names) if name not in known]
            places = self._free_slots(stride, len(fresh), dropped, evicted)
            now = time.time()
            for at, (file, slot) in zip(fresh, places, strict=False):
                written = write(at, DiskSlot(file, slot * stride, b""))
                self._db.execute(
                    "INSERT INTO blocks VALUES (?, ?, ?, ?, ?)", (names[at], file, slot, written, now)
                )
                stored[names[at]] = DiskSlot(file, slot * stride, written)
            left = ((names[at],) for at in fresh[len(places) :])
            self._db.executemany("DELETE FROM owners WHERE name = ?", left)
        return stored

    def touch(self, names: Iterable[bytes]) -> None:
        """Note that blocks were used now."""
        now = time.time()
        with self._transaction():
            self._db.executemany(
                "UPDATE blocks SET used_at = ? WHERE name = ?", ((now, each) for each in names)
            )

    def own(self, names: Sequence[bytes], chat: str) -> bool:
        """Note that the blocks belong to a chat, before or after they are stored.

        False: the chat was deleted. What is stored of them and no other chat owns is dropped.
        """
        with self._transaction() as dropped:
            if self._db.execute("SELECT 1 FROM deleted WHERE chat = ?", (chat,)).fetchone():
                self._drop_unowned(names, dropped)
                return False
            rows = ((chat, each) for each in names)
            self._db.executemany("INSERT OR IGNORE INTO owners VALUES (?, ?)", rows)
            return True

    def drop(self, names: Iterable[bytes]) -> None:
        with self._transaction() as dropped:
            self._db.executemany("DELETE FROM blocks WHERE name = ?", ((each,) for each in names))
            dropped += self._empty_files()

    def delete_chat(self, chat: str) -> int:
        """Drop and erase the blocks that only this chat owns, now and later. Returns how many there were."""
        with self._transaction() as dropped:
            self._db.execute("INSERT OR IGNORE INTO deleted VALUES (?)", (chat,))
            own = self._db.execute("SELECT name FROM owners WHERE chat = ?", (chat,)).fetchall()
            self._db.execute("DELETE FROM owners WHERE chat = ?", (chat,))
            return self._drop_unowned((row[0] for row in own), dropped)

    def clear(self) -> Contents:
        """Drop all blocks. Return what they were."""
        with self._transaction() as dropped:
            found = self.contents()
            self._db.execute("DELETE FROM blocks")
            self._db.execute("DELETE FROM owners")
            dropped += self._empty_files()
        return found

    # Room

    def shrink(self) -> None:
        """Drop the files whose blocks were used least recently, until the others fit in the room."""
        used = "SELECT id FROM segments LEFT JOIN blocks ON segment = id GROUP BY id ORDER BY max(used_at)"
        with self._transaction() as dropped:
            while self._files_bytes() > self._room:
                dropped += self._db.execute(used).fetchone()
                self._db.execute("DELETE FROM blocks WHERE segment = ?", (dropped[-1],))
                self._db.execute("DELETE FROM segments WHERE id = ?", (dropped[-1],))

    def _free_slots(
        self, stride: int, count: int, dropped: list[int], evicted: list[bytes]
    ) -> list[tuple[int, int]]:
        """Up to `count` free slots, in files that have room, in new files, and in place of old blocks."""
        found: list[tuple[int, int]] = []
        slots = max(1, min(_SEGMENT, self._room // _SEGMENTS) // stride)
        while len(found) < count:
            before = len(found)
            found += islice(self._free(stride, set(found)), count - before)
            if len(found) > before:
                continue
            if self._files_bytes() + slots * stride <= self._room:
                self._db.execute("INSERT INTO segments (stride, slots) VALUES (?, ?)", (stride, slots))
            elif old := self._evict(stride, count - before, dropped):
                evicted += old
            else:
                break
        return found

    def _free(self, stride: int, taken: set[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        query = "SELECT id, slots FROM segments WHERE stride = ? AND used < slots ORDER BY id"
        for file, slots in self._db.execute(query, (stride,)).fetchall():
            used = {row[0] for row in self._db.execute("SELECT slot FROM blocks WHERE segment = ?", (file,))}
            for slot in range(slots):
                if slot not in used and (file, slot) not in taken:
                    yield file, slot

    def _drop_unowned(self, names: Iterable[bytes], dropped: list[int]) -> int:
        """Drop the blocks that no chat owns, and erase them. Returns how many there were."""
        query = (
            "SELECT segment, slot * stride, stride FROM blocks JOIN segments ON segment = id WHERE name = ?"
            " AND NOT EXISTS (SELECT 1 FROM owners WHERE owners.name = blocks.name)"
        )
        places = []
        for name in names:
            if found := self._db.execute(query, (name,)).fetchall():
                places += found
                self._db.execute("DELETE FROM blocks WHERE name = ?", (name,))
        dropped += self._empty_files()
        self._erase(place for place in sorted(places) if place[0] not in dropped)
        return len(places)

    def _erase(self, places: Iterable[tuple[int, int, int]]) -> None:
        """Erase bytes of files: (file, offset, count), in order."""
        for number, parts in groupby(places, lambda place: place[0]):
            try:
                file = os.open(self.path(number), os.O_WRONLY)
            except FileNotFoundError:
                continue
            try:
                for _, offset, count in parts:
                    erase(file, offset, count)
            finally:
                os.close(file)

    def _files_bytes(self) -> int:
        return int(self._db.execute("SELECT coalesce(sum(stride * slots), 0) FROM segments").fetchone()[0])

    def _evict(self, stride: int, count: int, dropped: list[int]) -> list[bytes]:
        """Drop old blocks, and return them. If the oldest has another stride, a whole file of it goes."""
        oldest = self._db.execute(
            "SELECT stride, segment FROM blocks JOIN segments ON segment = id ORDER BY used_at LIMIT 1"
        ).fetchone()
        if oldest is None:
            return []
        chosen, given = "stride = ? ORDER BY used_at LIMIT ?", (stride, count)
        if other := oldest[0] != stride:
            chosen, given = "segment = ? LIMIT ?", (oldest[1], -1)
        query = f"SELECT name FROM blocks JOIN segments ON segment = id WHERE {chosen}"
        old = self._db.execute(query, given).fetchall()
        self._db.executemany("DELETE FROM blocks WHERE name = ?", old)
        if other:
            self._db.execute("DELETE FROM segments WHERE id = ?", (oldest[1],))
            dropped.append(oldest[1])
        return [row[0] for row in old]

    def _empty_files(self) -> list[int]:
        empty = [row[0] for row in self._db.execute("SELECT id FROM segments WHERE used = 0")]
        self._db.executemany("DELETE FROM segments WHERE id = ?", ((each,) for each in empty))
        return empty

    def _known(self, names: Sequence[bytes]) -> set[bytes]:
        found: set[bytes] = set()
        for at in range(0, len(names), _MANY):
            part = names[at : at + _MANY]
            marks = ",".join("?" * len(part))
            rows = self._db.execute(f"SELECT name FROM blocks WHERE name IN ({marks})", part)
            found.update(row[0] for row in rows)
        return found

    @contextmanager
    def _transaction(self) -> Iterator[list[int]]:
        """All or nothing. Files appended to the list are removed once the index no longer names them."""
        dropped: list[int] = []
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            yield dropped
        for file in dropped:
            self.path(file).unlink(missing_ok=True)

    def _drop_stray_files(self) -> None:
        """Remove files that a killed process created or did not get to remove."""
        with self._transaction() as dropped:
            known = {row[0] for row in self._db.execute("SELECT id FROM segments")}
            numbers = (each.stem for each in self.folder.glob("*.kv"))
            dropped += [int(each) for each in numbers if each.isdecimal() and int(each) not in known]


def _taken(file: Path) -> int:
    """Bytes on disk. 0: another engine has removed it meanwhile."""
    try:
        return file.lstat().st_blocks * 512
    except FileNotFoundError:
        return 0


def _connected(folder: Path) -> sqlite3.Connection:
    path = folder / _FILE
    create_private(path)
    db = sqlite3.connect(path, timeout=_BUSY, isolation_level=None, check_same_thread=False)
    try:
        set_journal(db, "WAL", _BUSY)
        db.execute("PRAGMA synchronous = NORMAL")
        with db:
            db.execute("BEGIN IMMEDIATE")
            version = db.execute("PRAGMA user_version").fetchone()[0]
            if version not in (0, VERSION):
                raise sqlite3.DatabaseError(f"it has version {version}, not {VERSION}")
            if version == 0:
                for statement in _SCHEMA:
                    db.execute(statement)
                db.execute(f"PRAGMA user_version = {VERSION}")
    except BaseException:
        db.close()
        raise
    return db


def _damaged(error: sqlite3.DatabaseError) -> bool:
    """Whether the file is not a usable index, instead of being locked or out of reach."""
    return not isinstance(error, sqlite3.OperationalError)


def _remove(folder: Path) -> None:
    for each in (*folder.glob(f"{_FILE}*"), *folder.glob("*.kv")):
        each.unlink(missing_ok=True)


def reason_of(error: Exception, folder: Path) -> str:
    """In the system's words, also where SQLite has its own for a full disk, or none but "disk I/O error"."""
    code = getattr(error, "sqlite_errorcode", None) or 0
    full = code == sqlite3.SQLITE_FULL
    if code & 0xFF == sqlite3.SQLITE_IOERR:
        there = next(each for each in (folder, *folder.parents) if os.path.exists(each))
        full = shutil.disk_usage(there).free < _INDEX
    number = ENOSPC if full else getattr(error, "errno", None)
    return os.strerror(number) if number else str(error)


def delete_chat(disk: DiskRoom, chat: str) -> int:
    """Drop the blocks on disk that only this chat owns. Returns how many there were. Raises OSError."""
    if not (disk.folder / _FILE).exists():
        return 0
    try:
        with closing(DiskIndex(disk.folder, disk.nbytes)) as index:
            return index.delete_chat(chat)
    except sqlite3.Error as error:
        raise OSError(EIO, reason_of(error, disk.folder), str(disk.folder)) from error
