"""A broadcast: where its replies first diverge, and how likely that was."""

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api.events import TokenLogprob
from engine.api.request import Finish
from minichat.session.divergence import Comparison
from tests.app.conftest import run

WHO = "ABCD"


def logprobs_at(token: int, *others: int) -> TokenLogprob:
    """The sampled token has probability 1/2, each of the others 1/4."""
    top = ((token, math.log(0.5)), *((other, math.log(0.25)) for other in others))
    return TokenLogprob(token, math.log(0.5), 1, top)


replies = st.lists(st.lists(st.integers(0, 1), max_size=6), min_size=2, max_size=4)


def test_a_divergence_that_a_shorter_reply_reveals_is_reported_for_the_others() -> None:
    """B's token shows that A and C, which has ended, differ after it."""
    found: list[str] = []
    comparison = Comparison(("A", "B", "C"), lambda _, each: found.append(each))
    comparison.take("A", [logprobs_at(0), logprobs_at(0)])
    comparison.take("C", [logprobs_at(0)])
    comparison.end("C")
    assert (comparison.at, found) == (None, [])
    comparison.take("B", [logprobs_at(0)])
    assert (comparison.at, found) == (1, ["A", "C"])


def test_a_reply_that_is_cut_off_is_no_longer_compared() -> None:
    found: list[str] = []
    comparison = Comparison("ABC", lambda _, each: found.append(each))
    comparison.take("A", [logprobs_at(0)])
    comparison.leave("A")
    for who in "BC":
        comparison.take(who, [logprobs_at(0), logprobs_at(ord(who))])
    assert (comparison.at, sorted({*found})) == (1, ["B", "C"])
    assert [each.who for each in comparison.divergence("B").others] == ["C"]


@given(replies, st.data())
def test_the_divergence_does_not_depend_on_the_order_of_arrival(
    replies: list[list[int]], data: st.DataObject
) -> None:
    """Chunks of any size in any order, against a plain search through the complete replies."""
    who = WHO[: len(replies)]
    notified: list[str] = []
    comparison = Comparison(who, lambda _, each: notified.append(each))
    left = {each: [logprobs_at(token) for token in tokens] for each, tokens in zip(who, replies, strict=True)}
    going = list(who)
    while going:
        each = data.draw(st.sampled_from(going))
        count = data.draw(st.integers(1, 3))
        comparison.take(each, left[each][:count])
        left[each] = left[each][count:]
        if not left[each]:
            comparison.end(each)
            going.remove(each)
        if comparison.at is not None:
            assert (
                comparison.divergence(each if comparison.reached(each) else notified[-1]).at == comparison.at
            )
    columns = [[tokens[at] if at < len(tokens) else None for tokens in replies] for at in range(7)]
    expected = next((at for at, column in enumerate(columns) if len(set(column)) > 1), None)
    assert comparison.at == expected
    assert set(notified) == (set() if expected is None else set(who))
    if expected is not None:
        for each, token in zip(who, columns[expected], strict=True):
            seen = comparison.divergence(each)
            assert seen.token == token
            assert {(other.who, other.token) for other in seen.others} == {
                (other, theirs)
                for other, theirs in zip(who, columns[expected], strict=True)
                if theirs != token
            }


def test_the_likelihoods_are_those_of_the_reply_shown() -> None:
    comparison = Comparison("ABC", lambda *_: None)
    comparison.take("A", [logprobs_at(1), logprobs_at(2, 3)])
    comparison.take("B", [logprobs_at(1), logprobs_at(3)])
    comparison.take("C", [logprobs_at(1)])
    comparison.end("C")
    seen = comparison.divergence("A")
    assert (seen.at, seen.token, round(seen.share, 3)) == (1, 2, 0.5)
    assert [(each.who, each.token) for each in seen.others] == [("B", 3), ("C", None)]
    assert [each.share and round(each.share, 3) for each in seen.others] == [0.25, None]
    assert comparison.divergence("B").others[0].share is None, "token 2 was not in its top tokens"


def test_tokens_without_probabilities_are_compared() -> None:
    """A beam search has none."""
    comparison = Comparison("AB", lambda *_: None)
    comparison.take("A", [1, 2])
    comparison.take("B", [logprobs_at(1)])
    comparison.end("A")
    assert comparison.at is None
    comparison.take("B", [logprobs_at(3, 2)])
    seen = comparison.divergence("A")
    assert (seen.at, seen.token, seen.share) == (1, 2, None)
    assert [(each.who, each.token, each.share) for each in seen.others] == [("B", 3, None)]
    other = comparison.divergence("B").others[0]
    assert (other.token, other.share and round(other.share, 3)) == (2, 0.25)


async def broadcast(it: Any) -> None:
    await it.pilot.press("ctrl+n", "alt+a")
    it.main.prompt.put("go")
    await it.pilot.press("enter")
    await it.until(lambda: len(it.replies) == 2)
    for reply in it.replies:  # the fake prompt: one token before the message, and one per character
        reply.prompt_tokens = 3
        for each in it.app.chats:
            if reply.id in each.traces:
                each.traces[reply.id].prompt_tokens = 3


