"""Stepping through the tokens of a reply: the likely tokens at each, and forking with another one."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from engine.api.errors import BadParams, EngineError
from engine.api.events import Delta, Queued, TokenLogprob
from engine.api.layout import PromptLayout, TokenSpan
from engine.api.params import SamplingParams
from engine.api.request import Finish
from minichat.clients.fake import FakeBackend, FakeReply
from minichat.clients.protocol import Prompt
from minichat.session.resuming import tag_of
from minichat.session.walk import start_walk
from minichat.ui.monitor.owners import Owner
from tests.app.conftest import Bench, run, snapshot

TOP = tuple((token, math.log(share)) for token, share in ((97, 0.5), (98, 0.25), (99, 0.125)))


class Letters(FakeBackend):
    """Its tokens are characters; a request for one token always returns the same three candidates."""

    full = False
    closes = False  # whether a template token follows the last message

    async def layout(self, prompt: Prompt) -> PromptLayout:
        found = await super().layout(prompt)
        more = ((1,), (TokenSpan(-1),)) if self.closes else ((), ())
        return PromptLayout(found.ids + more[0], found.places + more[1])

    def words(self, tokens: Sequence[int]) -> list[str]:
        return [*map(chr, tokens)]

    async def submit(
        self,
        prompt: Any,
        params: SamplingParams,
        *,
        tag: str = "",
        reply_prefix: Sequence[int] = (),
        **named: Any,
    ) -> FakeReply:
        if self.full:
            raise EngineError("the engine is full")
        reply = await super().submit(prompt, params, tag=tag, reply_prefix=reply_prefix, **named)
        reply.prompt_tokens = len((await self.layout(prompt)).ids)
        if params.max_tokens == len(reply_prefix) + 1:  # a position is viewed
            drawn = TokenLogprob(97, TOP[0][1], 1, TOP)
            reply.send(Delta(reply.id, (97,), "a", (drawn,), Finish.LENGTH))
        return reply


def send(reply: FakeReply, text: str, share: float | None = None) -> None:
    """Send the text letter by letter, with each letter's probability if `share` is given."""
    for letter in text:
        drawn = (TokenLogprob(ord(letter), math.log(share), 1, TOP),) if share else ()
        reply.send(Delta(reply.id, (ord(letter),), letter, drawn))


async def replied(it: Bench, text: str, share: float | None = None) -> FakeReply:
    reply = await it.say("go")
    send(reply, text, share)
    reply.end()
    await it.until(lambda: not it.app.chats.active.streaming)
    return reply


def picker(it: Bench) -> Any:
    return it.picker


def letters() -> Letters:
    return Letters([snapshot()])


@run
async def test_another_token_creates_a_fork_that_continues_from_it(bench: Callable[..., Any]) -> None:
    async with bench(backend=letters()) as it:
        first = await replied(it, "xabc")
        source = it.app.chats.active
        await it.pilot.press("alt+c")
        await it.until(lambda: picker(it).rows)
        await it.pilot.press("alt+c")
        assert not picker(it).display and it.main.prompt.has_focus
        await it.pilot.press("alt+c")
        await it.until(lambda: picker(it).rows)
        await it.until(lambda: "token 1 of 4" in it.screen_text() and "xabc" in it.screen_text())
        assert not any(row.chosen for row in picker(it).rows), "x is not one of the three"
        await it.until(lambda: "token 1 of 4  under 12.5%" in it.screen_text())
        assert picker(it).shares[0] == pytest.approx(0.125), "at most as likely as the last of them"
        await it.pilot.press("right", "right")  # to the b
        await it.until(lambda: any(row.chosen for row in picker(it).rows))
        assert picker(it).shares[2] == pytest.approx(0.25)
        assert picker(it).choice == 1 and it.main.transcript.highlights["picked"].spans == {
            source.chat.messages[-1].id: [(2, 3)]
        }
        asked = len(it.replies)
        await it.pilot.press("down", "enter")  # replace b with c
        await it.until(lambda: len(it.replies) > asked and it.app.chats.active.run.reply)
        again = it.replies[-1]
        assert (again.prompt, again.reply_prefix) == (first.prompt, (*map(ord, "xac"),))
        assert it.app.chats.active is not source and source.chat.messages[-1].text == "xabc"
        await it.until(lambda: "xac" in it.screen_text())
        send(again, "de")
        again.end()
        await it.until(lambda: not it.app.chats.active.streaming)
        assert it.texts()[-1] == ("assistant", "xacde", "done")
        trace = next(reversed(it.app.chats.active.traces.values()))
        assert (bytes(trace.tokens), trace.reply) == (b"xacde", it.app.chats.active.chat.messages[-1].id)
        known = await trace.learn(it.backend)
        mine = [place for place in known.places if place.message == trace.reply]
        assert [(place.start, place.end) for place in mine] == [(at, at + 1) for at in range(5)]


