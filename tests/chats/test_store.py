"""The chat store as a screen uses it."""

import sqlite3
import stat
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from engine.api.params import Grammar, SamplingParams
from minichat.chats.errors import ChatChanged, ChatGone, MessageGone
from minichat.chats.letters import color_index, free_letter
from minichat.chats.model import Attachment, Edit, Message, ReplyStats, title_from
from minichat.chats.store import Store

from .conftest import Opener

STATS = ReplyStats(tokens=11, seconds=2.0, ttft=1.0, prompt_tokens=5, strategy="top-p")


def talk(store: Store, chat_id: int, messages: int) -> list[int]:
    """Append that many messages, alternating between user and assistant; return their ids."""
    roles = ("user", "assistant")
    return [store.append(chat_id, roles[n % 2], f"message {n}").id for n in range(messages)]


def test_everything_is_restored_after_a_restart(opened: Opener) -> None:
    first = opened()
    params = SamplingParams(temperature=0.3, stop=("END",), logit_bias=((7, -1.5),), seed=3)
    chat = first.create_chat("sums", "Be short.", params)
    asked = first.append(chat.id, "user", "1 + 1?")
    reply = first.append(chat.id, "assistant", "", state="streaming", params={"temperature": 0.3})
    reply = replace(reply, text="2", reasoning="one and one", state="done", stats=STATS)
    assert first.update(reply)
    first.keep_draft(chat.id, "and 2 + 2")
    first.close()

    (found,) = opened().open_chats()
    assert (found.title, found.system, found.params, found.draft) == (
        "sums",
        "Be short.",
        params,
        "and 2 + 2",
    )
    assert found.messages == [asked, reply]
    assert (found.letter, found.earlier, found.closed_at) == ("a", 0, None)


@pytest.mark.parametrize("typed", ["Be long.", ""])
def test_a_typed_system_prompt_is_kept_beside_the_one_in_use(opened: Opener, typed: str) -> None:
    store = opened()
    chat, other = store.create_chat("", "Be short."), store.create_chat()
    store.keep_typed_system(chat.id, "Be")
    store.keep_typed_system(chat.id, typed)
    found, untouched = opened().open_chats()
    assert (found.system, found.typed_system, untouched.typed_system) == ("Be short.", typed, None)
    store.keep_typed_system(chat.id, None)
    assert opened().chat(chat.id).typed_system is None
    store.delete_chat(other.id)
    with pytest.raises(ChatGone):
        store.keep_typed_system(other.id, typed)


def test_an_edit_is_kept_with_all_messages_after_its_own_and_goes_with_it(opened: Opener) -> None:
    store = opened()
    chat = store.create_chat()
    ids = talk(store, chat.id, 30)
    store.keep_edit(chat.id, Edit(ids[2], "other"))
    store.keep_edit(chat.id, Edit(ids[4], "another"))
    (found,) = opened().open_chats()
    assert found.edit == Edit(ids[4], "another")
    assert [message.id for message in found.messages] == ids[4:], "its message must be there to be replaced"
    store.add_turn(chat.id, ids[-1], [Message(0, "user", "another")], instead_of=ids[4])
    assert opened().chat(chat.id).edit is None
    store.keep_edit(chat.id, Edit(ids[4], "its message is gone"))
    assert opened().chat(chat.id).edit is None
    store.keep_edit(chat.id, Edit(ids[0], "x"))
    store.keep_edit(chat.id, None)
    assert opened().chat(chat.id).edit is None


def test_an_older_minichat_reads_and_deletes_a_chat_with_a_typed_system_prompt(opened: Opener) -> None:
    """It knows nothing of the table, and refuses a file with more migrations than its own."""
    store = opened()
    chat = store.create_chat("", "Be short.")
    store.keep_typed_system(chat.id, "Be long.")
    with closing(sqlite3.connect(store.path or "")) as older:
        older.execute("PRAGMA foreign_keys = ON")
        assert older.execute("SELECT max(version) FROM migrations").fetchone() == (5,)
        columns = [row[1] for row in older.execute("PRAGMA table_info(chats)")]
        assert columns[-2:] == ["adapter", "own_params"], "it could not repair a damaged file with others"
        older.execute("DELETE FROM chats")
        older.commit()
        assert older.execute("SELECT count(*) FROM typed_systems").fetchone() == (0,)


