"""The label of a reply names all settings that changed its tokens, also those that were changed meanwhile."""

from collections.abc import Callable
from typing import Any

import pytest

from engine.api.commands import Update
from engine.api.errors import BadInput
from engine.api.events import Delta, TokenLogprob
from engine.api.params import Grammar, SamplingParams
from engine.api.request import Finish
from minichat.chats.export import to_markdown
from minichat.clients.fake import FakeBackend, FakeReply
from minichat.clients.protocol import Past
from minichat.session.decoding import ReplyLabel, strategy
from tests.app.conftest import run, snapshot


@pytest.mark.parametrize(
    ("params", "words"),
    [
        (
            {"temperature": 0.0, "repetition_penalty": 1.4, "frequency_penalty": 0.4},
            "greedy rep 1.4 freq 0.4",
        ),
        ({"temperature": 0.7, "presence_penalty": -0.5, "seed": 7}, "T 0.7 seed 7 pres -0.5"),
        ({"temperature": 0.0, "seed": 7}, "greedy"),
        ({"logit_bias": {5: 2.0, 6: -1.0}, "bad_words": ("a", "b")}, "T 1 bias 2 banned 2"),
        (
            {"min_tokens": 50, "ignore_eos": True, "allowed_token_ids": (1, 2, 3)},
            "T 1 min 50 only 3 tok no eos",
        ),
        ({"beams": 4, "seed": 7, "early_stopping": True}, "beams 4 early stop"),
        ({"beams": 4, "early_stopping": "never"}, "beams 4 early stop never"),
        ({"n": 2, "best_of": 4, "grammar": Grammar("regex", "a")}, "T 1 x2 best of 4 regex"),
        ({"logprobs": 3, "draft_tokens": 2}, "T 1"),  # these change no token
        ({"min_tokens": 3, "max_tokens": 9, "stop": ("a", "b")}, "T 1 min 3 max 9 stops 2"),
        ({"stop": ("a",), "stop_ids": (5, 6)}, "T 1 stops 1 stop ids 2"),
    ],
)
def test_all_that_changes_the_tokens_is_named(params: dict[str, Any], words: str) -> None:
    assert strategy(SamplingParams(**params)) == words


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"max_tokens": 9, "stop": ("a",), "stop_ids": (5,)}, "T 1"),
        ({"max_tokens": 8, "stop": ("b",), "stop_ids": (6, 7)}, "T 1 max 8 stops 1 stop ids 2"),
        ({}, "T 1 no max no stops no stop ids"),
    ],
)
def test_the_length_and_the_stops_are_named_if_a_new_chat_has_others(
    params: dict[str, Any], words: str
) -> None:
    new = SamplingParams(max_tokens=9, stop=("a",), stop_ids=(5,))
    assert strategy(SamplingParams(**params), new=new) == words


@run
async def test_the_length_of_a_reply_is_in_its_header_and_in_the_title_of_the_prompt(
    bench: Callable[..., Any],
) -> None:
    async with bench((100, 30), params=SamplingParams(max_tokens=99)) as it:
        active = it.app.chats.active
        await it.answered(await it.say("hello"))
        active.tune(active.chat.params.changed(max_tokens=50, stop=("END",)))
        await it.answered(await it.say("again"))
        labels = [each.stats.strategy for each in active.chat.messages if each.stats]
        assert labels == ["T 1", "T 1 max 50 stops 1"]
        await it.until(lambda: it.main.prompt.border_title == "A  T 1 max 50 stops 1")


async def labeled(it: Any, *changes: dict[str, Any], early: tuple[dict[str, Any], ...] = ()) -> str:
    """The label of a reply with these changes, each after a token; `early`: those before the first one."""
    active = it.app.chats.active
    active.tune(SamplingParams(temperature=0.7))
    reply = await it.say("hello")
    for each in (*early, None, *changes):
        if each is None:
            reply.say("x")
            await it.until(lambda: active.run.tokens == 1)
        else:
            active.tune(active.chat.params.changed(**each))
            await it.pilot.pause()
    await it.answered(reply)
    return str(active.chat.messages[-1].stats.strategy)


