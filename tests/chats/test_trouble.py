"""Damaged files, full disks, read-only folders, other programs: the store always opens, with a notice."""

import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from minichat.chats import opening
from minichat.chats.errors import StoreBusy
from minichat.chats.model import Edit, Message
from minichat.chats.schema import MIGRATIONS, migrate
from minichat.chats.store import Store
from minichat.shell.filesystems import networked

from .conftest import Opener


def connection(store: Store) -> sqlite3.Connection:
    return store._database._opened.connection


def notice(store: Store) -> str:
    (sentence,) = store.notices
    return sentence


def test_a_file_that_is_no_database_is_moved_away(path: Path, opened: Opener) -> None:
    path.parent.mkdir(parents=True)
    path.write_text("these are not the chats you are looking for")
    store = opened()
    aside = next(path.parent.glob("chats.damaged-*.db"))
    assert aside.read_text().startswith("these are not")
    assert str(path) in notice(store)
    assert aside.name in notice(store)
    assert "nothing could be read" in notice(store)
    store.create_chat("fresh")
    assert [chat.title for chat in opened().open_chats()] == ["fresh"]


def damage(path: Path, chats: int = 3, messages: int = 60) -> None:
    """A database with several pages of messages, one of which is then overwritten."""
    store = Store(path)
    for number in range(chats):
        chat = store.create_chat(f"chat {number}")
        for n in range(messages):
            last = store.append(chat.id, "user", f"message {n} " + "." * 200)
    store.keep_typed_system(chat.id, "Be long.")
    store.keep_edit(chat.id, Edit(last.id, "edited"))
    page = connection(store).execute(
        "SELECT pageno FROM dbstat WHERE name = 'messages' AND pagetype = 'leaf' LIMIT 1 OFFSET 3"
    )
    (number,) = page.fetchone()
    store.close()
    with path.open("r+b") as file:
        file.seek((number - 1) * 4096)
        file.write(b"\xff" * 4096)


def has_dbstat() -> bool:
    try:
        sqlite3.connect(":memory:").execute("SELECT 1 FROM dbstat")
    except sqlite3.OperationalError:
        return False
    return True


@pytest.mark.skipif(
    not has_dbstat(), reason="this SQLite is built without dbstat, which finds the page to damage"
)
def test_readable_rows_of_a_damaged_database_are_kept(path: Path, opened: Opener) -> None:
    damage(path)
    store = opened()
    saved = sum(len(store.history(chat.id)) for chat in store.open_chats())
    assert 100 < saved < 180
    assert [chat.typed_system for chat in store.open_chats()] == [None, None, "Be long."]
    assert [chat.edit is not None for chat in store.open_chats()] == [False, False, True]
    assert f"messages saved from it: {saved}" in notice(store)
    assert len(list(path.parent.glob("chats.damaged-*.db"))) == 1
    again = opened()
    assert again.notices == []
    assert sum(len(again.history(chat.id)) for chat in again.open_chats()) == saved


@pytest.mark.skipif(
    not has_dbstat(), reason="this SQLite is built without dbstat, which finds the page to damage"
)
def test_two_screens_move_a_damaged_database_away_once(path: Path, opened: Opener) -> None:
    damage(path)
    here, there = opened(), opened()
    for store in (here, there):
        for chat in store.open_chats():
            store.history(chat.id)
    assert len(list(path.parent.glob("chats.damaged-*.db"))) == 1
    here.create_chat("after")
    assert there.listing()[0].title == "after"


def test_messages_of_a_lost_chat_are_recovered_into_another(path: Path, opened: Opener) -> None:
    store = opened()
    lost = store.create_chat("lost")
    store.append(lost.id, "user", "still here")
    connection(store).execute("PRAGMA foreign_keys = OFF")
    connection(store).execute("DELETE FROM chats")
    store.close()
    repaired = opening.repaired(path, path.stat().st_ino)
    repaired.connection.close()
    (chat,) = opened().open_chats()
    assert (chat.id, chat.title, chat.messages[0].text) == (lost.id, "recovered", "still here")


def test_a_full_disk_moves_the_chats_to_memory(store: Store, path: Path) -> None:
    chat = store.create_chat("before")
    reply = store.append(chat.id, "assistant", "", state="streaming")
    (pages,) = connection(store).execute("PRAGMA page_count").fetchone()
    connection(store).execute(f"PRAGMA max_page_count = {pages}")
    assert store.update(replace(reply, text="x" * 100_000))
    assert "database or disk is full" in notice(store)
    assert "lost when minichat quits" in notice(store)
    assert store.path is None
    store.append(chat.id, "user", "y" * 100_000)
    assert [len(message.text) for message in store.history(chat.id)] == [100_000, 100_000]
    assert len(store.notices) == 1