def test_the_last_messages_are_read_first_and_older_ones_in_pages(store: Store) -> None:
    chat = store.create_chat()
    ids = talk(store, chat.id, 55)
    (found,) = store.open_chats()
    assert [message.id for message in found.messages] == ids[-20:]
    assert found.earlier == 35
    page = store.older(chat.id, before=ids[35], limit=30)
    assert [message.id for message in page] == ids[5:35]
    assert [message.id for message in store.older(chat.id, before=page[0].id, limit=30)] == ids[:5]
    assert store.older(chat.id, before=ids[0]) == []
    assert [message.id for message in store.history(chat.id)] == ids


def test_a_closed_chat_can_be_reopened(store: Store) -> None:
    first, second = store.create_chat("one"), store.create_chat("two")
    store.close_chat(first.id)
    store.close_chat(second.id)
    assert store.open_chats() == []
    again = [store.reopen_chat(), store.reopen_chat(), store.reopen_chat()]
    assert [chat and chat.title for chat in again] == ["two", "one", None]
    store.close_chat(first.id)
    store.close_chat(second.id)
    named = store.reopen_chat(first.id)
    assert named is not None
    assert named.title == "one"
    assert named.closed_at is None


def test_a_letter_is_reused_but_never_twice_at_a_time(store: Store) -> None:
    chats = [store.create_chat() for _ in range(3)]
    assert [chat.letter for chat in chats] == ["a", "b", "c"]
    store.close_chat(chats[1].id)
    assert store.create_chat().letter == "b"
    again = store.reopen_chat(chats[1].id)
    assert again is not None
    assert again.letter == "d"
    store.close_chat(chats[0].id)
    kept = store.reopen_chat()
    assert kept is not None
    assert kept.letter == "a"


def test_there_are_letters_for_any_number_of_chats() -> None:
    taken: list[str] = []
    for _ in range(30):
        taken.append(free_letter(taken))
    assert taken[:3] + taken[25:28] == ["a", "b", "c", "z", "aa", "ab"]
    assert [color_index(letter) for letter in taken] == list(range(30))


def test_a_fork_holds_the_messages_up_to_the_given_one(store: Store) -> None:
    chat = store.create_chat("tale", "Be long.", SamplingParams(top_k=5))
    ids = talk(store, chat.id, 4)
    store.append(chat.id, "assistant", "half", state="streaming")
    with_file = store.append(chat.id, "user", "@a", attachments=(Attachment("a", "text"),))
    assert store.fork(chat.id, with_file.id).messages[-1].attachments == with_file.attachments
    store.delete_chat(store.open_chats()[-1].id)
    store.add_turn(chat.id, store.history(chat.id)[-1].id, (), instead_of=with_file.id)
    fork = store.fork(chat.id, ids[2])
    assert (fork.title, fork.system, fork.params, fork.letter) == (
        "tale (fork)",
        "Be long.",
        chat.params,
        "b",
    )
    assert [message.text for message in fork.messages] == ["message 0", "message 1", "message 2"]
    again = store.fork(fork.id, fork.messages[-1].id)
    last = store.fork(again.id, again.messages[-1].id)
    assert [again.title, last.title] == ["tale (fork 2)", "tale (fork 3)"]
    assert store.fork(fork.id, fork.messages[-1].id).title == "tale (fork 4)"  # the others are taken
    store.append(fork.id, "user", "another way")
    assert len(store.history(chat.id)) == 5
    whole = store.fork(chat.id, store.history(chat.id)[-1].id)
    assert whole.messages[-1].state == "stopped"


def test_a_fork_needs_a_message_of_the_chat(store: Store) -> None:
    chat, other = store.create_chat(), store.create_chat()
    (strange,) = talk(store, other.id, 1)
    with pytest.raises(MessageGone, match="the message was deleted"):
        store.fork(chat.id, strange)
    assert len(store.open_chats()) == 2


