"""Several replies to one question: the others become forks, also of a request that is stopped."""

from collections.abc import Callable
from typing import Any

from engine.api.events import Delta
from engine.api.params import SamplingParams
from engine.api.request import Finish
from minichat.clients.fake import FakeReply
from tests.app.conftest import run


@run
async def test_several_replies_open_in_forks(bench: Callable[..., Any]) -> None:
    start = SamplingParams(temperature=0.7, n=3)
    async with bench((200, 50), params=start) as it:
        reply = await it.say("hello")
        assert reply.params.n == 3
        first = it.app.chats.active
        put = reply.send
        for choice, text in ((0, "one"), (2, "<think>hm</think>three"), (1, "two")):
            put(Delta(reply.id, (choice,), text, choice=choice))
        await it.until(lambda: "one" in it.screen_text())
        assert len(it.app.chats) == 1, "the others open when they are complete"
        put(Delta(reply.id, finish=Finish.STOP, left=2))
        put(Delta(reply.id, (9,), " and a half", finish=Finish.LENGTH, choice=1, left=1))
        put(Delta(reply.id, finish=Finish.FAILED, error="no number", choice=2))
        await it.until(lambda: len(it.app.chats) == 3)
        assert it.app.chats.active is first and not first.streaming
        replies = [each.chat.messages[-1] for each in it.app.chats]
        assert [each.text for each in replies] == ["one", "two and a half", "three"]
        assert [each.state for each in replies] == ["done", "stopped", "failed"]
        assert replies[2].reasoning == "hm" and replies[2].error == "no number"
        await it.until(lambda: "two and a half" in it.screen_text())
        assert {each.role for each in it.app.store.chat(list(it.app.chats)[1].chat.id).messages} == {
            "user",
            "assistant",
        }
        assert it.app.store.chat(list(it.app.chats)[1].chat.id).messages[-1].text == "two and a half"


@run
async def test_each_of_several_replies_has_its_own_rate(bench: Callable[..., Any]) -> None:
    async with bench((200, 50), params=SamplingParams(temperature=0.7, n=2)) as it:
        reply = await it.say("hello")
        reply.send(Delta(reply.id, tuple(range(11)), "short", finish=Finish.STOP, left=1, decoding=0.5))
        reply.send(Delta(reply.id, tuple(range(101)), "long", finish=Finish.STOP, choice=1, decoding=4.0))
        await it.until(lambda: len(it.app.chats) == 2)
        short, long = (each.chat.messages[-1].stats for each in it.app.chats)
        assert (short.rate, long.rate) == (20, 25)
        assert (long.tokens, long.seconds) == (101, long.ttft + 4.0)


@run
async def test_a_listed_chat_is_gone_to_though_forks_have_come_before_it(bench: Callable[..., Any]) -> None:
    async with bench((120, 40), params=SamplingParams(temperature=0.7, n=2)) as it:
        reply = await it.say("hello")
        await it.pilot.press("ctrl+n")
        listed = it.app.chats.active
        await it.pilot.press("alt+1", "ctrl+p", *"gotob")
        reply.send(Delta(reply.id, (1,), "one", finish=Finish.STOP, left=1))
        reply.send(Delta(reply.id, (2,), "two", finish=Finish.STOP, choice=1))
        await it.until(lambda: len(it.app.chats) == 3)
        await it.pilot.press("enter")
        await it.until(lambda: it.app.screen is it.main)
        assert it.app.chats.active is listed


async def stopped(it: Any, *keys: str) -> FakeReply:
    """A request for three replies, two of which have begun, and which these keys stop."""
    reply = await it.say("hello")
    reply.send(Delta(reply.id, (1,), "one", choice=1))
    reply.send(Delta(reply.id, (0,), "zero"))
    await it.until(lambda: it.app.chats.active.run.others)
    reply.finished = True  # its end comes as the engine sends it
    await it.pilot.press(*keys)
    for choice in range(3):
        reply.send(Delta(reply.id, finish=Finish.ABORTED, choice=choice, left=2 - choice))
    return reply


@run
async def test_the_others_of_a_stopped_request_become_forks_as_far_as_they_got(
    bench: Callable[..., Any],
) -> None:
    async with bench(params=SamplingParams(temperature=0.7, n=3)) as it:
        await stopped(it, "escape")
        await it.until(lambda: len(it.app.chats) == 2)
        last = [each.chat.messages[-1] for each in it.app.chats]
        assert [(each.text, each.state) for each in last] == [("zero", "stopped"), ("one", "stopped")]
        assert len(it.app.chats.active.chat.messages) == 2 and it.texts()[-1][1] == "zero"


