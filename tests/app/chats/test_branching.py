"""Forking a running reply: both replies continue, independently."""

from collections.abc import Callable
from typing import Any

from engine.api.errors import UnknownRequest
from engine.api.params import SamplingParams
from engine.api.request import Finish
from tests.app.conftest import run


@run
async def test_both_replies_continue(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        first = await it.say("hello")
        first.say("Once")
        first.say(" upon")
        await it.until(lambda: "Once upon" in it.screen_text())
        await it.pilot.press("alt+k")
        await it.until(lambda: len(it.replies) == 2)
        second = it.replies[1]
        first.say(" a time")
        second.say(" the hill")
        for reply in (first, second):
            reply.end(Finish.STOP)
        await it.until(lambda: not it.app.chats.streaming)
        parent, child = it.app.chats
        assert parent.chat.messages[-1].text == "Once upon a time"
        assert child.chat.messages[-1].text == "Once upon the hill"
        assert child.chat.messages[-1].state == "done"
        stats = child.chat.messages[-1].stats
        assert (stats.tokens, stats.copied) == (3, 2), "the reply holds both parts"
        assert "Once upon the hill" in it.screen_text()
        assert "3 tok  2 copied" in it.screen_text()
        stored = it.app.store.chat(child.chat.id).messages
        assert [each.text for each in stored] == ["hello", "Once upon the hill"]


@run
async def test_a_beam_search_is_not_forked_while_it_runs(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        it.app.chats.active.tune(SamplingParams(beams=4))
        reply = await it.say("hello")
        await it.pilot.press("alt+k")
        said = "A beam search has no fork before its end. Press Esc to stop"
        await it.until(lambda: it.notices() == [said])
        assert len(it.app.chats) == 1 and len(it.replies) == 1
        await it.answered(reply)
        await it.pilot.press("alt+k")
        await it.until(lambda: len(it.app.chats) == 2)


@run
async def test_a_fork_waits_for_text_that_is_not_yet_shown(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        first = await it.say("hello")
        first.say("One")
        await it.until(lambda: "One" in it.screen_text())
        it.app.chats.services.pacer.rate = 3  # the screen is slow
        first.say(" two")
        first.say(" three")
        await it.pilot.press("alt+k")
        await it.until(lambda: len(it.replies) == 2)
        assert it.replies[1].prompt_tokens == first.prompt_tokens + 3
        it.replies[1].say(" four")
        it.replies[1].end()
        await it.until(lambda: it.texts()[-1] == ("assistant", "One two three four", "done"))


@run
async def test_a_fork_of_a_reply_that_has_just_ended_is_its_copy(bench: Callable[..., Any]) -> None:
    """The engine has ended it; the screen does not know yet."""

    async def refuse(id: int, *_: object, **__: object) -> None:
        raise UnknownRequest(f"no request {id} is alive")

    async with bench() as it:
        first = await it.say("hello")
        first.say("One")
        await it.until(lambda: "One" in it.screen_text())
        it.backend.fork = refuse
        await it.pilot.press("alt+k")
        first.say(" two")
        first.end()
        await it.until(lambda: not it.app.chats.streaming)
        parent, child = (each.chat.messages[-1] for each in it.app.chats)
        assert (child.text, child.state, child.error) == (parent.text, "done", "") == ("One two", "done", "")
        assert child.stats.tokens == child.stats.copied == 2


@run
async def test_tokens_that_arrived_together_are_split_at_the_fork(
    bench: Callable[..., Any],
) -> None:
    async with bench() as it:
        first = await it.say("hello")
        first.say("abcde", tokens=5)  # the backend's tokens are single characters
        first.tokens = 3  # the engine had sampled three of them when it forked
        await it.until(lambda: "abcde" in it.screen_text())
        await it.pilot.press("alt+k")
        await it.until(lambda: len(it.replies) == 2)
        it.replies[1].say("!")
        it.replies[1].end()
        await it.until(lambda: it.texts()[-1] == ("assistant", "abc!", "done"))


@run
async def test_tokens_of_a_fork_are_traced(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        first = await it.say("hello")
        first.say("a")
        first.say("b")
        await it.until(lambda: "ab" in it.screen_text())
        await it.pilot.press("alt+k")
        await it.until(lambda: it.app.chats.active.traces)
        it.replies[1].say("c")
        it.replies[1].end()
        await it.until(lambda: it.texts()[-1][1] == "abc")
        [trace] = it.app.chats.active.traces.values()
        question, answer = it.app.chats.active.chat.messages
        assert (trace.parts, trace.reply, len(trace.tokens)) == (((question.id, 5),), answer.id, 3)
        assert trace.prompt_tokens == first.prompt_tokens


@run
async def test_a_fork_of_a_running_fork_has_all_of_its_text(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        first = await it.say("hello")
        first.say("Once")
        await it.until(lambda: "Once" in it.screen_text())
        await it.pilot.press("alt+k")
        await it.until(lambda: len(it.replies) == 2)
        it.replies[1].say(" upon")
        it.replies[1].say(" a hill")
        await it.until(lambda: "Once upon a hill" in it.screen_text())
        await it.pilot.press("alt+k")
        await it.until(lambda: len(it.replies) == 3)
        it.replies[2].say(" lived")
        for reply in it.replies:
            reply.end()
        await it.until(lambda: not it.app.chats.streaming)
        assert it.texts()[-1] == ("assistant", "Once upon a hill lived", "done")
        stats = it.app.chats.active.chat.messages[-1].stats
        assert (stats.tokens, stats.copied) == (4, 3)


@run
async def test_a_fork_goes_on_once_the_engine_has_the_message(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        it.app.chats.services.ready.clear()  # the engine still loads
        await it.pilot.press(*"hi", "enter", "alt+k", "alt+k")
        await it.until(lambda: len(list(it.app.chats)) == 3)
        it.app.chats.services.ready.set()
        await it.until(lambda: len(it.replies) == 3)
        for number, reply in enumerate(it.replies):
            reply.say(f"text {number}")
            reply.end()
        await it.until(lambda: not it.app.chats.streaming)
        last = [each.chat.messages[-1] for each in it.app.chats]
        assert [each.state for each in last] == ["done"] * 3
        assert {each.text for each in last} == {"text 0", "text 1", "text 2"}


@run
async def test_a_fork_of_a_message_that_is_never_sent_ends_with_it(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        it.app.chats.services.ready.clear()
        await it.pilot.press(*"hi", "enter", "alt+k")
        await it.until(lambda: len(list(it.app.chats)) == 2)
        parent = next(iter(it.app.chats))
        assert parent.stop()
        it.app.chats.services.ready.set()
        await it.until(lambda: not it.app.chats.streaming)
        assert [each.chat.messages[-1].state for each in it.app.chats] == ["stopped", "stopped"]
        assert len(it.replies) == 0