def test_the_key_of_a_deleted_chat_is_kept_until_its_blocks_are_gone(store: Store) -> None:
    """As by a screen that was killed between the two."""
    chat, other = store.create_chat(), store.create_chat()
    for each in (chat, other, other):
        store.delete_chat(each.id)
    assert store.deleted() == sorted([chat.key, other.key])
    store.forgotten(chat.key)
    assert store.deleted() == [other.key]


def test_a_deleted_chat_is_gone_permanently(store: Store, path: Path) -> None:
    chat = store.create_chat("secret")
    store.append(chat.id, "user", "the password is xyzzy")
    store.delete_chat(chat.id)
    assert not any(b"xyzzy" in each.read_bytes() for each in path.parent.iterdir()), "while it is open, too"
    store.delete_chat(chat.id)
    assert store.search("xyzzy") == []
    with pytest.raises(ChatGone):
        store.chat(chat.id)
    for gone in (lambda: store.append(chat.id, "user", "hm"), lambda: store.rename(chat.id, "hm")):
        with pytest.raises(ChatGone, match="the chat was deleted"):
            gone()
    store.close()
    assert b"xyzzy" not in path.read_bytes()


def test_a_turn_takes_the_place_of_a_message_and_all_after_it(store: Store) -> None:
    chat, other = store.create_chat(), store.create_chat()
    ids = talk(store, chat.id, 4)
    store.append(other.id, "user", "stays")
    said = (Message(0, "user", "instead"), Message(0, "assistant", "", state="streaming"))
    added = store.add_turn(chat.id, ids[-1], said, instead_of=ids[2], title="instead")
    assert [(each.role, each.text, each.state) for each in added] == [
        ("user", "instead", "done"),
        ("assistant", "", "streaming"),
    ]
    assert store.history(chat.id)[2:] == added and added[0].at < added[1].at
    assert [message.id for message in store.history(chat.id)[:2]] == ids[:2]
    assert (len(store.history(other.id)), store.chat(chat.id).title) == (1, "instead")
    message = store.history(other.id)[0]
    assert not store.update(replace(message, id=ids[3], text="late"))


def test_a_turn_reopens_a_chat_that_another_screen_has_closed(opened: Opener) -> None:
    here, there = opened(), opened()
    chat = here.create_chat()
    there.close_chat(chat.id)
    assert there.create_chat().letter == chat.letter
    here.add_turn(chat.id, 0, [Message(0, "user", "still here")])
    assert [each.letter for each in there.open_chats()] == ["b", "a"]


def test_of_two_turns_at_once_the_second_changes_nothing(opened: Opener) -> None:
    here, there = opened(), opened()
    chat = here.create_chat().id
    newest = 0  # none yet
    for _ in range(2):
        added = there.add_turn(chat, newest, [Message(0, "user", "first")])
        before = here.history(chat)
        with pytest.raises(ChatChanged):
            here.add_turn(chat, newest, [Message(0, "user", "x")], instead_of=newest, title="x")
        assert here.history(chat) == before and not here.chat(chat).title
        newest = added[-1].id


def test_the_list_shows_the_most_recently_used_chat_first(store: Store) -> None:
    quiet, talked = store.create_chat("quiet"), store.create_chat("talked")
    store.close_chat(talked.id)
    talk(store, talked.id, 3)
    store.create_chat("new")
    lines = store.listing()
    assert [(line.title, line.messages, line.closed_at is None) for line in lines] == [
        ("new", 0, True),
        ("talked", 3, False),
        ("quiet", 0, True),
    ]
    assert [line.title for line in store.listing(limit=1)] == ["new"]
    assert quiet.id == lines[-1].id


def test_two_screens_see_each_other_s_changes(opened: Opener) -> None:
    here, there = opened(), opened()
    assert not there.changed()
    chat = here.create_chat("ours")
    assert (there.changed(), there.changed(), here.changed()) == (True, False, False)
    reply = here.append(chat.id, "assistant", "", state="streaming")
    there.rename(chat.id, "theirs")
    there.tune(chat.id, chat.params, chat.params.changed(temperature=0))
    here.change_chat(chat.id, system="Be kind.")
    here.update(replace(reply, text="so far"))
    extra = there.append(chat.id, "user", "from over there")
    here.update(replace(reply, text="so far so good", state="done"))
    for store in (here, there):
        found = store.chat(chat.id)
        assert (found.title, found.system, found.params.temperature) == ("theirs", "Be kind.", 0)
        assert [message.text for message in found.messages] == ["so far so good", extra.text]


