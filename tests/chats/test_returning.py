"""Chats that moved to memory, as on a full disk, return to their file."""

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from minichat.chats import returning
from minichat.chats.store import Store

from .conftest import Opener
from .test_trouble import connection


def fill(store: Store) -> None:
    """Let the store's next large write fail, as on a full disk."""
    (pages,) = connection(store).execute("PRAGMA page_count").fetchone()
    connection(store).execute(f"PRAGMA max_page_count = {pages}")


def test_chats_return_to_their_file_once_there_is_room(
    store: Store, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat, gone = store.create_chat("before"), store.create_chat("gone")
    fill(store)
    monkeypatch.setattr(returning, "_free", lambda folder: 0)
    first = store.append(chat.id, "user", "x" * 100_000)
    store.delete_chat(gone.id)
    monkeypatch.setattr(returning, "_free", lambda folder: 10**9)
    store.append(chat.id, "assistant", "early")
    assert store.unsaved, "it tries at every write"
    monkeypatch.setattr(returning, "_AGAIN", 0.0)
    store.append(chat.id, "user", "late")
    assert not store.unsaved
    assert "is full" in store.notices[0] and "are saved in" in store.notices[1]
    there = opened()
    assert [each.title for each in there.open_chats()] == ["before"]
    assert [each.text for each in there.history(chat.id)] == [first.text, "early", "late"]
    assert len(there.deleted()) == 1


def test_chats_return_to_their_file_at_the_end(store: Store, opened: Opener) -> None:
    chat = store.create_chat("before")
    fill(store)
    store.append(chat.id, "user", "x" * 100_000)
    assert store.unsaved
    store.close()
    assert len(opened().history(chat.id)) == 1


def test_chats_do_not_return_over_the_work_of_another_screen(store: Store, opened: Opener) -> None:
    chat, other = store.create_chat("before"), opened()
    fill(store)
    store.append(chat.id, "user", "x" * 100_000)
    other.append(chat.id, "user", "theirs")
    store.close()
    assert [each.text for each in opened().history(chat.id)] == ["theirs"]


def test_a_disk_that_stays_full_is_tried_again(store: Store, path: Path, opened: Opener) -> None:
    chat = store.create_chat("before")
    fill(store)
    store.append(chat.id, "user", "x" * 100_000)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    assert store._database._return is not None
    assert store._database._return.attempt(connection(store)) is None
    holder.close()
    store.close()
    assert len(opened().history(chat.id)) == 1


def test_what_is_lost_at_the_end(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(returning, "_free", lambda folder: 0)
    chat, other = store.create_chat("before"), store.create_chat("other")
    store.append(chat.id, "user", "saved")
    reply = store.append(chat.id, "assistant", "", state="streaming")
    store.append(other.id, "user", "saved, too")
    assert store.lost() == {}
    fill(store)
    store.update(replace(reply, text="x" * 100_000, state="stopped"))
    store.append(chat.id, "user", "more")
    store.append(store.create_chat().id, "user", "new")
    assert store.lost() == {"before": 2, "": 1}
    monkeypatch.setattr(returning, "_free", lambda folder: 10**9)
    assert store.lost() == {}


def test_all_is_lost_without_a_file(tmp_path: Path) -> None:
    (tmp_path / "folder").touch()
    store = Store(tmp_path / "folder" / "chats.db")
    chat = store.create_chat("before")
    assert store.lost() == {}
    store.append(chat.id, "user", "hello")
    assert store.lost() == {"before": 1}
    store.close()