@run
async def test_known_candidates_are_not_requested_again(bench: Callable[..., Any]) -> None:
    async with bench(backend=letters()) as it:
        await replied(it, "aaaa", 0.5)
        asked = len(it.replies)
        await it.pilot.press("alt+c")
        await it.until(lambda: len(picker(it).rows) == 3)
        await it.pilot.press("end")
        await it.until(lambda: "token 4 of 4  50.0%" in it.screen_text())
        assert len(it.replies) == asked and list(picker(it).shares) == [0.5] * 4


@run
async def test_it_starts_at_the_least_likely_token(bench: Callable[..., Any]) -> None:
    async with bench(backend=letters()) as it:
        reply = await it.say("go")
        send(reply, "aa", 0.9)
        send(reply, "b", 0.1)
        send(reply, "c", 0.8)
        reply.end()
        await it.until(lambda: not it.app.chats.active.streaming)
        await it.pilot.press("alt+c")
        await it.until(lambda: "token 3 of 4" in it.screen_text())


@run
async def test_a_reply_of_an_earlier_session_is_read_again(bench: Callable[..., Any]) -> None:
    async with bench(backend=letters()) as it:
        await replied(it, "abc")
    async with bench(backend=letters()) as it:
        assert not it.app.chats.active.traces
        await it.pilot.press("alt+c")
        await it.until(lambda: picker(it).rows)
        await it.until(lambda: "token 1 of 3" in it.screen_text())
        await it.pilot.press("right", "up", "up", "enter")
        await it.until(lambda: it.app.chats.active.run and it.app.chats.active.run.reply)
        assert it.replies[-1].reply_prefix == (ord("a"), ord("a"))


@run
async def test_a_reply_that_is_read_again_keeps_the_token_that_ended_it(bench: Callable[..., Any]) -> None:
    """Its head counts this token, too."""
    async with bench(backend=letters()) as it:
        reply = await it.say("go")
        send(reply, "abc")
        reply.send(Delta(reply.id, (1,), ""))
        reply.end()
        await it.until(lambda: not it.app.chats.active.streaming)
    backend = letters()
    backend.closes = True
    async with bench(backend=backend) as it:
        await it.until(lambda: "4 tok" in it.screen_text())
        await it.pilot.press("alt+c")
        await it.until(lambda: "token 1 of 4" in it.screen_text())
        await it.pilot.press("end")
        await it.until(lambda: "token 4 of 4" in it.screen_text())


@run
async def test_an_older_reply_can_be_selected(bench: Callable[..., Any]) -> None:
    async with bench(backend=letters()) as it:
        await replied(it, "abc")
        await replied(it, "xyz")
        middle = it.app.chats.active.chat.messages[1]
        it.main.transcript.focus()
        await it.pilot.press("ctrl+down")
        await it.until(lambda: it.main.transcript.chosen == middle)
        await it.pilot.press("alt+c")
        await it.until(lambda: picker(it).rows)
        await it.pilot.press("down", "enter")
        await it.until(lambda: it.app.chats.active.run and it.app.chats.active.run.reply)
        assert it.texts() == [("user", "go", "done"), ("assistant", "", "streaming")], "what came after stays"
        assert it.replies[-1].reply_prefix == (ord("b"),)


@run
async def test_escape_closes_it_and_removes_the_highlights(bench: Callable[..., Any]) -> None:
    async with bench(backend=letters()) as it:
        await replied(it, "abc")
        await it.pilot.press("alt+c")
        await it.until(lambda: picker(it).rows)
        await it.pilot.press("escape")
        assert it.app.focused is it.main.prompt and not picker(it).display
        assert not it.main.transcript.highlights["picked"].spans
        await it.pilot.press("alt+c")
        await it.until(lambda: picker(it).rows)
        await it.pilot.press("alt+r")
        assert not picker(it).display, "the new reply has other tokens"
        await it.until(lambda: it.app.focused is it.main.prompt)