def test_two_screens_tune_one_chat(opened: Opener) -> None:
    here, there = opened(), opened()
    was = here.create_chat().params
    chat = here.open_chats()[0].id
    cool, narrow = was.changed(temperature=0.5), was.changed(top_k=7)
    assert there.tune(chat, was, cool) == cool
    assert here.tune(chat, was, narrow) == there.chat(chat).params == cool.changed(top_k=7)
    searching, formed = was.changed(beams=4), was.changed(grammar=Grammar("regex", "a+"))
    assert there.tune(chat, was, searching).beams == 4
    assert here.tune(chat, was, formed) == there.chat(chat).params == formed, "beams do not go with a grammar"


def test_a_chat_deleted_elsewhere_does_not_stop_a_stream(opened: Opener) -> None:
    here, there = opened(), opened()
    chat = here.create_chat()
    reply = here.append(chat.id, "assistant", "", state="streaming")
    there.delete_chat(chat.id)
    assert not here.update(replace(reply, text="too late"))


def test_threads_may_call_concurrently(store: Store) -> None:
    chat = store.create_chat()

    def append_many() -> None:
        for _ in range(20):
            store.append(chat.id, "user", "hello")

    threads = [threading.Thread(target=append_many, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(store.history(chat.id)) == 80


def test_other_users_cannot_read_the_files(store: Store, path: Path) -> None:
    store.create_chat()
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert modes == {"chats.db": 0o600, "chats.db-wal": 0o600, "chats.db-shm": 0o600}


def test_a_readable_folder_is_made_private(path: Path) -> None:
    path.parent.mkdir(parents=True, mode=0o755)
    path.touch(0o644)
    Store(path).close()
    assert [stat.S_IMODE(place.stat().st_mode) for place in (path.parent, path)] == [0o700, 0o600]


@pytest.mark.parametrize(
    "text", ["", "a\x00b", "\x1b[31mred\x1b[0m", "שלום 漢字 👩‍👩‍👧", "x" * 1_000_000, "\r\n \t"]
)
def test_any_text_is_restored_unchanged(store: Store, text: str) -> None:
    chat = store.create_chat(text, text)
    message = store.append(chat.id, "user", text, reasoning=text, error=text)
    found = store.chat(chat.id)
    assert (found.title, found.system, found.messages) == (text, text, [message])


def test_a_lone_surrogate_is_replaced(store: Store) -> None:
    chat = store.create_chat("half \ud83d", "whole \ud83d\ude00")
    store.append(chat.id, "user", "\udc80")
    found = store.chat(chat.id)
    assert (found.title, found.system, found.messages[0].text) == ("half �", "whole 😀", "�")


def test_a_store_without_a_path_is_in_memory() -> None:
    store = Store(None)
    chat = store.create_chat("short-lived")
    assert (store.path, store.notices, store.chat(chat.id).title) == (None, [], "short-lived")


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("\n  Explain   paged attention.\nThen sing.", "Explain paged attention."),
        ("one two three four five six seven eight nine", "one two three four five six seven…"),
        ("x" * 50, "x" * 39 + "…"),
        (" \n", ""),
    ],
)
def test_a_title_is_the_first_line(text: str, title: str) -> None:
    assert title_from(text) == title


def test_the_rate_counts_tokens_after_the_first() -> None:
    assert STATS.rate == 10
    assert replace(STATS, tokens=1).rate == 0
    assert replace(STATS, ttft=2.0).rate == 0


def test_a_fork_has_the_adapter_of_the_chat(store: Store) -> None:
    chat = store.create_chat("one")
    assert chat.adapter == ""
    store.change_chat(chat.id, adapter="sql")
    message = store.append(chat.id, "user", "x")
    assert store.fork(chat.id, message.id).adapter == store.chat(chat.id).adapter == "sql"
