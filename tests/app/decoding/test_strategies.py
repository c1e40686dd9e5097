"""Changing the decoding strategy of a running reply; what the engine refuses is undone."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api.commands import Update
from engine.api.errors import BadParams
from engine.api.events import Delta, TokenLogprob
from engine.api.params import SPECULATION, SamplingParams
from engine.api.request import Finish
from engine.api.snapshot import BeamsView, HypothesisView
from minichat.clients.fake import FakeBackend
from minichat.features.decoding.beam_tree import lines_of
from minichat.session.decoding import KNOBS, shown, stepped
from minichat.session.strategies import NAMES, Strategies, name_of
from tests import impatient
from tests.app.conftest import run, snapshot
from tests.app.decoding.test_decoding import row


def views(request: int = 0) -> BeamsView:
    """Two hypotheses share their first token; a third has ended, a fourth was dropped."""
    live = (HypothesisView(5, 0, -1.25, (65, 66)), HypothesisView(6, 0, -2.5, (65, 67)))
    return BeamsView(
        request, 4, 3, live, (HypothesisView(-1, -1, -2.0, (68,)),), (HypothesisView(7, 1, -9.0, (69,)),)
    )


def params() -> st.SearchStrategy[SamplingParams]:
    return st.builds(
        lambda **given: SamplingParams(**{k: v for k, v in given.items() if v is not None}),
        temperature=st.sampled_from([0.0, 0.3, 1.0]),
        top_k=st.sampled_from([0, 7]),
        top_p=st.sampled_from([0.5, 1.0]),
        min_p=st.sampled_from([0.0, 0.2]),
        seed=st.sampled_from([None, 3]),
        speculate=st.sampled_from(["", "ngram"]),
    )


@given(params(), st.lists(st.sampled_from([-1, 1]), max_size=12))
def test_strategies_cycle_in_both_directions(start: SamplingParams, steps: list[int]) -> None:
    strategies, now = Strategies(), start
    strategies.observe(start)
    for by in steps:
        before, now = now, strategies.with_strategy(now, by)
        assert name_of(now) == NAMES[(NAMES.index(name_of(before)) + by) % len(NAMES)]
        assert now.seed == start.seed, "the seed is not part of a strategy"
        strategies.observe(now)
    while name_of(now) != name_of(start):
        now = strategies.with_strategy(now, 1)
        strategies.observe(now)
    assert now == start, "a full cycle restores the parameters"


def test_values_that_a_search_excludes_are_restored_after_it() -> None:
    strategies = Strategies()
    before = SamplingParams(temperature=0.0, speculate="suffix", logprobs=3)
    strategies.observe(before)
    beams = strategies.with_strategy(before, -1)
    assert (beams.beams, beams.speculate, beams.logprobs) == (4, "", None)
    strategies.observe(beams)
    assert strategies.with_strategy(beams, 1) == before


@run
async def test_a_running_reply_becomes_a_search_and_back(bench: Callable[..., Any]) -> None:
    async with bench((100, 40)) as it:
        reply = await it.say("hello")
        await it.pilot.press("f3")
        await it.until(lambda: reply.params.logprobs == 10)
        row(it, "strategy")
        await it.pilot.press("left", "left")  # through greedy to beams
        await it.until(lambda: reply.params.beams == 4)
        assert reply.params.logprobs is None, "a search has no log-probabilities"
        await it.until(lambda: "width" in it.screen_text() and "temperature" not in it.screen_text())
        await it.until(lambda: "beam tree" in it.screen_text() and "beams 4" in it.screen_text())
        row(it, "early_stopping")
        await it.pilot.press("right")
        await it.until(lambda: reply.params.early_stopping is True)
        row(it, "strategy")
        await it.pilot.press("right", "right")
        await it.until(lambda: (reply.params.beams, reply.params.temperature) == (1, 0.7))
        await it.until(lambda: reply.params.logprobs == 10)


@run
async def test_delete_brings_back_the_strategy_of_a_new_chat(bench: Callable[..., Any]) -> None:
    async with bench((100, 40)) as it:
        chat, before = it.app.chats.active.chat, it.app.chats.active.chat.params
        await it.pilot.press("f3")
        row(it, "strategy")
        await it.pilot.press("left", "left")
        await it.until(lambda: chat.params.beams == 4)
        await it.pilot.press("delete")
        await it.until(lambda: chat.params == before)
        await it.pilot.press("delete")
        assert chat.params == before


@run
async def test_the_tail_of_a_search_is_shown_and_may_be_replaced(bench: Callable[..., Any]) -> None:
    async with bench((100, 40)) as it:
        reply = await it.say("hello")
        put = reply.send
        put(Delta(reply.id, (1,), "once upon", tail=" a mouse"))
        await it.until(lambda: "once upon a mouse" in it.screen_text())
        put(Delta(reply.id, (2,), " a", tail=" time"))
        await it.until(lambda: "once upon a time" in it.screen_text())
        assert it.app.chats.active.messages[-1].text == "once upon a", "only this is final"
        put(Delta(reply.id, (3, 4), " day.", (), Finish.STOP, score=-0.5))
        await it.until(lambda: not it.app.chats.active.streaming)
        assert it.texts()[-1] == ("assistant", "once upon a day.", "done")
        await it.until(lambda: "once upon a day." in it.screen_text())


@run
async def test_the_tree_is_shown_live(bench: Callable[..., Any]) -> None:
    shot = snapshot(3, (0, 5, 6), beams=(views(),))
    shot = replace(shot, requests=tuple(each._replace(group=0) for each in shot.requests))
    async with bench((130, 45), backend=FakeBackend([shot]), params=SamplingParams(beams=4)) as it:
        await it.say("hello")
        await it.pilot.press("f3")
        await it.until(lambda: "2 of 4 live, 1 ended, 3 tok" in it.screen_text())
        text = it.screen_text()
        assert "·word65" in text and "├▸·word66" in text and "└ ·word67" in text, text
        assert "ended ·word68" in text and "dropped ·word69" in text and "-9.00" in text
        owners = it.main.engine.owners
        await it.until(lambda: owners.get(5) == owners[0])  # the monitor has the owner of the hypotheses
        await it.answered(it.replies[-1])
        await it.until(lambda: "over, last seen 1 ended, 3 certain" in it.screen_text())
        assert "2 of 4 live" not in it.screen_text()


@run
async def test_the_tree_is_of_the_last_search_also_if_the_drawer_was_closed_during_it(
    bench: Callable[..., Any],
) -> None:
    """And there is none of a search that no snapshot shows."""
    async with bench((130, 45), params=SamplingParams(beams=4)) as it:
        it.app.poller.stop()

        async def search_is_shown(step: int, certain: int) -> None:
            reply = await it.say("hello")
            shot = snapshot(step, (reply.id,), beams=(views(reply.id)._replace(certain=certain),))
            it.main.show_snapshot(shot)
            await it.answered(reply)
            it.main.show_snapshot(snapshot(step))
            await it.pilot.press("f3")
            await it.until(lambda: f"over, last seen 1 ended, {certain} certain" in it.screen_text())
            await it.pilot.press("f3")

        await search_is_shown(1, 3)
        await search_is_shown(2, 17)
        await it.answered(await it.say("hello"))
        await it.pilot.press("f3")
        await it.until(lambda: "shown while a search runs" in it.screen_text())


@run
async def test_the_counts_of_a_long_search_are_one_line(bench: Callable[..., Any]) -> None:
    shot = snapshot(3, (0, 5, 6), beams=(views()._replace(certain=1208),))
    async with bench((80, 24), backend=FakeBackend([shot]), params=SamplingParams(beams=4)) as it:
        await it.say("hello")
        await it.pilot.press("f3")
        await it.until(lambda: "2 of 4 live, 1 ended, 1208 certain" in it.screen_text())


def test_a_tree_contains_each_shared_text_once() -> None:
    lines = lines_of(views(), lambda tokens: [chr(token) for token in tokens])
    assert [(line.hangs, line.text, line.kind, line.score) for line in lines] == [
        ("+", "A", "branch", None),
        ("|+", "B", "live", -1.25),
        ("|`", "C", "live", -2.5),
        ("`", "D", "ended", -2.0),
        ("", "E", "dropped", -9.0),
    ]
    assert [line.leads for line in lines] == [False, True, False, False, False]


def test_a_tree_marks_texts_that_are_not_there_yet() -> None:
    """An older server sends them later."""
    live = (HypothesisView(5, 0, -1.0, (65, 66, 67, 68)), HypothesisView(6, 0, -2.0, (66,)))
    known = {65: "A", 68: "D"}
    lines = lines_of(
        BeamsView(0, 4, 0, live, (), ()), lambda tokens: [known.get(each, "") for each in tokens], "~"
    )
    assert [line.text for line in lines] == ["A~D", "~"]


def test_a_tree_of_long_replies_is_only_as_deep_as_its_branches() -> None:
    """Thousands of tokens without a branch are one line and need no recursion."""
    shared = tuple(range(5000))
    live = (HypothesisView(0, 0, -2.0, (*shared, 1)), HypothesisView(1, 0, -1.0, (*shared, 2)))
    lines = lines_of(BeamsView(0, 2, 0, live, (), ()), lambda tokens: ["x"] * len(tokens))
    assert [(line.hangs, len(line.text), line.score) for line in lines] == [
        ("`", 5000, None),
        (" +", 1, -1.0),
        (" `", 1, -2.0),
    ]


@given(
    st.lists(
        st.tuples(st.lists(st.integers(65, 67), max_size=5).map(tuple), st.floats(-9, 0)),
        min_size=1,
        max_size=8,
    )
)
def test_every_hypothesis_can_be_read_from_the_tree(given: list[tuple[tuple[int, ...], float]]) -> None:
    """Its text is that of the branches above it, followed by its own."""
    live = tuple(HypothesisView(at, 0, score, tokens) for at, (tokens, score) in enumerate(given))
    lines = lines_of(BeamsView(0, 8, 0, live, (), ()), lambda tokens: [chr(token) for token in tokens])
    read, above = [], list[str]()
    for line in lines:
        depth = len(line.hangs) - 1 if line.hangs[-1:] in ("+", "`") else len(line.hangs)
        above[depth:] = [line.text]
        if line.score is not None:
            read.append(("".join(above), line.score))
    assert sorted(read) == sorted(("".join(map(chr, tokens)), score) for tokens, score in given)


@run
async def test_a_change_that_the_engine_refuses_is_reported_and_undone(bench: Callable[..., Any]) -> None:
    class Refuses(FakeBackend):
        async def send(self, command: Any) -> Any:
            if isinstance(command, Update) and "speculate" in command.changes:
                raise BadParams("speculate", "draft is not available: tiny has no draft model here")
            return await super().send(command)

    async with bench(backend=Refuses([snapshot()])) as it:
        reply = await it.say("hello")
        active = it.app.chats.active
        active.tune(active.chat.params.changed(speculate="draft"))
        await it.until(lambda: any("no draft model" in notice for notice in it.notices()))
        assert active.chat.params.speculate == "" == it.drawer.knobs.params.speculate
        active.tune(active.chat.params.changed(top_k=5))
        await it.until(lambda: reply.params.top_k == 5)


@run
async def test_of_quick_changes_the_last_one_applies(bench: Callable[..., Any]) -> None:
    """Answers arrive from threads, and the first may be the slowest."""

    class Slow(FakeBackend):
        asked = 0

        async def send(self, command: Any) -> Any:
            self.asked += 1
            if self.asked == 1:
                await impatient.rest()  # let everything else in flight complete first
            return await super().send(command)

    async with bench(backend=Slow([snapshot()])) as it:
        reply = await it.say("hello")
        active = it.app.chats.active
        for value in (0.1, 0.2, 0.3):
            active.tune(active.chat.params.changed(temperature=value))
        await it.until(lambda: len(it.backend.updates) == 3)
        assert reply.params.temperature == 0.3


@run
async def test_only_kinds_of_speculation_that_the_engine_has_are_offered(bench: Callable[..., Any]) -> None:
    shot = snapshot(speculates=("ngram", "exit"))
    async with bench((100, 40), backend=FakeBackend([shot])) as it:
        await it.pilot.press("f3")
        await it.until(lambda: it.drawer.knobs.kinds)
        row(it, "speculate")
        seen = []
        for _ in range(3):
            await it.pilot.press("right")
            seen.append(it.app.chats.active.chat.params.speculate)
        assert seen == ["ngram", "exit", ""]


@pytest.mark.parametrize("knob", [knob for knob in KNOBS if knob.choices], ids=lambda knob: knob.field)
def test_choices_wrap_around(knob: Any) -> None:
    params, seen = SamplingParams(), []
    for _ in knob.choices:
        seen.append(shown(knob, params))
        params = params.changed(**{knob.field: stepped(knob, params, 1)})
    assert params == SamplingParams() and len(set(seen)) == len(knob.choices)
    assert {value for value, _ in KNOBS[-2].choices} == {"", *SPECULATION}


@run
async def test_the_number_of_replies_is_fixed_at_submission(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        reply = await it.say("hello")
        active = it.app.chats.active
        active.tune(active.chat.params.changed(n=4, top_k=3))
        await it.until(lambda: reply.params.top_k == 3)
        assert it.backend.updates[-1][1] == {"top_k": 3} and active.chat.params.n == 4


TURNS = ("up", "down", "left", "right", "shift+left", "shift+right", "delete", "0", "1", "2", ".", "enter")
WALKS = ("alt+c", "f3", "escape", "tab", "home", "end", "pagedown")


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 20))])
@run
async def test_random_changes_leave_chat_and_engine_in_agreement(
    bench: Callable[..., Any], seed: int
) -> None:
    """Any keys in the drawer and the token picker, while replies stream."""
    draw = random.Random(seed)
    async with bench((100, 30), backend=FakeBackend([snapshot(speculates=SPECULATION)])) as it:
        for _ in range(3):
            active = it.app.chats.active
            if not active.streaming:
                await it.pilot.press("escape")
                active.send("go")
                await it.until(lambda: it.app.chats.active.run and it.app.chats.active.run.reply)
            if not it.drawer.display:
                await it.pilot.press("f3")
            for _ in range(15):
                await it.pilot.press(draw.choice(TURNS if draw.random() < 0.85 else WALKS))
                while len(it.app.screen_stack) > 1:
                    await it.pilot.press("escape")
                for reply in it.replies[-2:]:
                    if not reply.finished and draw.random() < 0.3:
                        drawn = (TokenLogprob(66, -0.5, 1, ((66, -0.5), (67, -1.5))),)
                        reply.send(Delta(reply.id, (66,), "b", drawn, tail=draw.choice(["", " t"])))
            run_now = it.app.chats.active.run
            if run_now is not None and run_now.reply is not None:
                await it.until(lambda now=run_now: without_n(now.reply.params) == without_n(now.sent))
                assert without_n(run_now.sent).changed(logprobs=None) == without_n(
                    it.app.chats.active.chat.params
                )
                it.replies[-1].end()
        for reply in it.replies:
            reply.end()
        await it.until(lambda: not it.app.chats.streaming)
        assert all(each.chat.messages[-1].state != "failed" for each in it.app.chats)


def without_n(params: SamplingParams) -> SamplingParams:
    return params.changed(n=1)
