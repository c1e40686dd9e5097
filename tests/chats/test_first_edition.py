"""Chats that the first edition stored still open. `first_edition.sql` is a dump of its database."""

import sqlite3
from pathlib import Path

import pytest

from engine.api.params import SamplingParams
from minichat.chats.model import Attachment, ReplyStats
from minichat.chats.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    file = tmp_path / "chats.db"
    with sqlite3.connect(file) as database:
        database.executescript(Path(__file__).with_name("first_edition.sql").read_text(encoding="utf-8"))
    database.close()
    return Store(file)


def test_chats_open_with_their_settings(store: Store) -> None:
    chat, fork = store.open_chats()
    assert (chat.letter, chat.system, fork.title, fork.draft) == (
        "a",
        "Answer briefly.",
        "A fork",
        "not sent yet",
    )
    assert chat.params == SamplingParams(temperature=0.4, top_p=0.9, stop=("END",), seed=7)
    [closed] = [line for line in store.listing() if line.closed_at is not None]
    assert closed.title == "closed one"


def test_messages_keep_what_belongs_to_them(store: Store) -> None:
    chat, fork = store.open_chats()
    question, answer, *later = chat.messages
    assert question.attachments == (Attachment("notes.txt", "a block\nholds 16 tokens\n"),)
    assert (answer.text, answer.reasoning) == ("A KV block holds 16 tokens.", "The note says so.")
    assert answer.stats == ReplyStats(9, 0.5, 0.1, 40, "top-p 0.9", 0, 3)
    assert answer.params == {"temperature": 0.4, "top_p": 0.9}
    assert [(each.text, each.state) for each in later] == [
        ("And 🎈?", "done"),
        ("cut", "stopped"),
        ("again", "done"),
        ("", "failed"),
        ("half a rep", "streaming"),  # its program may run on another machine
    ]
    assert [each.text for each in fork.messages] == [question.text, answer.text]


def test_they_can_be_continued_and_reopened(store: Store) -> None:
    chat, _ = store.open_chats()
    store.append(chat.id, "user", "more")
    [closed] = [line for line in store.listing() if line.closed_at is not None]
    store.reopen_chat(closed.id)
    store.close()
    again = Store(store.path)
    assert again.open_chats()[0].messages[-1].text == "more"
    assert "closed one" in {each.title for each in again.open_chats()}
    again.close()