@run
async def test_both_panes_show_the_divergence(bench: Callable[..., Any]) -> None:
    async with bench((200, 50)) as it:
        await broadcast(it)
        first, second = it.replies
        assert first.params.logprobs == second.params.logprobs == 10
        for sign in "ab":
            first.say(sign, logprobs=[logprobs_at(ord(sign))])
        second.say("a", logprobs=[logprobs_at(ord("a"))])
        await it.until(lambda: it.app.chats.active.chat.messages[-1] and it.app.chats.active.run.tokens == 1)
        assert "Replies diverge at token" not in it.screen_text(), "the other reply may still match"
        second.say("c", logprobs=[logprobs_at(ord("c"), ord("b"))])
        await it.until(lambda: it.screen_text().count("Replies diverge at token 2") == 2)
        assert [str(pane.divergence.content).strip() for pane in it.main.panes] == [
            'Replies diverge at token 2: "·word98" 50.0%, B "·word99" not in the top 10',
            'Replies diverge at token 2: "·word99" 50.0%, A "·word98" 25.0% here',
        ]
        await it.until(lambda: [marks(pane) for pane in it.main.panes] == [["b"], ["c"]])
        first.say("d")
        await it.until(lambda: len(it.backend.updates) == 2)
        assert sorted(it.backend.updates, key=str) == [(0, {"logprobs": None}), (1, {"logprobs": None})], (
            "log-probabilities cost time"
        )


@run
@pytest.mark.parametrize("keys", [["alt+r"], ["alt+e", "enter"]], ids=["regenerated", "edited"])
async def test_nothing_is_said_of_a_reply_that_was_replaced(
    bench: Callable[..., Any], keys: list[str]
) -> None:
    async with bench((200, 50)) as it:
        await diverge(it)
        await it.pilot.press("alt+a", *keys)
        await it.until(lambda: len(it.replies) == 3)
        assert "Replies diverge" not in it.screen_text()
        assert [marks(pane) for pane in it.main.panes] == [[], []]


@run
@pytest.mark.parametrize("keys", [["alt+w"], ["alt+d", "down", "enter"]], ids=["closed", "deleted"])
async def test_nothing_is_said_of_a_chat_that_is_gone(bench: Callable[..., Any], keys: list[str]) -> None:
    async with bench((200, 50)) as it:
        await diverge(it)
        await it.pilot.press(*keys)
        await it.until(lambda: len(it.main.panes) == 1)
        assert "Replies diverge" not in it.screen_text()
        assert marks(it.main.pane) == []


async def diverge(it: Any) -> None:
    """Two replies end that differ in their first token."""
    await broadcast(it)
    for reply, sign in zip(it.replies, "ab", strict=True):
        reply.say(sign, logprobs=[logprobs_at(ord(sign))])
        reply.end()
    await it.until(lambda: it.screen_text().count("Replies diverge at token 1") == 2)
    await it.until(lambda: [marks(pane) for pane in it.main.panes] == [["a"], ["b"]])


def marks(pane: Any) -> list[str]:
    """The highlighted tokens in a pane."""
    run = pane.conversation.run
    text = run.parts.text if run else pane.conversation.chat.messages[-1].text
    spans = pane.transcript.highlights["parted"].spans
    return [text[start:end] for each in spans.values() for start, end in each]


@run
async def test_a_beam_search_does_not_end_where_it_begins(bench: Callable[..., Any]) -> None:
    """Its tokens have no probabilities, so nothing is said about those of others either."""
    async with bench((200, 50)) as it:
        await broadcast(it)
        first, second = it.replies
        for sign in "ab":
            first.say(sign)  # token 0
        for token in (0, 98):
            second.say("a", logprobs=[logprobs_at(token, 0)])
        await it.until(lambda: it.screen_text().count("Replies diverge at token 2") == 2)
        assert [str(pane.divergence.content).strip() for pane in it.main.panes] == [
            'Replies diverge at token 2: "·word0", B "·word98"',
            'Replies diverge at token 2: "·word98" 50.0%, A "·word0" 25.0% here',
        ]


@run
async def test_identical_replies_show_nothing(bench: Callable[..., Any]) -> None:
    async with bench((200, 50)) as it:
        await broadcast(it)
        for reply in it.replies:
            reply.say("a", logprobs=[logprobs_at(97)])
            reply.end()
        await it.until(lambda: not it.app.chats.streaming)
        assert "diverge" not in it.screen_text()


@run
async def test_a_shorter_reply_diverges_at_its_end_and_the_next_question_clears_it(
    bench: Callable[..., Any],
) -> None:
    async with bench((200, 50)) as it:
        await broadcast(it)
        for reply in it.replies:
            reply.say("a", logprobs=[logprobs_at(97)])
        it.replies[0].end()
        it.replies[1].say("b", logprobs=[logprobs_at(98)])
        it.replies[1].end()
        await it.until(lambda: "A ends" in it.screen_text())
        assert str(it.main.panes[0].divergence.content).strip() == (
            'Replies diverge at token 2: ends, B "·word98"'
        ), "the probabilities at the end of a reply are not known"
        await it.until(lambda: not it.app.chats.streaming)
        await it.pilot.press("alt+a")
        await it.say("on")
        await it.until(lambda: it.screen_text().count("Replies diverge at token") == 1)


@run
@pytest.mark.parametrize("finish", [Finish.ABORTED, Finish.FAILED])
async def test_a_reply_that_is_stopped_or_fails_does_not_diverge_there(
    bench: Callable[..., Any], finish: Finish
) -> None:
    async with bench((200, 50)) as it:
        await broadcast(it)
        first, second = it.replies
        for reply in it.replies:
            reply.say("a", logprobs=[logprobs_at(97)])
        second.end(finish)
        await it.until(lambda: len(it.app.chats.streaming) == 1)
        first.say("b", logprobs=[logprobs_at(98)])
        await it.until(lambda: "ab" in it.screen_text())
        assert "diverge" not in it.screen_text()
        assert it.backend.updates == [(0, {"logprobs": None})], "there is nothing left to compare"
        first.end()
        await it.until(lambda: not it.app.chats.streaming)
        assert "diverge" not in it.screen_text()