def test_a_file_that_became_read_only_moves_the_chats_to_memory(store: Store) -> None:
    store.create_chat("before")
    connection(store).execute("PRAGMA query_only = ON")
    store.create_chat("after")
    assert [chat.title for chat in store.open_chats()] == ["before", "after"]
    assert "readonly database" in notice(store)


def test_a_file_that_was_deleted_moves_the_chats_to_memory(store: Store, path: Path) -> None:
    store.create_chat("before")
    path.unlink()
    store.create_chat("after")
    assert [chat.title for chat in store.open_chats()] == ["before", "after"]
    assert "was deleted; new messages are lost when minichat quits" in notice(store)
    assert store.unsaved and not path.exists()


def test_a_folder_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    store = Store(tmp_path / "file" / "minichat" / "chats.db")
    assert notice(store).startswith(
        f"Cannot write {tmp_path / 'file' / 'minichat' / 'chats.db'}: Not a directory;"
    )
    assert store.create_chat("all the same").letter == "a"


def test_read_only_chats_are_shown(path: Path, opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    first = opened()
    first.create_chat("readable")
    first.close()

    def refuse(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(opening.os, "chmod", refuse)
    store = opened()
    assert "Permission denied" in notice(store)
    assert [chat.title for chat in store.open_chats()] == ["readable"]
    store.create_chat("unsaved")
    monkeypatch.undo()
    assert [chat.title for chat in opened().open_chats()] == ["readable"]


def test_a_database_of_a_newer_version_is_not_changed(path: Path, opened: Opener) -> None:
    store = opened()
    store.create_chat("from the future")
    connection(store).execute("INSERT INTO migrations VALUES (99, 0)")
    store.close()
    before = path.read_bytes()
    store = opened()
    assert "a newer minichat" in notice(store)
    assert "schema 99" in notice(store)
    store.create_chat("now")
    assert path.read_bytes() == before


def test_an_older_database_is_migrated(path: Path, opened: Opener) -> None:
    store = opened()
    store.create_chat("old")
    old = connection(store)
    migrate(old, [*MIGRATIONS, "ALTER TABLE chats ADD COLUMN colour TEXT NOT NULL DEFAULT 'red'"])
    assert old.execute("SELECT title, colour FROM chats").fetchone()[:] == ("old", "red")
    assert [row[0] for row in old.execute("SELECT version FROM migrations")] == [1, 2, 3, 4, 5, 6]


def test_a_database_from_before_attachments_keeps_its_content(path: Path, opened: Opener) -> None:
    path.parent.mkdir(parents=True)
    with sqlite3.connect(path) as first:
        first.isolation_level = None
        migrate(first, MIGRATIONS[:1])
        first.execute(
            "INSERT INTO chats (letter, title, system, params, created_at) VALUES ('a', '', '', '{}', 0)"
        )
        first.execute(
            "INSERT INTO messages (chat_id, role, at, state, text) VALUES (1, 'user', 0, 'done', 'old')"
        )
    first.close()
    [chat] = opened().open_chats()
    assert [(message.text, message.attachments) for message in chat.messages] == [("old", ())]


def test_a_migration_that_fails_changes_nothing(store: Store) -> None:
    with pytest.raises(sqlite3.OperationalError):
        migrate(connection(store), [*MIGRATIONS, "CREATE TABLE more (a); CREATE TABLE chats (b)"])
    assert connection(store).execute("SELECT 1 FROM sqlite_master WHERE name = 'more'").fetchone() is None


def test_a_lock_held_by_another_program_is_reported(opened: Opener) -> None:
    here, there = opened(), opened()
    connection(here).execute("PRAGMA busy_timeout = 10")
    connection(there).execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreBusy, match="locked"):
        here.create_chat()
    connection(there).execute("ROLLBACK")
    assert here.create_chat().letter == "a"


def test_chats_that_another_program_has_locked_are_shown(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = opened()
    there.create_chat("seen")
    connection(there).execute("BEGIN EXCLUSIVE")
    monkeypatch.setattr(opening, "TIMEOUT", 0.01)
    here = opened()
    assert [chat.title for chat in here.open_chats()] == ["seen"]
    assert "chats.db: another program has locked it; new messages are lost when" in notice(here)
    assert here.unsaved
    here.create_chat("not saved")
    connection(there).execute("ROLLBACK")
    assert [chat.title for chat in there.open_chats()] == ["seen"]


def test_a_write_transaction_excludes_other_writers_from_its_first_read(path: Path, opened: Opener) -> None:
    there = opened()
    connection(there).execute("PRAGMA busy_timeout = 10")

    def clock() -> float:
        """Called at the start of a transaction."""
        with pytest.raises(StoreBusy):
            there.create_chat()
        return 0.0

    here = Store(path, clock)
    assert here.create_chat().letter == "a"
    here.close()
    assert there.create_chat().letter == "b"


def test_a_programming_error_is_not_reported_as_disk_trouble(store: Store) -> None:
    chat = store.create_chat()
    wrong: Any = "robot"
    with pytest.raises(sqlite3.IntegrityError):
        store.append(chat.id, wrong, "hello")
    assert (store.notices, store.chat(chat.id).messages) == ([], [])


WRITER = """
    import os, sys, time
    from dataclasses import replace
    from pathlib import Path
    from minichat.chats.store import Store

    store = Store(Path(sys.argv[1]))
    chat = store.create_chat("long reply")
    reply = store.append(chat.id, "assistant", "", state="streaming")
    store.update(replace(reply, text="as far as it got"))
    print("saved", flush=True)
    time.sleep(60)
"""


def test_a_killed_program_loses_nothing_that_it_saved(path: Path, opened: Opener, root: Path) -> None:
    command = [sys.executable, "-c", textwrap.dedent(WRITER), str(path)]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "saved\n"
        running = opened().open_chats()[0].messages[0]
        os.kill(writer.pid, signal.SIGKILL)
    stopped = opened().open_chats()[0].messages[0]
    assert (running.state, running.text) == ("streaming", "as far as it got")
    assert (stopped.state, stopped.text) == ("stopped", "as far as it got")
    assert "quit while this reply was streaming" in stopped.error


def test_a_stream_of_another_machine_is_not_stopped(opened: Opener) -> None:
    store = opened()
    chat = store.create_chat()
    store.append(chat.id, "assistant", "", state="streaming")
    connection(store).execute("UPDATE messages SET writer = 'elsewhere 1'")
    assert opened().chat(chat.id).messages[0].state == "streaming"


MOUNTS = """\
/dev/vda / ext4 rw 0 0
proc /proc proc rw 0 0
server:/home /home nfs4 rw,vers=4.2 0 0
/dev/vdb /home/local xfs rw 0 0
server:/with\\040space /mnt/with\\040space cifs rw 0 0
me@host: /mnt/far fuse.sshfs rw 0 0
tmpfs /stack tmpfs rw 0 0
server:/stack /stack lustre rw 0 0
garbage
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/me/.local/state", "nfs4"),
        ("/home", "nfs4"),
        ("/homes/me", ""),
        ("/home/local/me", ""),
        ("/mnt/with space/x", "cifs"),
        ("/mnt/far/x", "sshfs"),
        ("/stack/x", "lustre"),
        ("/etc", ""),
    ],
)
def test_networked_file_systems_are_detected(tmp_path: Path, path: str, kind: str) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(MOUNTS)
    assert networked(Path(path), mounts) == kind
    assert networked(Path(path), tmp_path / "none") == ""


def journal(store: Store) -> str:
    return connection(store).execute("PRAGMA journal_mode").fetchone()[0]


def test_a_networked_home_gets_a_journal_that_works_there(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = opened()
    local.create_chat("from before")
    assert journal(local) == "wal"
    local.close()
    monkeypatch.setattr(opening, "networked", lambda path: "nfs4")
    here, there = opened(), opened()
    assert (journal(here), here.notices) == ("truncate", [])
    here.append(here.open_chats()[0].id, "user", "over the wire")
    assert there.changed()
    assert [message.text for message in there.open_chats()[0].messages] == ["over the wire"]


def test_a_networked_home_without_locks_is_reported(
    path: Path, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(connection: sqlite3.Connection) -> None:
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR_LOCK
        raise error

    broken = iter([fail, migrate, migrate])
    monkeypatch.setattr(opening, "networked", lambda path: "nfs4")
    monkeypatch.setattr(opening, "migrate", lambda connection: next(broken)(connection))
    store = opened()
    assert f"Cannot use {path}, on a networked file system (nfs4): disk I/O error" in notice(store)
    assert store.path is None
    assert isinstance(store.append(store.create_chat().id, "user", "hello"), Message)
