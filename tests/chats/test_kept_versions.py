"""The versions of a reply in the store: all that were regenerated, until the chat goes on."""

import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from minichat.chats import opening, queries, returning
from minichat.chats.errors import ChatChanged
from minichat.chats.model import Message, State
from minichat.chats.store import Store
from minichat.chats.versions import Versions

from .conftest import Opener
from .test_returning import fill
from .test_trouble import connection


def asked(store: Store) -> int:
    """A chat with a question and its first reply; return its id."""
    chat = store.create_chat()
    store.append(chat.id, "user", "hello")
    store.append(chat.id, "assistant", "one")
    return chat.id


def again(store: Store, chat_id: int, text: str, state: State = "done") -> Message:
    """Regenerate the last reply."""
    last = store.history(chat_id)[-1].id
    [reply] = store.add_turn(chat_id, last, [Message(0, "assistant", text, state=state)], instead_of=last)
    return reply


def texts(store: Store, chat_id: int) -> list[str]:
    """The versions that are not shown, in the order in which they were shown, and the one that is."""
    others = [version[0].text for version in store.replaced(chat_id)[1]]
    return [*others, store.history(chat_id)[-1].text]


def test_all_versions_are_there_after_a_restart_in_the_same_order(opened: Opener) -> None:
    store = opened()
    chat = asked(store)
    again(store, chat, "two")
    again(store, chat, "three")
    assert texts(opened(), chat) == ["one", "two", "three"]
    assert Versions(store.chat(chat), store).switch()
    assert texts(opened(), chat) == ["three", "one", "two"]
    assert Versions(store.chat(chat), store).switch(back=False)
    there = opened()
    assert texts(there, chat) == ["three", "two", "one"]
    versions = Versions(there.chat(chat), there)
    assert (versions.another, versions.complete, versions.place) == (True, True, "1 of 3")


def test_a_version_keeps_what_followed_it(store: Store) -> None:
    chat = asked(store)
    store.append(chat, "user", "more")
    store.append(chat, "assistant", "the end")
    long = store.history(chat)
    store.add_turn(chat, long[-1].id, [Message(0, "assistant", "two")], instead_of=long[1].id)
    again(store, chat, "three")
    loaded = store.chat(chat)
    versions = Versions(loaded, store)
    versions.switch()
    versions.switch()
    assert store.history(chat) == loaded.messages == long


def test_they_end_when_the_chat_goes_on_or_another_reply_is_regenerated(store: Store) -> None:
    chat = asked(store)
    again(store, chat, "two")
    again(store, chat, "three")
    fork = store.fork(chat, store.history(chat)[-1].id)
    assert store.replaced(fork.id) == (0, [])
    store.add_turn(chat, store.history(chat)[-1].id, [Message(0, "user", "more")])
    assert store.replaced(chat) == (0, [])
    store.append(chat, "assistant", "fine")
    again(store, chat, "finer")
    again(store, chat, "finest")
    first = store.history(chat)[1]
    newest = store.history(chat)[-1].id
    store.add_turn(chat, newest, [Message(0, "assistant", "four")], instead_of=first.id)
    assert texts(store, chat) == ["three", "four"]


def test_an_empty_reply_is_no_version(store: Store) -> None:
    chat = asked(store)
    again(store, chat, "two")
    again(store, chat, "", "failed")
    again(store, chat, "three")
    assert texts(store, chat) == ["one", "two", "three"]
    again(store, chat, "", "stopped")
    assert Versions(store.chat(chat), store).restore()
    assert texts(store, chat) == ["one", "two", "three"]


@pytest.mark.parametrize("stubs", [0, 3, 30])
def test_the_oldest_go_but_stopped_ones_before_complete_ones(store: Store, stubs: int) -> None:
    chat = asked(store)
    for number in range(30):
        again(store, chat, str(number), "stopped" if number < stubs else "done")
    kept = texts(store, chat)
    assert len(kept) == queries.MOST_VERSIONS == 20
    if stubs == 30:
        assert kept == ["one", *(str(number) for number in range(11, 30))]
    else:
        assert kept == [str(number) for number in range(10, 30)]


def test_a_deleted_chat_leaves_no_version(store: Store, path: Path) -> None:
    chat = asked(store)
    for text in ("xyzzy", "three", "four"):
        again(store, chat, text)
    store.delete_chat(chat)
    assert not any(b"xyzzy" in each.read_bytes() for each in path.parent.iterdir())