def test_changes_are_counted_and_the_last_one_is_named() -> None:
    for words, label in (
        (["T 0.7", "T 0.7"], "T 0.7"),
        (["T 0.7", "greedy"], "T 0.7, then greedy"),
        (["T 0.7", "greedy", "beams 4"], "T 0.7, 2 changes, then beams 4"),
        (["T 0.7", "greedy", "T 0.7"], "T 0.7, 2 changes, then T 0.7"),
    ):
        sampled = ReplyLabel()
        for place, each in enumerate(words):
            sampled.note(each, begun=place > 0)
        assert str(sampled) == label


@run
async def test_a_reply_says_that_its_settings_changed(bench: Callable[..., Any]) -> None:
    async with bench((80, 24)) as it:
        label = "T 0.7, then greedy rep 1.2"
        changes = {"n": 3, "draft_tokens": 2}, {"temperature": 0.0, "repetition_penalty": 1.2}
        assert await labeled(it, *changes) == label
        await it.until(lambda: f"  {label}  " in it.screen_text())
        assert f", {label}*" in to_markdown(it.app.chats.active.chat)


@run
async def test_a_change_before_the_first_token_is_not_one_of_the_reply(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        assert await labeled(it, early=({"temperature": 0.0},)) == "greedy"
        assert await labeled(it, {"temperature": 1.0}, early=({"temperature": 0.5},)) == "T 0.5, then T 1"


@pytest.mark.parametrize(
    ("first", "seen", "label"),
    [
        ({"beams": 4}, {"tail": "In a"}, "beams 4, then greedy"),
        ({"beams": 4}, {}, "beams 4, then greedy"),  # a search whose text is not known yet
        ({"best_of": 3}, {"tail": "In a"}, "T 1 best of 3, then greedy best of 3"),
        ({"n": 2}, {"tokens": (1,), "choice": 1}, "T 1 x2, then greedy x2"),
    ],
)
@run
async def test_a_change_before_the_first_certain_token_is_one_of_the_reply(
    bench: Callable[..., Any], first: dict[str, Any], seen: dict[str, Any], label: str
) -> None:
    """The first settings have chosen tokens that the reply goes on from, or may still contain."""
    async with bench(params=SamplingParams(**first)) as it:
        active, reply = it.app.chats.active, await it.say("hello")
        reply.send(Delta(reply.id, **seen))
        await it.until(reply._deltas.empty)
        await it.pilot.pause()
        active.tune(active.chat.params.changed(beams=1, temperature=0.0))
        await it.until(lambda: it.backend.updates)
        await it.answered(reply)
        assert active.chat.messages[-1].stats.strategy == label


@run
async def test_a_scored_prompt_is_no_token_of_the_reply(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        active, reply = it.app.chats.active, await it.say("hello")
        reply.send(Delta(reply.id, prompt_logprobs=(TokenLogprob(1, -0.5, 1, ()),)))
        await it.until(reply._deltas.empty)
        await it.pilot.pause()
        active.tune(active.chat.params.changed(temperature=0.0))
        await it.until(lambda: it.backend.updates)
        await it.answered(reply)
        assert active.chat.messages[-1].stats.strategy == "greedy"


@run
async def test_a_search_for_several_replies_that_is_ended_goes_on_with_one(bench: Callable[..., Any]) -> None:
    async with bench((80, 24), params=SamplingParams(beams=4, n=3)) as it:
        active = it.app.chats.active
        reply = await it.say("hello")
        reply.say("x")
        await it.until(lambda: active.run.tokens == 1)
        active.tune(active.chat.params.changed(beams=1, temperature=0.0))
        await it.until(lambda: it.backend.updates)
        assert str(active.run.sampled) == "beams 4 x3, then greedy"
        active.tune(active.chat.params.changed(beams=4))
        await it.until(lambda: len(it.backend.updates) == 2)
        assert str(active.run.sampled) == "beams 4 x3, 2 changes, then beams 4 x3"
        await it.answered(reply)


@run
async def test_a_refused_change_is_not_one_of_the_reply(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        active, reply = it.app.chats.active, await it.say("hello")
        reply.say("x")
        await it.until(lambda: active.run.tokens == 1)

        def refuse(command: Update) -> None:
            raise BadInput("no")

        it.backend.handlers[Update] = refuse
        active.tune(active.chat.params.changed(beams=4))
        await it.until(lambda: "No" in it.notices())
        await it.answered(reply)
        assert active.chat.messages[-1].stats.strategy == "T 0.7"


@run
async def test_a_sample_that_ended_before_the_change_does_not_name_it(bench: Callable[..., Any]) -> None:
    async with bench(params=SamplingParams(temperature=0.7, n=2)) as it:
        active, reply = it.app.chats.active, await it.say("hello")
        reply.say("x")
        reply.send(Delta(reply.id, (1,), "other", choice=1, left=1, finish=Finish.STOP))
        await it.until(lambda: active.run.others and active.run.others[1].finish)
        active.tune(active.chat.params.changed(temperature=0.0))
        await it.until(lambda: it.backend.updates)
        await it.answered(reply)
        await it.until(lambda: len(it.app.chats) == 2)
        labels = [each.chat.messages[-1].stats.strategy for each in it.app.chats]
        assert labels == ["T 0.7 x2, then greedy x2", "T 0.7 x2"]


@run
async def test_the_next_screen_knows_of_the_changes(bench: Callable[..., Any]) -> None:
    """Of a reply that ran on meanwhile, too."""
    backend = FakeBackend([snapshot()], elsewhere="box:8000")
    async with bench(backend=backend) as it:
        active, reply = it.app.chats.active, await it.say("hello")
        reply.say("x")
        await it.until(lambda: active.run.tokens == 1)
        for temperature in (0.0, 0.7):
            active.tune(active.chat.params.changed(temperature=temperature))
        await it.until(lambda: len(backend.updates) == 2)
        await it.app.action_quit()
    after = FakeBackend([snapshot()], elsewhere="box:8000")
    [tag] = backend.tags
    reply = FakeReply(0, "", SamplingParams())
    after.past[tag], after.replies = Past(reply, age=3.0, first=1.0, lasted=None), [reply]
    async with bench(backend=after) as it:
        active = it.app.chats.active
        await it.until(lambda: active.streaming)
        active.tune(active.chat.params.changed(temperature=0.0))
        await it.until(lambda: after.updates)
        await it.answered(reply)
        message = active.chat.messages[-1]
        assert message.stats.strategy == "T 0.7, 3 changes, then greedy"
        assert message.params == {"temperature": 0.7}
    async with bench() as it:
        await it.until(lambda: "T 0.7, 3 changes, then greedy" in it.screen_text())


@run
async def test_a_reply_that_the_engine_refuses_has_a_label(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        active, it.backend.refusal = it.app.chats.active, BadInput("no")
        active.tune(SamplingParams(temperature=0.5))
        it.main.prompt.put("hello")
        await it.pilot.press("enter")
        await it.until(lambda: active.chat.messages and active.chat.messages[-1].state == "failed")
        assert active.chat.messages[-1].stats.strategy == "T 0.5"


@run
async def test_a_reply_that_turns_to_beams_is_searched_from_then_on(bench: Callable[..., Any]) -> None:
    async with bench((80, 24)) as it:
        active = it.app.chats.active
        active.tune(SamplingParams(temperature=0.7))
        reply = await it.say("hello")
        for token, (word, changes) in enumerate((("writing", {"beams": 4}), ("searching", {"beams": 1})), 1):
            reply.say("x")
            await it.until(lambda token=token: active.run.tokens == token)
            await it.until(lambda word=word: f"  {word}" in it.screen_text())
            active.tune(active.chat.params.changed(**changes))
            await it.pilot.pause()
        reply.say("y")
        await it.until(lambda: "  writing" in it.screen_text())
        await it.answered(reply)
