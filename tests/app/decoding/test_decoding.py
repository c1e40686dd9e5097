"""The decoding drawer: changes apply at once, to one chat."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from textual.events import MouseScrollDown, MouseScrollUp, Paste

from engine.api.errors import BadParams
from engine.api.events import TokenLogprob
from engine.api.params import Grammar, SamplingParams
from minichat.session.decoding import KNOBS, Preset, parsed, preset_of, shown, stepped, strategy
from minichat.ui.transcript import Transcript
from tests.app.configured import configured
from tests.app.conftest import run
from tests.cases import case

KNOB = {knob.field: knob for knob in KNOBS}


def row(it: Any, name: str) -> None:
    knobs = it.drawer.knobs
    labels = [each if isinstance(each, str) else each.field for each in knobs.rows]
    knobs.row = labels.index(name)


@run
async def test_a_changed_knob_reaches_the_running_reply(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        reply = await it.say("hello")
        await it.pilot.press("f3")
        row(it, "temperature")
        await it.pilot.press("right", "right")
        await it.until(lambda: reply.params.temperature == pytest.approx(0.8))
        assert it.app.chats.active.chat.params.temperature == pytest.approx(0.8)
        assert "T 0.8" in it.screen_text()


@run
async def test_typed_values_and_their_errors(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await it.pilot.press("f3")
        row(it, "top_p")
        await it.pilot.press(*"0.9", "enter")
        await it.until(lambda: it.app.chats.active.chat.params.top_p == 0.9)
        await it.pilot.press(*"7", "enter")
        await it.until(lambda: "top-p: must be" in it.screen_text())
        assert it.app.chats.active.chat.params.top_p == 0.9
        await it.pilot.press("delete")
        await it.until(lambda: it.app.chats.active.chat.params.top_p == 1.0)


@run
async def test_a_value_typed_for_a_chat_stays_in_it_when_another_is_shown(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        first = it.app.chats.active
        await it.say("hello")
        await it.pilot.press("ctrl+n")
        second = it.app.chats.active
        assert second is not first
        await it.pilot.press("f3")
        row(it, "temperature")
        await it.pilot.press(*"1.5", "alt+1")
        await it.until(lambda: second.chat.params.temperature == 1.5)
        assert it.app.chats.active is first and first.chat.params.temperature == 0.7
        assert it.drawer.knobs.params is first.chat.params


@run
async def test_an_invalid_value_is_reported_when_its_chat_or_the_drawer_goes(
    bench: Callable[..., Any],
) -> None:
    async with bench() as it:
        await it.say("hello")
        await it.pilot.press("ctrl+n", "f3")
        row(it, "top_p")
        await it.pilot.press("7", "alt+1")
        refused = "is not changed. top-p: must be a number above 0 to 1, not 7.0"
        await it.until(lambda: f"Chat B {refused}" in it.notices())
        assert not it.drawer.knobs.trouble, "the shown chat has none"
        it.drawer.focus()
        await it.pilot.press("7", "f3")
        await it.until(lambda: f"Chat A {refused}" in it.notices())
        await it.pilot.press("f3", "7", "enter")
        await it.until(lambda: it.drawer.knobs.trouble)
        assert len(it.notices()) == 2, "the drawer shows it"


@run
@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_all_of_a_long_error_can_be_read(bench: Callable[..., Any], size: tuple[int, int]) -> None:
    async with bench(size) as it:
        await it.pilot.press("f3")
        row(it, "seed")
        height = it.drawer.knobs.size.height
        await it.pilot.press(*"99999999999999999999999", "enter")
        await it.until(lambda: it.drawer.knobs.trouble)
        error = it.drawer.knobs.trouble.split()
        await it.until(lambda: all(word in it.screen_text() for word in error))
        await it.pilot.press("down")
        await it.until(lambda: it.drawer.knobs.size.height == height)


@run
async def test_an_error_names_the_field_as_the_drawer_does_and_goes_with_it(
    bench: Callable[..., Any],
) -> None:
    async with bench() as it:
        await it.pilot.press("f3")
        row(it, "n")
        await it.pilot.press(*"1/x/", "enter")
        await it.until(lambda: "replies: must be a whole number" in it.screen_text())
        await it.pilot.press("down")
        await it.until(lambda: not it.drawer.knobs.trouble)
        await it.pilot.press("up", *"1/x/", "down")  # leaving a field commits it
        await it.until(lambda: "replies: must be a whole number" in it.drawer.knobs.trouble)
        row(it, "n")
        for key in ("1", "delete", "escape"):
            with case(key):
                await it.pilot.press(*"1/", "enter")
                await it.until(lambda: it.drawer.knobs.trouble)
                await it.pilot.press(key)
                await it.until(lambda: not it.drawer.knobs.trouble)


@run
async def test_greedy_hides_knobs_that_it_does_not_use(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await it.pilot.press("f3")
        assert "top-k" in it.screen_text()
        row(it, "strategy")
        await it.pilot.press("left")
        await it.until(lambda: it.app.chats.active.chat.params.greedy)
        await it.until(lambda: "top-k" not in it.screen_text())
        await it.pilot.press("right")
        await it.until(lambda: it.app.chats.active.chat.params.temperature == 0.7)


@run
async def test_top_tokens_are_requested_while_it_is_open(bench: Callable[..., Any]) -> None:
    async with bench((100, 40)) as it:
        reply = await it.say("hello")
        assert reply.params.logprobs is None
        await it.pilot.press("f3")
        await it.until(lambda: reply.params.logprobs == 10)
        assert it.drawer.likely.size.height == 1, "the fields get the room until there are tokens"
        reply.say("x", logprobs=[TokenLogprob(7, -0.1, 1, ((7, -0.1), (8, -2.5)))])
        await it.until(lambda: it.app.chats.active.likely)
        it.main.wake()
        await it.until(lambda: "word7" in it.screen_text())
        assert "90.5%" in it.screen_text() and it.drawer.likely.size.height == 10
        await it.pilot.press("f3")
        await it.until(lambda: reply.params.logprobs is None)


@run
async def test_escape_closes_it_and_focuses_the_prompt(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await it.pilot.press("f3")
        assert it.app.focused is it.drawer.knobs
        await it.pilot.press("escape")
        assert it.app.focused is it.main.prompt and not it.drawer.display


@run
async def test_it_shows_that_more_fields_exist_than_fit(bench: Callable[..., Any], tmp_path: Path) -> None:
    configured(tmp_path, '[keys]\n"decoding.down" = ["f9", "down"]\n')
    async with bench((80, 22)) as it:
        await it.pilot.press("f3")
        await it.until(lambda: "more" in it.screen_text())
        labels = [each if isinstance(each, str) else each.label for each in it.drawer.knobs.rows]
        drawn = [each for each in labels if f"▏  {each} " in it.screen_text()]
        hidden = len(labels) - len(drawn)
        assert hidden > 0 and drawn == labels[: len(drawn)]
        assert it.drawer.knobs.size.height == it.drawer.size.height - 1, "all but its margin"
        assert f"↓ {hidden} more" in it.screen_text() and "Up F9" in it.screen_text()
        await it.pilot.press(*["down"] * (len(labels) // 2))
        assert f"↑↓ {hidden} more" in it.screen_text()
        await it.pilot.press("up", *["up"] * (len(labels) // 2))
        assert labels[-1] in it.screen_text() and f"↑ {hidden} more" in it.screen_text()
    async with bench((120, 40)) as it:
        await it.pilot.press("f3")
        await it.until(lambda: all(f"▏  {each} " in it.screen_text() for each in labels))
        assert "more" not in it.screen_text() and "next token" in it.screen_text()


@run
async def test_an_empty_live_part_leaves_its_lines_to_the_fields(bench: Callable[..., Any]) -> None:
    async with bench((80, 24)) as it:
        await it.pilot.press("f3")
        labels = [each if isinstance(each, str) else each.label for each in it.drawer.knobs.rows]
        await it.until(lambda: all(f"▏  {each} " in it.screen_text() for each in labels))
        assert "more" not in it.screen_text() and "next token" not in it.screen_text()
        params = it.app.chats.active.chat.params
        it.app.chats.active.tune(params.changed(temperature=0.0))
        await it.until(lambda: "next token" in it.screen_text())  # fewer fields leave room for it
        it.app.chats.active.tune(params)
        await it.pilot.press("escape")
        reply = await it.say("hello")
        await it.pilot.press("f3")
        reply.say("x", logprobs=[TokenLogprob(7, -0.1, 1, ((7, -0.1), (8, -2.5)))])
        await it.until(lambda: it.app.chats.active.likely)
        it.main.wake()
        await it.until(lambda: "word7" in it.screen_text() and "more" in it.screen_text())
        await it.answered(reply)
        it.main.wake()
        await it.until(lambda: all(f"▏  {each} " in it.screen_text() for each in labels))


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"temperature": 0.0}, "greedy"),
        ({"temperature": 0.7, "top_p": 0.95}, "T 0.7 top-p 0.95"),
        ({"top_k": 40, "min_p": 0.05}, "T 1 top-k 40 min-p 0.05"),
        ({"beams": 4}, "beams 4"),
        ({"beams": 8, "length_penalty": 0.6}, "beams 8 length 0.6"),
        ({"temperature": 0.0, "speculate": "draft"}, "greedy +draft"),
        ({"grammar": Grammar("json", "{}")}, "T 1 json"),
    ],
)
def test_strategy_in_words(params: dict[str, Any], words: str) -> None:
    assert strategy(SamplingParams(**params)) == words


@pytest.mark.parametrize(
    ("field", "text", "value"),
    [
        ("temperature", "0.5", 0.5),
        ("temperature", "0.123456789", 0.123456789),
        ("top_k", "40", 40),
        ("top_k", "", 0),
        ("top_p", "-", 1.0),
        ("seed", "", None),
        ("max_tokens", "64", 64),
        ("stop", r"END|\n\n", ("END", "\n\n")),
    ],
)
def test_typed_values_are_parsed(field: str, text: str, value: object) -> None:
    assert parsed(KNOB[field], text) == value
    params = SamplingParams().changed(**{field: value})
    assert parsed(KNOB[field], shown(KNOB[field], params)) == value


def test_what_is_no_number_is_refused() -> None:
    with pytest.raises(BadParams, match="top_k: must be a whole number, got 'many'"):
        parsed(KNOB["top_k"], "many")


@pytest.mark.parametrize("knob", [knob for knob in KNOBS if knob.step], ids=lambda knob: knob.field)
def test_arrows_stay_in_range(knob: Any) -> None:
    for steps in (-1, 1, -1000, 1000):
        params = SamplingParams()
        for _ in range(3):
            params = params.changed(**{knob.field: stepped(knob, params, steps)})


def test_presets_are_recognized_and_leave_max_tokens_alone() -> None:
    presets = (
        Preset("exact", (("temperature", 0.0),)),
        Preset("wild", (("temperature", 1.2), ("top_p", 0.98))),
    )
    params = presets[1].apply(SamplingParams(seed=3, max_tokens=9))
    assert (params.temperature, params.seed, params.max_tokens) == (1.2, 3, 9)
    assert preset_of(params, presets) is presets[1]
    assert preset_of(params.changed(top_k=3), presets) is None


@run
async def test_the_wheel_reaches_all_fields(bench: Callable[..., Any]) -> None:
    async with bench((80, 16)) as it:
        await it.pilot.press("f3")
        knobs = it.drawer.knobs
        for _ in range(30):
            knobs.post_message(MouseScrollDown(knobs, 5, 5, 0, 1, 0, False, False, False))
        await it.until(lambda: "speculation" in it.screen_text())
        for _ in range(30):
            knobs.post_message(MouseScrollUp(knobs, 5, 5, 0, -1, 0, False, False, False))
        await it.until(lambda: "‹ default ›" in it.screen_text())


@run
async def test_the_key_bar_names_only_keys_that_the_field_uses(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await it.pilot.press("f3")
        for name, wanted in (
            ("temperature", ["Left Right change", "0-9 type"]),
            ("preset", ["Left Right change"]),
            ("strategy", ["Left Right change"]),
            ("stop", ["a-z type"]),
            ("grammar", ["Enter type"]),
            ("speculate", ["Left Right change"]),
        ):
            with case(name):
                row(it, name)
                await it.pilot.pause()
                shown = [f"{key.written} {key.label}" for key in it.main.keybar.keys]
                assert [each for each in shown if each.endswith((" change", " type"))] == wanted


@run
async def test_the_hint_of_a_field_follows_the_focus(bench: Callable[..., Any]) -> None:
    async with bench((120, 40)) as it:
        await it.pilot.press("f3", "down")
        await it.until(lambda: "Left or Right chooses another" in it.screen_text())
        await it.pilot.press("x")
        await it.until(lambda: "Left or Right" not in it.screen_text())
        it.drawer.focus()
        row(it, "max_tokens")
        await it.until(lambda: "0: no reply" in it.screen_text())


@run
async def test_characters_without_another_use_go_to_the_prompt(
    bench: Callable[..., Any],
) -> None:
    async with bench((120, 40)) as it:
        for key, text in (("f3", "7+5?"), ("f4", "(a)"), ("alt+g", "Hello")):
            with case(key):
                await it.pilot.press(key, *text)
                await it.until(lambda: it.app.focused is it.main.prompt)
                assert it.main.prompt.text == text
                it.main.prompt.put("")
        it.main.transcript.focus()
        await it.pilot.press(*"tell")
        await it.until(lambda: it.main.prompt.text == "tell")
        await it.answered(await it.say("hello"), "a reply")
        await it.pilot.click(Transcript, offset=(3, 4))  # letters are keys of the chat only after Tab
        await it.pilot.press("m")
        await it.until(lambda: it.main.prompt.text == "m")
        it.main.prompt.put("")
        await it.pilot.click(Transcript, offset=(3, 4), times=2)  # ... or once something is selected
        await it.pilot.press("m")
        await it.until(lambda: it.app.screen is not it.main)
        await it.pilot.press("escape")
        await it.pilot.press("f3")
        it.app.post_message(Paste("(pasted)"))
        await it.until(lambda: it.main.prompt.text == "(pasted)")
        it.main.prompt.put("")
        await it.pilot.press("alt+g", "p")
        assert it.main.tabs.tabs[0].pinned and it.main.prompt.text == ""
        await it.pilot.press("f3")
        row(it, "stop")
        await it.pilot.press(*"END", "enter")
        await it.until(lambda: it.app.chats.active.chat.params.stop == ("END",))
        assert it.main.prompt.text == ""
