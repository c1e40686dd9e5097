"""The index of blocks on disk: room, owners, other engines, and damage."""

import sqlite3
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from engine.kv.tiers.disk_index import Contents, DiskIndex, DiskSlot
from engine.kv.tiers.erasing import punch_hole
from engine.sqlite import set_journal

ROOT = Path(__file__).parents[2]
STRIDE = 4096


def name(number: int) -> bytes:
    return number.to_bytes(32, "little")


def put(index: DiskIndex, *numbers: int, stride: int = STRIDE) -> dict[bytes, DiskSlot]:
    def write(at: int, slot: DiskSlot) -> bytes:
        path = index.path(slot.file)
        path.touch()
        with path.open("r+b") as file:
            file.seek(slot.offset)
            file.write(bytes([numbers[at] % 256]) * stride)
        return name(numbers[at])

    return index.put([name(each) for each in numbers], stride, write, [])


def kept(index: DiskIndex, stride: int = STRIDE) -> set[int]:
    return {int.from_bytes(each, "little") for each in index.slots(stride)}


def test_connections_that_create_the_index_together_wait_for_each_other(tmp_path: Path) -> None:
    """As ranks do. SQLite itself would refuse one: both change the file to the same journal mode."""
    start = threading.Barrier(4)

    def opened(number: int) -> None:
        for turn in range(8):
            start.wait(20)
            index = DiskIndex(tmp_path / str(turn), 64 * STRIDE)
            put(index, number)
            index.close()

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(opened, range(4)))
    index = DiskIndex(tmp_path / "0", 64 * STRIDE)
    assert kept(index) == {0, 1, 2, 3}
    index.close()


def test_another_connection_of_a_process_does_not_cancel_the_locks_of_the_first(tmp_path: Path) -> None:
    """The system drops all locks of a process on a file when it closes that file once, as SQLite warns.

    Then the next process that ends removes a journal that the first connection still writes to.
    """
    look = (
        "import sys; from pathlib import Path; from engine.kv.tiers.disk_index import DiskIndex;"
        f"index = DiskIndex(Path(sys.argv[1]), {64 * STRIDE}); print(index.contents().blocks); index.close()"
    )

    def found_by_another_process() -> int:
        done = subprocess.run(
            [sys.executable, "-c", look, tmp_path], cwd=ROOT, capture_output=True, text=True, check=True
        )
        return int(done.stdout)

    index = DiskIndex(tmp_path, 64 * STRIDE)
    put(index, 1)
    DiskIndex(tmp_path, 64 * STRIDE).close()  # as when a chat is deleted
    assert found_by_another_process() == 1
    put(index, 2)
    assert found_by_another_process() == 2
    index.close()


def test_a_busy_journal_is_tried_again() -> None:
    class Busy(sqlite3.OperationalError):
        sqlite_errorcode = sqlite3.SQLITE_BUSY_RECOVERY

    class Connection:
        tries = 0

        def execute(self, statement: str) -> None:
            self.tries += 1
            if self.tries < 3:
                raise Busy

    connection = cast(sqlite3.Connection, Connection())
    set_journal(connection, "WAL", 20)
    assert connection.tries == 3  # type: ignore[attr-defined]
    connection.tries = 0  # type: ignore[attr-defined]
    with pytest.raises(Busy):
        set_journal(connection, "WAL", -1)


def test_blocks_are_found_by_the_next_connection(tmp_path: Path) -> None:
    index = DiskIndex(tmp_path / "kv", 64 * STRIDE)
    stored = put(index, 1, 2, 3)
    index.close()
    again = DiskIndex(tmp_path / "kv", 64 * STRIDE)
    assert again.slots(STRIDE) == stored and not again.slots(2 * STRIDE)
    assert put(again, 2, 4).keys() == {name(4)}, "a block was stored twice"


def test_files_are_private(tmp_path: Path) -> None:
    put(DiskIndex(tmp_path / "kv", 64 * STRIDE), 1)
    assert (tmp_path / "kv").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "kv" / "index.sqlite").stat().st_mode & 0o777 == 0o600


def test_the_least_recently_used_blocks_make_room(tmp_path: Path) -> None:
    index = DiskIndex(tmp_path, 16 * STRIDE)
    for number in range(16):
        put(index, number)
    index.touch([name(0), name(1)])
    put(index, 16, 17)
    assert kept(index) == {0, 1, *range(4, 18)}
    assert sum(each.stat().st_size for each in tmp_path.glob("*.kv")) <= 16 * STRIDE


def test_more_blocks_than_there_is_room_for_are_not_all_stored(tmp_path: Path) -> None:
    index = DiskIndex(tmp_path, 16 * STRIDE)
    stored = put(index, *range(40))
    assert 0 < len(stored) <= 16 and len(kept(index)) == len(stored)
    assert not put(DiskIndex(tmp_path / "none", STRIDE - 1), 1)


