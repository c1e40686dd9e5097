import json
import time
from dataclasses import asdict, replace
from threading import Thread
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api.params import Grammar, SamplingParams
from minichat.chats.errors import BadExport, StoreBusy
from minichat.chats.export import _parsed, from_json, to_json, to_markdown
from minichat.chats.model import ROLES, Attachment, Chat, Message, ReplyStats
from minichat.chats.rows import plain_params
from minichat.chats.store import Store

text = st.text(max_size=20)
seconds = st.floats(0, 4e9)
counts = st.integers(0, 10**14)
stats = st.builds(
    ReplyStats,
    tokens=counts,
    seconds=seconds,
    ttft=seconds,
    prompt_tokens=counts,
    strategy=text,
    left_out=counts,
    copied=counts,
    blocks=counts,
    loaded=counts,
    tier=text,
    saved=seconds,
    decoding=seconds,
)
params = st.builds(
    SamplingParams,
    temperature=st.floats(0, 100),
    seed=st.none() | st.integers(0, 2**64 - 1),
    stop=st.lists(st.text(min_size=1, max_size=5), max_size=2).map(tuple),
    logit_bias=st.dictionaries(st.integers(0, 99), st.floats(-100, 100), max_size=2),
)
messages = st.builds(
    Message,
    id=st.just(0),
    role=st.sampled_from(ROLES),
    text=text,
    reasoning=text,
    at=seconds,
    state=st.sampled_from(["done", "stopped", "failed"]),
    error=text,
    stats=st.none() | stats,
    params=st.none() | params.map(plain_params),
    attachments=st.lists(st.builds(Attachment, text, text), max_size=2).map(tuple),
)
chats = st.builds(
    Chat,
    id=st.just(0),
    letter=st.just(""),
    title=text,
    system=text,
    params=params,
    messages=st.lists(messages, max_size=4),
    created_at=seconds,
    adapter=text,
)


@given(chats)
def test_json_round_trip(chat: Chat) -> None:
    assert from_json(to_json(chat)) == chat


def test_a_chat_is_moved_from_one_store_to_another(store: Store) -> None:
    chat = store.create_chat("moving", "Be brief.", SamplingParams(min_p=0.1))
    store.append(chat.id, "user", "hello", attachments=(Attachment("a.py", "print()\n"),))
    store.append(chat.id, "assistant", "hi", stats=ReplyStats(2, 0.5, 0.25, 7, "greedy", copied=1))
    store.append(chat.id, "assistant", "well", state="streaming")
    store.change_chat(chat.id, adapter="sql")
    target = Store(None)
    target.create_chat("already here")
    moved = target.import_json(store.export_json(chat.id))
    assert (moved.letter, moved.title, moved.params) == ("b", "moving", chat.params)
    assert moved.adapter == "sql"
    assert moved.created_at == store.chat(chat.id).created_at
    original = store.history(chat.id)
    original[-1] = replace(original[-1], state="stopped")
    assert [replace(message, id=0) for message in moved.messages] == [
        replace(message, id=0) for message in original
    ]


def broken(**changes: Any) -> str:
    """An export with one message, in which a field is replaced."""
    store = Store(None, clock=lambda: 1.8e9)
    chat = store.create_chat("t")
    store.append(chat.id, "user", "hello")
    found = json.loads(store.export_json(chat.id))
    message = {**found["messages"][0], **changes.pop("message", {})}
    return json.dumps({**found, "messages": [message], **changes})


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("{", "invalid JSON: .* line 1 column 2"),
        ("[" * 100_000, "invalid JSON"),
        ("[]", "not an exported chat"),
        (broken(format="other"), '"format" must be "minichat chat"'),
        (broken(version=2), '"version" must be 1, got 2'),
        (broken(title=None), "title must be a text, got null"),
        (broken(created_at=True), "created_at must be a number, got true"),
        (broken(created_at=1e300), r"created_at must be seconds since 1970, got 1e\+300"),
        (broken(params={"temprature": 1}), "params.temprature: is not a sampling parameter"),
        (broken(params={"top_p": 7}), "params.top_p: must be a number above 0 to 1, not 7"),
        (broken(messages={}), "messages must be a list"),
        (broken(messages=[3]), r"messages\[0\] must be a message, got 3"),
        (
            broken(message={"role": "tool"}),
            r'messages\[0\].role must be one of system, user, .*, got "tool"',
        ),
        (broken(message={"state": "lost"}), r"messages\[0\].state must be one of"),
        (broken(message={"at": "now"}), r'messages\[0\].at must be a number, got "now"'),
        (broken(message={"at": float("nan")}), r"messages\[0\].at must be seconds since 1970"),
        (broken(message={"attachments": [3]}), r"messages\[0\].attachments\[0\] must be an attachment"),
        (broken(message={"attachments": [{"name": "a"}]}), r"attachments\[0\].text must be a text"),
        (broken(message={"stats": {"tokens": 1.5}}), r"messages\[0\].stats.tokens must be a whole number"),
        (
            broken(message={"stats": {"tokens": 10**400}}),
            r"stats.tokens must be a whole number below 1e\+15, got 10",
        ),
        (
            broken(message={"stats": {"tokens": 1, "seconds": float("nan")}}),
            r"stats.seconds must be a number",
        ),
        (broken(message={"stats": {"tokens": 1, "seconds": 10**400}}), r"stats.seconds must be a number"),
        (broken(created_at=10**400), "created_at must be seconds since 1970, got 10"),
    ],
)
def test_the_error_locates_the_fault_in_a_broken_export(store: Store, given: str, sentence: str) -> None:
    with pytest.raises(BadExport, match=sentence):
        store.import_json(given)
    assert store.listing() == []