def test_a_reopened_chat_has_its_versions(store: Store) -> None:
    chat = asked(store)
    again(store, chat, "two")
    again(store, chat, "three")
    store.close_chat(chat)
    assert store.reopen_chat() is not None
    assert texts(store, chat) == ["one", "two", "three"]


def test_another_screen_has_changed_them(opened: Opener) -> None:
    here, there = opened(), opened()
    chat = asked(here)
    again(here, chat, "two")
    ours = Versions(loaded := here.chat(chat), here)
    assert ours.another
    again(there, chat, "three")
    with pytest.raises(ChatChanged):
        ours.switch()
    loaded.messages = here.history(chat)
    assert ours.place == "3 of 3" and ours.switch()
    assert texts(there, chat) == ["three", "one", "two"]
    newest = there.history(chat)[-1]
    there.add_turn(chat, newest.id, [Message(0, "user", "more")])
    with pytest.raises(ChatChanged):
        here.replace_end(chat, here.history(chat)[-1].id, loaded.messages[0].id)
    assert [each.text for each in here.history(chat)] == ["hello", "two", "more"]


# Older and damaged databases


def old(store: Store) -> sqlite3.Connection:
    """Its database as an older minichat would have left it."""
    connection(store).execute("DROP TABLE earlier_versions")
    return connection(store)


def test_an_older_database_keeps_its_version(opened: Opener) -> None:
    store = opened()
    chat = asked(store)
    again(store, chat, "two")
    old(store)
    store.close()
    store = opened()
    assert store.notices == []
    assert texts(store, chat) == ["one", "two"]
    again(store, chat, "three")
    assert texts(opened(), chat) == ["one", "two", "three"]


def test_an_older_minichat_finds_the_last_one_and_what_it_changes_counts(opened: Opener) -> None:
    """It reads all rows of the chat in `versions` as one version, and knows of no other table."""
    store = opened()
    chat = asked(store)
    again(store, chat, "two")
    three = again(store, chat, "three")
    with closing(sqlite3.connect(store.path or "")) as older:
        assert older.execute("SELECT text FROM versions WHERE chat_id = ?", (chat,)).fetchall() == [("two",)]
        older.execute("DELETE FROM versions")  # the chat has gone on
        older.commit()
    store.append(chat, "user", "more")
    assert store.replaced(chat) == (0, [])
    assert not Versions(store.chat(chat), store).another
    store.add_turn(chat, store.history(chat)[-1].id, [Message(0, "assistant", "four")], instead_of=three.id)
    assert texts(store, chat) == ["three", "four"]


def test_an_older_minichat_beside_this_one_may_show_an_earlier_version(opened: Opener) -> None:
    """It had read the first version before the others were written, and puts it back from its memory."""
    store = opened()
    chat = asked(store)
    one = store.history(chat)[-1]
    again(store, chat, "two")
    three = again(store, chat, "three")
    with closing(sqlite3.connect(store.path or "")) as older:
        older.execute("DELETE FROM versions")
        columns = "id, chat_id, role, at, state, writer, error, stats, params, text, reasoning, attachments"
        keep = f"INSERT INTO versions ({columns}, after) SELECT {columns}, ? FROM messages WHERE id = ?"
        older.execute(keep, (one.id - 1, three.id))
        older.execute("UPDATE messages SET id = ?, text = 'one' WHERE id = ?", (one.id, three.id))
        older.commit()
    assert Versions(store.chat(chat), store).switch()
    assert texts(store, chat) == ["one", "three"]
    again(store, chat, "four")
    assert texts(store, chat) == ["one", "three", "four"]


def test_versions_of_a_damaged_database_are_kept_except_those_of_lost_chats(
    path: Path, opened: Opener
) -> None:
    store = opened()
    chat, lost = asked(store), asked(store)
    for each in (chat, lost):
        again(store, each, "two")
        again(store, each, "three")
    connection(store).execute("PRAGMA foreign_keys = OFF")
    for table in ("chats WHERE id", "messages WHERE chat_id"):
        connection(store).execute(f"DELETE FROM {table} = ?", (lost,))
    store.close()
    opening.repaired(path, path.stat().st_ino).connection.close()
    store = opened()
    assert texts(store, chat) == ["one", "two", "three"]
    assert store.replaced(lost) == (0, [])
    assert connection(store).execute("PRAGMA foreign_key_check").fetchall() == []