def test_old_blocks_of_another_size_give_up_their_files(tmp_path: Path) -> None:
    index = DiskIndex(tmp_path, 16 * STRIDE)
    for number in range(16):
        put(index, number)
    for number in range(100, 108):
        put(index, number, stride=2 * STRIDE)
    assert kept(index, 2 * STRIDE) == set(range(100, 108)) and not kept(index)
    assert sum(each.stat().st_size for each in tmp_path.glob("*.kv")) <= 16 * STRIDE


def test_a_deleted_chat_takes_the_blocks_that_only_it_owns(tmp_path: Path) -> None:
    index = DiskIndex(tmp_path, 64 * STRIDE)
    put(index, *range(6))
    assert index.own([name(each) for each in (0, 1, 2, 3)], "a")
    assert index.own([name(each) for each in (0, 1, 4)], "b")
    assert index.delete_chat("a") == 2 and kept(index) == {0, 1, 4, 5}
    assert index.delete_chat("b") == 3 and kept(index) == {5}
    assert not index.own([name(5)], "a"), "a deleted chat owns blocks again"
    assert index.delete_chat("never seen") == 0


def test_a_block_owned_before_it_is_stored_is_deleted_with_its_chat(tmp_path: Path) -> None:
    index = DiskIndex(tmp_path, 64 * STRIDE)
    assert index.own([name(1)], "a")
    put(index, 1)
    assert index.delete_chat("a") == 1 and not kept(index)


@pytest.mark.parametrize("holes", [True, False])
def test_the_bytes_of_a_deleted_chat_are_erased(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, holes: bool
) -> None:
    """Also where a file system cannot give back a part of a file."""
    if not holes:
        monkeypatch.setattr("engine.kv.tiers.erasing.punch_hole", lambda file, offset, count: False)
    index = DiskIndex(tmp_path, 64 * STRIDE)
    put(index, 1, 2, 3)
    index.own([name(1), name(2)], "a")
    index.own([name(2), name(3)], "b")
    index.delete_chat("a")
    stored = (tmp_path / "1.kv").read_bytes()
    assert [stored.count(each) for each in (1, 2, 3)] == [0, STRIDE, STRIDE]
    put(index, 4)
    assert index.own([name(4)], "a") is False, "stored after the chat was deleted"
    assert bytes([4]) not in (tmp_path / "1.kv").read_bytes()
    put(index, 5)
    assert (tmp_path / "1.kv").read_bytes().count(5) == STRIDE, "the slot cannot be used again"


def test_erasing_gives_the_room_back(tmp_path: Path) -> None:
    index = DiskIndex(tmp_path, 1024 * STRIDE)
    put(index, *range(1, 33))
    with (tmp_path / "1.kv").open("r+b") as file:
        if not punch_hole(file.fileno(), 31 * STRIDE, STRIDE):
            pytest.skip("this file system does not give back parts of files")
    index.own([name(each) for each in range(1, 31)], "a")
    index.delete_chat("a")
    assert (tmp_path / "1.kv").stat().st_blocks * 512 <= STRIDE


def test_a_chat_whose_file_is_gone_can_be_deleted(tmp_path: Path) -> None:
    index = DiskIndex(tmp_path, 1024 * STRIDE)
    put(index, 1, 2)
    index.own([name(1)], "a")
    (tmp_path / "1.kv").unlink()
    assert index.delete_chat("a") == 1 and kept(index) == {2}


def test_owners_of_blocks_that_found_no_room_are_not_kept(tmp_path: Path) -> None:
    index = DiskIndex(tmp_path, 4 * STRIDE)
    index.own([name(each) for each in range(9)], "a")
    assert index.contents().chats == 0, "it has no block yet"
    stored = put(index, *range(9))
    assert len(stored) == 4 and index.contents().chats == 1
    with sqlite3.connect(tmp_path / "index.sqlite") as db:
        assert db.execute("SELECT count(*) FROM owners").fetchone() == (4,)
    db.close()


def test_another_connection_is_noticed(tmp_path: Path) -> None:
    one, other = (DiskIndex(tmp_path, 64 * STRIDE) for _ in range(2))
    before = one.generation
    put(one, 1)
    assert one.generation == before, "its own change is not another's"
    put(other, 2)
    assert one.generation != before and kept(one) == {1, 2}


def test_a_write_that_fails_leaves_no_block(tmp_path: Path) -> None:
    index = DiskIndex(tmp_path, 64 * STRIDE)

    def fail(at: int, slot: DiskSlot) -> bytes:
        if at == 1:
            raise OSError("no space")
        return b""

    with pytest.raises(OSError, match="no space"):
        index.put([name(1), name(2)], STRIDE, fail, [])
    assert not kept(index)
    put(index, 1, 2)
    assert kept(index) == {1, 2}


@pytest.mark.parametrize(
    "content", [b"", b"not a database at all" * 100, b"SQLite format 3\0" + b"\xff" * 5000]
)
def test_a_damaged_index_is_started_anew_with_its_files(tmp_path: Path, content: bytes) -> None:
    index = DiskIndex(tmp_path, 64 * STRIDE)
    put(index, 1)
    index.close()
    for each in tmp_path.glob("index.sqlite*"):
        each.unlink()
    (tmp_path / "index.sqlite").write_bytes(content)
    again = DiskIndex(tmp_path, 64 * STRIDE)
    assert not kept(again) and not list(tmp_path.glob("*.kv"))
    put(again, 1)
    assert kept(again) == {1}