@run
async def test_replies_that_cannot_be_picked_from_are_reported(bench: Callable[..., Any]) -> None:
    async with bench(backend=letters()) as it:
        await it.pilot.press("alt+c")
        await it.until(lambda: any("no reply" in notice for notice in it.notices()))
        reply = await it.say("go")
        send(reply, "ab")
        await it.pilot.press("alt+c")
        await it.until(lambda: any("still running" in notice for notice in it.notices()))
        reply.end()
        await it.until(lambda: not it.app.chats.active.streaming)
        chat = it.app.chats.active
        chat.traces.clear()
        chat.chat.messages[-1] = replace(chat.chat.messages[-1], reasoning="hm")
        await it.pilot.press("alt+c")
        await it.until(lambda: any("Regenerate it" in notice for notice in it.notices()))


@run
async def test_an_engine_error_is_shown_at_the_position(bench: Callable[..., Any]) -> None:
    async with bench(backend=letters()) as it:
        await replied(it, "abc")
        it.backend.full = True
        await it.pilot.press("alt+c")
        await it.until(lambda: "the engine is full" in it.screen_text())
        it.backend.full = False
        await it.pilot.press("right")
        await it.until(lambda: picker(it).rows)
        await it.until(lambda: "the engine is full" not in it.screen_text())


@run
async def test_a_fork_that_the_engine_refuses_keeps_its_text(bench: Callable[..., Any]) -> None:
    async with bench(backend=letters()) as it:
        await replied(it, "abc")
        await it.pilot.press("alt+c")
        await it.until(lambda: len(it.replies) == 4 and picker(it).rows)
        it.backend.refusal = BadParams("said", "does not match the grammar")
        await it.pilot.press("end", "enter")
        await it.until(lambda: it.texts()[-1] == ("assistant", "abc", "failed"))
        assert "the start of the reply does not match the grammar" in it.screen_text()


@run
async def test_a_reply_that_never_had_tokens_is_not_reported_as_lost(bench: Callable[..., Any]) -> None:
    async with bench(backend=letters()) as it:
        reply = await it.say("go")
        reply.end(Finish.FAILED, "no memory")
        await it.until(lambda: it.texts()[-1][2] == "failed")
        await it.pilot.press("alt+c")
        await it.until(lambda: "This reply has no tokens. Regenerate it" in it.notices())


@run
async def test_in_ascii_mode_only_the_text_is_not_ascii(bench: Callable[..., Any]) -> None:
    async with bench((100, 40), backend=letters(), ascii=True) as it:
        await replied(it, "a b é", 0.5)
        await it.pilot.press("alt+c", "f3")
        await it.until(lambda: picker(it).rows)
        lines = it.screen_text().splitlines()
        at = next(number for number, line in enumerate(lines) if "token 1 of 5" in line)
        assert lines[at + 1].strip().startswith("a_b_é") and "55555" in lines[at + 2]
        assert not [line for line in lines if not line.replace("é", "e").isascii()]


@run
async def test_the_next_screen_can_find_the_fork(bench: Callable[..., Any]) -> None:
    backend = Letters([snapshot()], elsewhere="box")
    async with bench(backend=backend) as it:
        await replied(it, "abc")
        await it.pilot.press("alt+c")
        await it.until(lambda: picker(it).rows)
        await it.pilot.press("down", "enter")
        await it.until(lambda: it.app.chats.active.run and it.app.chats.active.run.reply)
        chat = it.app.chats.active.chat
        assert backend.tags[tag_of(chat.messages[-1])] is it.replies[-1]
        kept = it.app.store.chat(chat.id).messages[-1]
        assert (kept.state, kept.id) == ("streaming", chat.messages[-1].id)


@run
async def test_on_a_small_screen_a_drawer_closes(bench: Callable[..., Any]) -> None:
    async with bench((70, 20), backend=letters()) as it:
        await replied(it, "xabc")
        await it.pilot.press("f3")
        await it.until(lambda: not it.main.query_one("#panes").display)
        await it.pilot.press("alt+c")
        await it.until(lambda: "token 1 of 4" in it.screen_text() and not it.drawer.display)


