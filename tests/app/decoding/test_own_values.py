"""Values set by the user in a chat, and its grammar, survive a change of preset or strategy."""

from collections.abc import Callable
from typing import Any

import pytest

from engine.api.errors import BadParams
from engine.api.params import Grammar, SamplingParams
from minichat.session.decoding import Preset, preset_of
from minichat.session.strategies import Strategies
from tests.app.conftest import run
from tests.app.decoding.test_decoding import row


def test_a_beam_search_preset_suspends_logprobs_but_not_a_grammar() -> None:
    beams, fast = Preset("b", (("beams", 4),)), Preset("f", (("speculate", "ngram"),))
    free = SamplingParams(logprobs=2, seed=4)
    assert (beams.apply(free).logprobs, beams.apply(free).seed) == (None, 4)
    assert fast.apply(free).logprobs == 2
    held = free.changed(grammar=Grammar("regex", "a"))
    for preset in (beams, fast):
        with pytest.raises(BadParams, match="grammar"):
            preset.apply(held)
    assert preset_of(held, (beams, fast)) is None


def test_a_strategy_that_cannot_follow_a_grammar_is_refused() -> None:
    strategies, held = Strategies(), SamplingParams(temperature=0.0, grammar=Grammar("regex", "a"))
    strategies.observe(held)
    with pytest.raises(BadParams, match="remove the grammar first"):
        strategies.with_strategy(held, -1)
    assert strategies.with_strategy(held, 1).grammar == held.grammar


@run
async def test_beams_and_a_grammar_exclude_each_other_with_an_error(bench: Callable[..., Any]) -> None:
    async with bench((100, 40), params=SamplingParams(grammar=Grammar("regex", "[ab]+"))) as it:
        reply = await it.say("hello")
        await it.pilot.press("f3")
        row(it, "strategy")
        await it.pilot.press("left", "left")
        await it.until(lambda: "remove the grammar" in it.drawer.knobs.trouble)
        await it.until(lambda: "does not support a" in it.screen_text())
        assert reply.params.grammar == Grammar("regex", "[ab]+") and reply.params.beams == 1
        row(it, "grammar")
        await it.pilot.press("delete")
        row(it, "strategy")
        await it.pilot.press("left")
        await it.until(lambda: reply.params.beams == 4)
        await it.pilot.press("right")
        await it.until(lambda: reply.params.beams == 1)


@run
async def test_values_set_by_the_user_are_offered_among_the_presets(bench: Callable[..., Any]) -> None:
    async with bench((100, 40)) as it:
        active = it.app.chats.active
        await it.pilot.press("f3")
        row(it, "temperature")
        await it.pilot.press("right")
        row(it, "max_tokens")
        await it.pilot.press(*"99", "enter")
        row(it, "preset")
        await it.until(lambda: "own" in it.screen_text())
        names = []
        for _ in range(7):
            await it.pilot.press("right")
            names.append(it.drawer.knobs.preset)
        assert names == ["greedy", "precise", "balanced", "creative", "default", "own", "greedy"]
        await it.pilot.press("left")
        assert active.chat.params == SamplingParams(temperature=0.75, max_tokens=99)


@run
async def test_changes_in_one_chat_do_not_affect_another(bench: Callable[..., Any]) -> None:
    async with bench((100, 40), params=SamplingParams(temperature=0.9)) as it:
        await it.pilot.press("f3")
        row(it, "preset")
        await it.pilot.press("right", "right", "right", "right")
        await it.pilot.press("escape", "ctrl+n", "f3", "f3")
        fresh = it.app.chats.active
        assert fresh.chat.params == SamplingParams(temperature=0.9)
        row(it, "strategy")
        await it.pilot.press("left", "right")
        await it.until(lambda: it.drawer.knobs.params.temperature == 0.9)
        assert fresh.chat.params == SamplingParams(temperature=0.9)
        row(it, "preset")
        await it.pilot.press("left", "right")
        assert fresh.chat.params == SamplingParams(temperature=0.9), "its own, not the other chat's"


@run
async def test_values_set_by_the_user_are_still_offered_after_a_restart(bench: Callable[..., Any]) -> None:
    async with bench((100, 40)) as it:
        await it.pilot.press("f3")
        row(it, "temperature")
        await it.pilot.press("right")
        row(it, "preset")
        await it.pilot.press("right")
        assert it.drawer.knobs.preset == "greedy"
        await it.pilot.press("escape")
        await it.answered(await it.say("hello"))
    async with bench((100, 40)) as it:
        await it.pilot.press("f3")
        row(it, "preset")
        await it.pilot.press("left")
        assert it.drawer.knobs.preset == "own"
        assert it.app.chats.active.chat.params == SamplingParams(temperature=0.75)
        await it.pilot.press("right", "alt+k")
        await it.until(lambda: len(it.app.chats) == 2)
        it.drawer.knobs.focus()
        row(it, "preset")
        await it.pilot.press("left")
        assert it.app.chats.active.chat.params == SamplingParams(temperature=0.75), "a fork has them, too"


@run
async def test_delete_gives_the_temperature_of_a_new_chat_and_unsets_other_fields(
    bench: Callable[..., Any],
) -> None:
    default = SamplingParams(temperature=0.6, top_k=40)
    async with bench((100, 40), params=default) as it:
        await it.pilot.press("f3")
        row(it, "temperature")
        await it.pilot.press("right", "delete")
        assert it.app.chats.active.chat.params == default and it.drawer.knobs.preset == "default"
        row(it, "top_k")
        await it.pilot.press("delete")
        assert it.app.chats.active.chat.params == default.changed(top_k=0)


def test_a_preset_is_not_hidden_by_one_that_sets_less() -> None:
    """One that sets only max tokens as well, or a stop text, could not be chosen."""
    story, short = (
        Preset("story", (("temperature", 0.9),)),
        Preset("s", (("temperature", 0.9), ("max_tokens", 9))),
    )
    stopper = Preset("t", (("temperature", 0.9), ("stop", ("END",))))
    every = (story, short, stopper)
    for each in every:
        assert preset_of(each.apply(SamplingParams()), every) is each
    assert preset_of(story.apply(SamplingParams(max_tokens=8)), every) is story