def test_an_index_of_another_version_is_started_anew(tmp_path: Path) -> None:
    index = DiskIndex(tmp_path, 64 * STRIDE)
    put(index, 1)
    index.close()
    with sqlite3.connect(tmp_path / "index.sqlite") as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    assert not kept(DiskIndex(tmp_path, 64 * STRIDE))


def test_files_of_a_killed_engine_are_removed(tmp_path: Path) -> None:
    index = DiskIndex(tmp_path, 64 * STRIDE)
    put(index, 1)
    (tmp_path / "77.kv").write_bytes(b"never named")
    (tmp_path / "notes.txt").write_bytes(b"not ours")
    index.close()
    DiskIndex(tmp_path, 64 * STRIDE)
    assert (
        sorted(each.name for each in tmp_path.glob("*.kv")) == ["1.kv"] and (tmp_path / "notes.txt").exists()
    )


def test_clear_removes_all_files(tmp_path: Path) -> None:
    index = DiskIndex(tmp_path, 64 * STRIDE)
    put(index, 1, 2)
    before, taken = index.contents(), sum(each.stat().st_blocks for each in tmp_path.glob("*.kv")) * 512
    assert (before.blocks, before.nbytes) == (2, taken), "without the index and its journal"
    assert index.clear() == before
    assert index.contents() == Contents(0, 0, 0, 0.0) and not list(tmp_path.glob("*.kv"))


def test_a_file_that_vanishes_while_the_contents_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when another engine makes room."""
    index = DiskIndex(tmp_path, 64 * STRIDE)
    put(index, 1)
    before, listed = index.contents(), [*tmp_path.glob("*.kv"), tmp_path / "2.kv"]
    monkeypatch.setattr(Path, "glob", lambda folder, pattern: iter(listed))
    assert index.contents() == before


class Index(RuleBasedStateMachine):
    """Compared with a dictionary. Two connections take turns."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.room = 16 * STRIDE
        self.indexes = [DiskIndex(Path(self.folder.name), self.room) for _ in range(2)]
        self.owners: dict[int, set[str]] = {}
        self.deleted: set[str] = set()
        self._seen: set[int] = set()

    @rule(which=st.integers(0, 1), numbers=st.lists(st.integers(0, 30), max_size=6, unique=True))
    def store(self, which: int, numbers: list[int]) -> None:
        before = kept(self.indexes[which])
        stored = put(self.indexes[which], *numbers)
        assert {int.from_bytes(each, "little") for each in stored} == set(numbers) - before
        self._follow()

    @rule(which=st.integers(0, 1), number=st.integers(0, 30), chat=st.sampled_from("abc"))
    def own(self, which: int, number: int, chat: str) -> None:
        assert self.indexes[which].own([name(number)], chat) == (chat not in self.deleted)
        if chat not in self.deleted:
            self.owners.setdefault(number, set()).add(chat)

    @rule(which=st.integers(0, 1), chat=st.sampled_from("abc"))
    def delete(self, which: int, chat: str) -> None:
        before = kept(self.indexes[which])
        alone = {each for each in before if self.owners.get(each) == {chat}}
        assert self.indexes[which].delete_chat(chat) == len(alone)
        assert kept(self.indexes[which]) == before - alone
        self.deleted.add(chat)
        for owners in self.owners.values():
            owners.discard(chat)
        self._follow(before)

    @rule(which=st.integers(0, 1), number=st.integers(0, 30))
    def drop(self, which: int, number: int) -> None:
        before = kept(self.indexes[which])
        self.indexes[which].drop([name(number)])
        assert kept(self.indexes[which]) == before - {number}
        self._follow(before)

    def _follow(self, before: set[int] | None = None) -> None:
        """Forget the owners of blocks that were dropped."""
        there = kept(self.indexes[0])
        gone = (self._seen if before is None else before) - there
        for number in gone:
            self.owners.pop(number, None)
        self._seen = there

    @invariant()
    def slots_hold_their_blocks(self) -> None:
        one, other = (index.slots(STRIDE) for index in self.indexes)
        assert one == other
        assert len({(slot.file, slot.offset) for slot in one.values()}) == len(one)
        for key, slot in one.items():
            with self.indexes[0].path(slot.file).open("rb") as file:
                file.seek(slot.offset)
                assert file.read(STRIDE) == bytes([key[0]]) * STRIDE
        files = list(Path(self.folder.name).glob("*.kv"))
        assert sum(each.stat().st_size for each in files) <= self.room

    def teardown(self) -> None:
        for index in self.indexes:
            index.close()
        self.folder.cleanup()


TestIndex = Index.TestCase
TestIndex.settings = settings(max_examples=30, stateful_step_count=15, deadline=None)