@run
async def test_the_monitor_names_the_requests_for_alternatives(bench: Callable[..., Any]) -> None:
    """Also those that were no longer needed when the engine accepted them."""

    class Slow(Letters):
        async def submit(self, *given: Any, **more: Any) -> FakeReply:
            if more.get("reply_prefix") is not None:
                submitted.append(len(more["reply_prefix"]))
                await accepts.wait()
            return await super().submit(*given, **more)

    accepts, submitted = asyncio.Event(), list[int]()
    backend = Slow([snapshot()])
    async with bench((200, 60), backend=backend) as it:
        reply = await replied(it, "ab")
        await it.pilot.press("alt+c")
        await it.until(lambda: submitted)
        await it.pilot.press("escape")
        accepts.set()
        await it.until(lambda: len(it.replies) == 2)
        assert submitted == [0], "one request for a position, although the new line of tokens asked twice"
        probe = it.replies[-1].id
        assert it.main.engine.owners[reply.id] == Owner("A", 0)
        await it.until(lambda: it.main.engine.owners.get(probe) == Owner("A", 0, "probe"))
        it.main.show_events([Queued(0, 0.0, probe, 16)])
        await it.until(lambda: it.app.poller.resting)
        it.main.show_snapshot(snapshot(running=(reply.id, probe)))
        await it.until(lambda: "A probe 2" in it.screen_text())  # in the legend of the map
        lines = it.screen_text().splitlines()
        assert any("decode" in line and line.rstrip().endswith("probe") for line in lines), "in the queues"
        assert any("queued" in line and "probe: prompt of 16 tokens" in line for line in lines)


@run
async def test_a_late_owner_replaces_the_question_mark(bench: Callable[..., Any]) -> None:
    """The engine's events may arrive before the answer to the submission."""
    async with bench((120, 40), backend=letters()) as it:
        it.main.show_events([Queued(0, 0.0, 7, 16)])
        await it.until(lambda: "?  queued" in it.screen_text())
        it.main.engine.took(it.app.chats.active, 7)
        await it.until(lambda: "A  queued" in it.screen_text())


@run
async def test_a_position_viewed_as_its_probe_ends_has_its_candidates(bench: Callable[..., Any]) -> None:
    """A resize views it again. The probe has ended then, but its callbacks have not been called."""

    class Viewed(FakeReply):
        async def __aiter__(self) -> AsyncIterator[Delta]:
            async for delta in super().__aiter__():
                yield delta
            views.append(asyncio.create_task(walk.look(1)))

    class Probed(Letters):
        async def submit(self, *given: Any, **more: Any) -> FakeReply:
            reply = await super().submit(*given, **more)
            return reply if "tag" in more or views else Viewed(**vars(reply))

    views: list[asyncio.Task[TokenLogprob]] = []
    async with bench(backend=Probed([snapshot()])) as it:
        chat = it.app.chats.active
        await replied(it, "xabc")
        walk = await start_walk(chat, chat.chat.messages[-1].id)
        viewed = await walk.look(1)
        assert await views[0] is viewed


@run
async def test_a_failure_while_walking_is_shown_at_once(bench: Callable[..., Any]) -> None:
    class Broken(Letters):
        def words(self, tokens: Sequence[int]) -> list[str]:
            raise ValueError("no words")

    async with bench(backend=Broken([snapshot()])) as it:
        await replied(it, "xabc")
        await it.pilot.press("alt+c")
        await it.until(lambda: any("no words" in notice for notice in it.notices()))
        assert [str(each) for each in it.failures] == ["no words"]
        it.failures.clear()


@run
async def test_each_of_several_continuations_starts_with_the_copied_tokens(bench: Callable[..., Any]) -> None:
    async with bench(backend=letters(), params=SamplingParams(n=2)) as it:
        await replied(it, "abc")
        await it.pilot.press("alt+c")
        await it.until(lambda: picker(it).rows)
        await it.pilot.press("right", "up", "up", "enter")
        await it.until(lambda: it.app.chats.active.run and it.app.chats.active.run.reply)
        reply = it.replies[-1]
        reply.send(Delta(reply.id, (ord("y"),), "y"))
        reply.send(Delta(reply.id, (ord("z"),), "z", finish=Finish.STOP, choice=1))
        reply.end()
        await it.until(lambda: len(it.app.chats) == 3)
        found = [each.chat.messages[-1] for each in it.app.chats][1:]
        assert [(each.text, each.stats.tokens, each.stats.copied) for each in found] == [
            ("aay", 3, 2),
            ("aaz", 3, 2),
        ]
