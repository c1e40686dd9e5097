"""Text and KV blocks: which text a block holds, by content, against a plain search."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from engine.api.layout import TokenSpan
from engine.api.snapshot import BlockView
from minichat.clients.fake import FakeBackend
from minichat.session.shared_blocks import blocks_of, same, texts_of
from minichat.session.traces import NOTHING, Known, Trace
from tests.app.conftest import run, snapshot

SIZE = 4


def known(tokens: list[int], message: int) -> Known:
    """One token per character of one message."""
    return Known(np.array(tokens), tuple(TokenSpan(message, at, at + 1) for at in range(len(tokens))))


def view(held: dict[int, tuple[int, int, int]], size: int = 16) -> BlockView:
    """By block: (owner, place, tokens in it)."""
    columns = {name: np.full(size, -1 if name == "owner" else 0) for name in ("owner", "place", "filled")}
    for block, (owner, place, filled) in held.items():
        columns["owner"][block], columns["place"][block], columns["filled"][block] = owner, place, filled
    zeros = np.zeros(size, int)
    return BlockView(size, zeros, columns["owner"], columns["filled"], zeros, 0, 0, 0, columns["place"])


texts = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=14), min_size=1, max_size=4)


@given(texts, st.data())
def test_both_directions_against_a_plain_search(tokens: list[list[int]], data: st.DataObject) -> None:
    requests = {number: known(each, 100 + number) for number, each in enumerate(tokens)}
    held, block = {}, 0
    for number, each in enumerate(tokens):
        for place in range(-(-len(each) // SIZE)):
            if block < 16 and data.draw(st.booleans()):
                held[block] = (number, place, min(SIZE, len(each) - place * SIZE))
                block += 1
    shown = view(held)
    for block, (owner, place, filled) in held.items():
        prefix = tokens[owner][: place * SIZE + filled]
        sharing = [number for number, each in enumerate(tokens) if each[: len(prefix)] == prefix]
        spans = texts_of([block], shown, SIZE, requests)
        assert spans == {100 + number: [(place * SIZE, place * SIZE + filled)] for number in sharing}
    number = data.draw(st.integers(0, len(tokens) - 1))
    at = data.draw(st.integers(0, len(tokens[number]) - 1))
    expected = {
        block
        for block, (owner, place, filled) in held.items()
        if place * SIZE <= at < place * SIZE + filled and tokens[owner][: at + 1] == tokens[number][: at + 1]
    }
    assert blocks_of({100 + number: [(at, at + 1)]}, shown, SIZE, requests) == expected


def test_text_that_was_never_read_is_unknown() -> None:
    shown = view({0: (7, 0, 4), 1: (0, 0, 4)})
    requests = {0: known([1, 2, 3, 4], 100)}
    assert blocks_of({5: [(0, 3)]}, shown, SIZE, requests) is None
    assert texts_of([0, 2], shown, SIZE, requests) == {}
    assert blocks_of({100: [(0, 3)]}, view({}), SIZE, requests) == set(), "read, but evicted from the cache"


def test_a_snapshot_without_places_shows_nothing() -> None:
    """As one of the first edition, which an old engine or a recording may send."""
    requests, shown = {0: known([1, 1, 1], 100)}, view({0: (0, 0, 3)})
    old = replace(shown, place=BlockView(0, *[np.zeros(0, int)] * 4, 0, 0, 0).place)
    assert texts_of([0], shown, SIZE, requests) and not texts_of([0], old, SIZE, requests)
    assert blocks_of({100: [(0, 1)]}, shown, SIZE, requests) == {0}
    assert blocks_of({100: [(0, 1)]}, old, SIZE, requests) == set()


def test_the_length_of_a_shared_prefix() -> None:
    assert same(np.array([1, 2, 3]), np.array([1, 2, 4])) == 2
    assert same(np.array([1, 2]), np.array([1, 2, 4])) == 2
    assert same(np.array([1]), np.array([], int)) == 0


@run
async def test_a_trace_maps_tokens_to_messages() -> None:
    backend = FakeBackend([snapshot()])
    prompt = [{"role": "system", "content": "ab"}, {"role": "user", "content": "cd"}]
    trace = Trace(3, prompt, ((-1, 0), (17, 2)), 6, 18)
    trace.tokens, trace.begins, trace.shown = [9, 9, 9, 9], 2, 1  # two of reasoning, one cut by a stop
    learned = await trace.learn(backend)
    assert learned.places == (
        *[TokenSpan(-1)] * 4, TokenSpan(17, 0, 1), TokenSpan(17, 1, 2),
        TokenSpan(-1), TokenSpan(-1), TokenSpan(18, 0, 1), TokenSpan(-1),
    )  # fmt: skip
    assert len(learned.ids) == 10
    assert await trace.learn(backend) is learned
    trace.prompt_tokens = 5
    trace.tokens.append(9)
    assert await trace.learn(backend) is NOTHING, "not the prompt that the engine read"


@run
async def test_a_plain_text_prompt_is_split_at_its_messages() -> None:
    trace = Trace(3, "abcde", ((1, 2), (2, 0), (3, 3)), 6, 4)
    learned = await trace.learn(FakeBackend([snapshot()]))
    assert learned.places == (
        TokenSpan(-1), TokenSpan(1, 0, 1), TokenSpan(1, 1, 2),
        TokenSpan(3, 0, 1), TokenSpan(3, 1, 2), TokenSpan(3, 2, 3),
    )  # fmt: skip


@run
async def test_a_chat_keeps_the_trace_of_its_request(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        reply = await it.say("hello")
        reply.prompt_tokens = 6
        it.app.chats.active.traces[reply.id].prompt_tokens = 6
        reply.say("<think>x</think>", tokens=3)
        reply.say("so", tokens=1)
        await it.until(lambda: it.texts()[-1][1] == "" and it.app.chats.active.run.parts.text == "so")
        [trace] = it.app.chats.active.traces.values()
        assert (trace.request, len(trace.tokens), trace.begins, trace.shown) == (reply.id, 4, 16, 2)
        learned = await trace.learn(it.backend)
        question, answer = it.app.chats.active.chat.messages
        assert learned.places[1:6] == tuple(TokenSpan(question.id, at, at + 1) for at in range(5))
        assert trace.reply == answer.id