def test_the_others_are_kept_if_the_last_one_is_damaged(path: Path, opened: Opener) -> None:
    store = opened()
    chat = asked(store)
    again(store, chat, "two")
    again(store, chat, "three")
    connection(store).execute("DELETE FROM versions")
    store.close()
    opening.repaired(path, path.stat().st_ino).connection.close()
    assert texts(opened(), chat) == ["one", "three"]


def stopped_last(store: Store) -> int:
    """A chat whose newest message is a version: it was stopped, and a complete one came back."""
    chat = asked(store)
    again(store, chat, "a stub", "stopped")
    assert Versions(store.chat(chat), store).restore()
    return chat


def check_ids(store: Store, chat: int) -> None:
    other = asked(store)
    again(store, other, "two")
    again(store, other, "three")
    assert texts(store, other) == ["one", "two", "three"]
    assert Versions(store.chat(chat), store).switch()
    assert texts(store, chat) == ["one", "a stub"]


def test_new_messages_have_other_ids_than_versions_after_a_repair(path: Path, opened: Opener) -> None:
    store = opened()
    chat = stopped_last(store)
    store.close()
    opening.repaired(path, path.stat().st_ino).connection.close()
    check_ids(opened(), chat)


def test_new_messages_have_other_ids_than_versions_after_a_full_disk(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store)
    store.create_chat("x" * 100_000)
    assert store.unsaved
    chat = stopped_last(store)
    monkeypatch.setattr(returning, "_AGAIN", 0.0)
    store.keep_draft(chat, "")
    assert not store.unsaved
    check_ids(store, chat)


# A kill

WRITER = """
    import sys
    from dataclasses import replace
    from pathlib import Path
    from minichat.chats.model import Message
    from minichat.chats.store import Store
    from minichat.chats.versions import Versions

    store, chat = Store(Path(sys.argv[1])), int(sys.argv[2])
    print("ready", flush=True)
    number = 0
    while True:
        number += 1
        last = store.history(chat)[-1].id
        turn = [Message(0, "assistant", "", state="streaming")]
        [reply] = store.add_turn(chat, last, turn, instead_of=last)
        store.update(replace(reply, text=f"half of {number}"))
        store.update(replace(reply, text=f"reply {number}", state="done"))
        Versions(store.chat(chat), store).switch()
        print(number, flush=True)
"""


@pytest.mark.parametrize("lines", [1, 4, 25])
def test_a_kill_at_any_moment_leaves_complete_versions(
    path: Path, opened: Opener, root: Path, lines: int
) -> None:
    chat = asked(opened())
    command = [sys.executable, "-c", textwrap.dedent(WRITER), str(path), str(chat)]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        for _ in range(lines):
            last = writer.stdout.readline()
        os.kill(writer.pid, signal.SIGKILL)
    store = opened()
    assert store.notices == []
    begun = 0 if last == "ready\n" else int(last)
    loaded = store.chat(chat)
    versions = Versions(loaded, store)
    if loaded.messages[-1].interrupted:
        versions.restore()
    kept = texts(store, chat)
    assert len(kept) == len(set(kept)) >= min(begun + 1, queries.MOST_VERSIONS - 1)
    assert loaded.messages[-1].state == "done"
    assert connection(store).execute("PRAGMA integrity_check").fetchone()[0] == "ok"
    assert connection(store).execute("PRAGMA foreign_key_check").fetchall() == []
    for _ in kept:
        versions.switch()
    assert texts(store, chat) == kept


def test_a_killed_reply_gives_way_to_the_last_complete_one(opened: Opener) -> None:
    store = opened()
    chat = asked(store)
    again(store, chat, "two")
    reply = again(store, chat, "", "streaming")
    store.update(replace(reply, text="a stub"))
    assert texts(opened(), chat) == ["one", "two", "a stub"]
    connection(store).execute("UPDATE messages SET writer = ? WHERE id = ?", ("", reply.id))
    there = opened()
    loaded = there.chat(chat)
    assert loaded.messages[-1].state == "stopped"
    assert Versions(loaded, there).restore()
    assert texts(there, chat) == ["one", "a stub", "two"]
