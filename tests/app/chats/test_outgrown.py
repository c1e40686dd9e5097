"""A chat longer than its model's context continues without its first messages, and shows that."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from engine.api.errors import RequestTooLong
from engine.api.params import SamplingParams
from engine.api.request import Finish
from minichat.chats.model import Message
from minichat.clients.fake import FakeBackend, FakeReply
from minichat.clients.protocol import Past
from minichat.session.run import RunningReply
from tests.app.conftest import Bench, run, snapshot


class ShortContext(FakeBackend):
    """Its context holds `most` characters."""

    most = 30

    async def submit(self, prompt: Any, *more: Any, **named: Any) -> Any:
        if sum(len(each["content"]) for each in prompt) > self.most:
            raise RequestTooLong("it is too long")
        return await super().submit(prompt, *more, **named)


def read(it: Bench) -> list[str]:
    return [each["content"] for each in it.replies[-1].prompt]


@run
async def test_the_older_half_is_left_out_and_stays_left_out_for_many_turns(
    bench: Callable[..., Any],
) -> None:
    async with bench((120, 40), backend=ShortContext([snapshot()])) as it:
        for turn in range(8):
            await it.answered(await it.say(f"word{turn}"), "fine")
            it.app.chats.active.instruct("Be")
            assert read(it)[-1] == f"word{turn}"
            beginning = {2: "word0", 3: "word2", 4: "word2", 5: "word4"}
            if turn in beginning:
                assert read(it)[:2] == ["Be", beginning[turn]]
        assert "from message 5" in it.screen_text()
        assert any("no longer sees the first 4 messages" in notice for notice in it.notices())


@run
async def test_a_chat_that_is_short_but_for_its_reply_says_so(bench: Callable[..., Any]) -> None:
    async with bench((120, 40), backend=ShortContext([snapshot()])) as it:
        it.app.chats.active.tune(SamplingParams(max_tokens=60))
        for turn in range(3):
            await it.answered(await it.say(f"words{turn}"), "and more")
        said = "A with 60 tokens for its reply (max tokens) is longer than the context: it no longer sees"
        assert any(each.startswith(said) for each in it.notices())


@run
async def test_a_message_longer_than_the_context_is_refused(bench: Callable[..., Any]) -> None:
    async with bench(backend=ShortContext([snapshot()])) as it:
        await it.answered(await it.say("word"))
        it.main.prompt.put("x" * 31)
        await it.pilot.press("enter")
        await it.until(lambda: it.texts()[-1][2] == "failed")
        assert it.app.chats.active.reading.left_out == 0
        it.app.chats.active.edit()
        await it.answered(await it.say("better"))
        assert read(it) == ["word", "fine", "better"]


@run
async def test_a_reply_that_filled_the_context_makes_room_for_the_next(bench: Callable[..., Any]) -> None:
    async with bench(backend=FakeBackend([snapshot()])) as it:
        reply = await it.say("one")
        reply.say("long")
        reply.end(Finish.LENGTH)
        await it.until(lambda: not it.app.chats.active.streaming)
        await it.answered(await it.say("two"))
        assert read(it) == ["two"]
        await it.answered(await it.say("three"))
        assert read(it) == ["two", "fine", "three"]
        await it.pilot.press("alt+r")
        await it.until(lambda: len(it.replies) == 4)
        assert read(it) == ["two", "fine", "three"]


@run
async def test_a_larger_model_reads_the_whole_chat(bench: Callable[..., Any]) -> None:
    async with bench(backend=ShortContext([snapshot()])) as it:
        for turn in range(4):
            await it.answered(await it.say(f"words{turn}"))
        assert it.app.chats.active.reading.left_out
        it.backend.most = 1000
        it.main.forget_requests()
        await it.answered(await it.say("all"))
        assert read(it)[0] == "words0"


@run
@pytest.mark.parametrize("fork", [False, True])
@pytest.mark.parametrize(("kind", "context"), [(ShortContext, 1000), (FakeBackend, 30)])
async def test_after_a_start_and_in_a_fork_a_chat_is_read_from_where_it_was(
    bench: Callable[..., Any], kind: type[FakeBackend], context: int, fork: bool
) -> None:
    """The blocks of these tokens may be kept; those of a shorter history are not."""
    async with bench((120, 40), backend=kind([snapshot(max_context=context)])) as it:
        for turn in range(4):
            reply = await it.say(f"word{turn}")
            reply.prompt_tokens = 28
            await it.answered(reply, "fine")
            await it.until(lambda: it.app.chats.active.reading.context)
        assert read(it)[0] == "word2"
        if fork:
            chat = it.app.chats.active
            await it.pilot.press("alt+k")
            await it.until(lambda: it.app.chats.active is not chat)
        else:
            it.main.forget_requests()
        await it.until(lambda: it.app.chats.active.reading.context)
        await it.answered(await it.say("word4"), "fine")
        assert read(it)[0] == "word2"


@run
@pytest.mark.parametrize("most_tokens", [None, 5])
async def test_after_a_smaller_context_a_chat_is_read_from_where_it_was_before(
    bench: Callable[..., Any], most_tokens: int | None
) -> None:
    async with bench((120, 40), backend=ShortContext([snapshot()])) as it:
        if most_tokens:
            it.app.chats.active.tune(SamplingParams(max_tokens=most_tokens))

        async def begins(numbers: range, context: int, most: int, tokens: int) -> str:
            it.backend.most, it.backend._snapshots = most, [snapshot(max_context=context)]
            it.main.forget_requests()
            it.main.wake()
            await it.until(lambda: it.app.chats.active.reading.context == context)
            for turn in numbers:
                reply = await it.say(f"words{turn}")
                reply.prompt_tokens = tokens
                await it.answered(reply, "fine")
            return read(it)[0]

        assert await begins(range(31), 1000, 300, 900) == "words15"
        assert await begins(range(31, 33), 40, 30, 30) in ("words30", "words31")
        assert await begins(range(33, 34), 1000, 300, 900) == "words15"


@run
@pytest.mark.parametrize(
    ("took", "length", "most", "reads"),
    [
        (90, 170, None, ["x" * 170]),  # 21 tokens are left
        (90, 160, None, ["go", "fine", "x" * 160]),  # 31 are
        (20, 170, None, ["go", "fine", "x" * 170]),  # the last reply took no more than 20
        (2, 182, None, ["x" * 182]),  # 10 are, and the next reply may be longer than the last
        (2, 170, None, ["go", "fine", "x" * 170]),
        (90, 170, 20, ["go", "fine", "x" * 170]),  # max_tokens says what the reply takes
    ],
)
async def test_a_reply_with_too_little_room_makes_room_first(
    bench: Callable[..., Any], took: int, length: int, most: int | None, reads: list[str]
) -> None:
    """Messages have a token for each letter, and one more."""
    async with bench(backend=FakeBackend([snapshot(max_context=200)])) as it:
        reply = await it.say("go")
        reply.prompt_tokens = 100
        reply.say("fine", took)
        reply.end()
        await it.until(lambda: not it.app.chats.active.streaming)
        await it.until(lambda: it.app.chats.active.reading.context)
        it.app.chats.active.tune(replace(it.app.chats.active.chat.params, max_tokens=most))
        await it.say("x" * length)
        assert read(it) == reads
        said = ["A with room for a reply is longer than the context: it no longer sees the first 2 messages"]
        assert it.notices() == (said if len(reads) == 1 else [])


def test_the_next_screen_knows_what_a_running_reply_lacks() -> None:
    message = Message(3, "assistant", "half", state="streaming", params={"temperature": 0.5})
    first = RunningReply(message, 0.0, saved=0.0, adapter="", new=SamplingParams())
    first.leave_out(2)
    later = RunningReply(first.message, 9.0, saved=9.0, adapter="", new=SamplingParams())
    later.go_on(Past(FakeReply(7, "", SamplingParams()), age=9.0, first=None, lasted=None), 9.0)
    stats = later.stats(10.0)
    assert stats.left_out == 2
    ended = later.settled(later.message, Finish.STOP, "", stats)
    assert ended.stats == stats and ended.params == {"temperature": 0.5}