@run
async def test_a_closed_chat_leaves_no_forks(bench: Callable[..., Any]) -> None:
    async with bench(params=SamplingParams(temperature=0.7, n=3)) as it:
        await it.pilot.press("ctrl+n")
        await stopped(it, "alt+w")
        await it.until(lambda: any("its reply stopped" in each for each in it.notices()))
        assert len(it.app.chats) == 1 and not it.app.chats.active.chat.messages


@run
async def test_a_stopped_second_try_leaves_no_forks(bench: Callable[..., Any]) -> None:
    """The earlier reply comes back."""
    async with bench(params=SamplingParams(temperature=0.7, n=3)) as it:
        await it.answered(await it.say("hello"), "good day")
        await it.pilot.press("alt+r")
        await it.until(lambda: len(it.replies) == 2)
        reply = it.replies[-1]
        reply.send(Delta(reply.id, (1,), "one", choice=1))
        await it.until(lambda: it.app.chats.active.run.others)
        reply.finished = True
        await it.pilot.press("escape")
        for choice in range(3):
            reply.send(Delta(reply.id, finish=Finish.ABORTED, choice=choice, left=2 - choice))
        await it.until(lambda: it.texts()[-1][1] == "good day")
        assert len(it.app.chats) == 1


async def again(it: Any, *texts: str) -> None:
    """Regenerate the reply of the active chat, with as many samples as there are texts."""
    asked = len(it.replies)
    await it.pilot.press("alt+r")
    await it.until(lambda: len(it.replies) > asked)
    await sampled(it, *texts)


async def sampled(it: Any, *texts: str) -> None:
    """The samples of the last request, all to their ends."""
    reply, chat = it.replies[-1], it.app.chats.active
    for choice, text in enumerate(texts):
        reply.send(Delta(reply.id, (choice,), text, choice=choice))
    for choice in range(len(texts)):
        reply.send(Delta(reply.id, finish=Finish.STOP, choice=choice, left=len(texts) - 1 - choice))
    await it.until(lambda: not chat.streaming)


def last(it: Any) -> list[str]:
    return [each.chat.messages[-1].text for each in it.app.chats]


@run
async def test_new_tries_replace_the_others_that_nobody_has_written_in(bench: Callable[..., Any]) -> None:
    async with bench((200, 50), params=SamplingParams(temperature=0.7, n=3)) as it:
        await it.say("hello")
        await sampled(it, "one", "two", "three")
        await it.until(lambda: last(it) == ["one", "two", "three"])
        await again(it, "four", "five", "six")
        await it.until(lambda: last(it) == ["four", "five", "six"])
        assert "five" in it.screen_text() and "two" not in it.screen_text()
        second = list(it.app.chats)[1]
        assert [each.text for each in it.app.store.chat(second.chat.id).messages] == ["hello", "five"]
        assert second.versions.switch() and last(it) == ["four", "two", "six"], "it is an earlier version now"
        await again(it, "seven", "eight", "nine")
        assert last(it) == ["seven", "two", "eight", "nine"], "what somebody has chosen stays"
        it.app.chats.active.tune(SamplingParams(temperature=0.7, n=2))
        await again(it, "ten", "eleven")
        assert last(it) == ["ten", "eleven", "two", "eight", "nine"], "they are sampled otherwise"


@run
async def test_others_that_somebody_goes_on_with_stay(bench: Callable[..., Any]) -> None:
    async with bench((200, 50), params=SamplingParams(temperature=0.7, n=4)) as it:
        await it.say("hello")
        await sampled(it, "one", "two", "three", "four")
        await it.until(lambda: len(it.app.chats) == 4)
        first, second, third, _ = it.app.chats
        it.main.go_to(second)
        await it.say("go on")
        await sampled(it, "and so on")
        it.main.go_to(third)
        it.main.prompt.put("a draft")
        it.main.go_to(first)
        await again(it, "1", "2", "3", "4")
        assert sorted(last(it)) == ["1", "2", "3", "4", "and so on", "three"]
        await it.say("another question")
        await sampled(it, "5", "6", "7", "8")
        assert sorted(last(it)) == ["2", "3", "4", "5", "6", "7", "8", "and so on", "three"], (
            "the old ones stay"
        )