def test_half_of_a_character_is_replaced_wherever_it_is(store: Store) -> None:
    files, params = [{"name": "a\ud800", "text": "b\ud800"}], {"stop": ["\ud800"]}
    stats = asdict(ReplyStats(2, 0.5, 0.25, 7, "\ud800"))
    given = broken(params=params, message={"attachments": files, "stats": stats, "params": params})
    chat = store.import_json(given)
    for exported in (store.export_json(chat.id), store.export_markdown(chat.id)):
        assert exported.encode().decode() == exported
    assert store.history(chat.id)[0].attachments == (Attachment("a\ufffd", "b\ufffd"),)


def test_settings_of_a_reply_that_this_version_does_not_know_are_left_out(store: Store) -> None:
    params = {"beams": "x", "top_k": None, "warmth": 3, "min_p": 0.1}
    chat = store.import_json(broken(message={"role": "assistant", "params": params}))
    assert store.history(chat.id)[0].params == {"min_p": 0.1}


def test_markdown_is_readable(store: Store) -> None:
    chat = store.create_chat("Sums", "Be\nshort.", SamplingParams(temperature=0.5))
    store.append(chat.id, "user", "1 + 1?")
    reply = store.append(chat.id, "assistant", "", state="streaming")
    stats = ReplyStats(1, 0.26, 0.1, 4, "top-p")
    store.update(
        replace(reply, text="```\n2\n```", reasoning="Easy.", state="failed", error="oops", stats=stats)
    )
    page = store.export_markdown(chat.id)
    assert page.startswith("# Sums\n\n- started 20")
    assert "\n- decoding: temperature 0.5\n- system prompt: Be short.\n\n## You, 20" in page
    assert "\n\n1 + 1?\n\n## Reply, 20" in page
    assert "<details><summary>Reasoning</summary>\n\nEasy.\n\n</details>\n\n```\n2\n```" in page
    assert page.endswith("\n\n*failed; oops; 1 token in 0.3 s, top-p*\n")


def test_markdown_names_the_settings_and_the_adapter() -> None:
    """An unset temperature is the engine's, 1, and not what F3 calls the default: that of a new chat."""
    grammar = Grammar("regex", "[a-z]+")
    for params, line in (
        (SamplingParams(), "temperature 1.0"),
        (SamplingParams(temperature=0.7, max_tokens=9), "temperature 0.7, max_tokens 9"),
        (
            SamplingParams(stop=("E\n",), grammar=grammar),
            'temperature 1.0, stop ["E\\n"], grammar {"kind": "regex", ',
        ),
    ):
        page = to_markdown(Chat(1, "a", "t", params=params, adapter="sql"))
        assert f"\n- decoding: {line}" in page
        assert "\n- adapter: sql\n" in page


def test_others_can_write_during_a_long_import(store: Store) -> None:
    other = store.create_chat("other")
    messages = [Message(0, "user", "hay " * 2_000) for _ in range(2_000)]
    importing = Thread(target=store.import_json, args=[to_json(Chat(0, "", "long", messages=messages))])
    importing.start()
    while len(store.listing()) == 1:
        time.sleep(0.001)
    writes = 0
    while importing.is_alive():
        store.keep_draft(other.id, f"{writes}")
        unfinished = [each for each in store.listing() if each.closed_at is not None]
        assert [each.title for each in unfinished] in ([], ["long (import not finished)"])
        writes += bool(unfinished)
    assert writes > 2
    assert [each.title for each in store.open_chats()] == ["other", "long"]
    assert len(store.history(store.open_chats()[1].id)) == 2_000


def test_an_import_that_fails_leaves_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise StoreBusy("locked")

    monkeypatch.setattr("minichat.chats.queries.insert_message", full)
    with pytest.raises(StoreBusy):
        store.import_json(to_json(Chat(0, "", "long", messages=[Message(0, "user", "hay")])))
    assert store.listing() == []


def test_others_run_while_a_long_export_is_read() -> None:
    text = json.dumps({"messages": [{"text": "hay " * 50, "stats": {"tokens": 3}}] * 40_000})
    beats, parsing = 0, Thread(target=_parsed, args=[text])
    parsing.start()
    while parsing.is_alive():
        time.sleep(0.001)
        beats += 1
    assert beats > 4


def test_markdown_names_the_tokens_that_a_fork_copied() -> None:
    """They took none of its time."""
    stats = ReplyStats(122, 0.26, 0.1, 4, "top-p", copied=100)
    page = to_markdown(Chat(1, "a", "", messages=[Message(1, "assistant", "so", stats=stats)]))
    assert page.endswith("\n\n*122 tokens (100 copied) in 0.3 s, top-p*\n")
