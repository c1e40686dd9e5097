"""Typing a value into a field of the drawer, and erasing it."""

from collections.abc import Callable
from typing import Any

import pytest

from engine.api.params import Grammar, SamplingParams
from minichat.session.decoding import KNOBS, parsed, shown
from tests.app.conftest import run
from tests.app.decoding.test_decoding import row
from tests.cases import case


@run
async def test_enter_selects_a_value_so_that_typing_replaces_it(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await it.pilot.press("f3")
        row(it, "temperature")
        for keys, value in (("1", 1.0), (("end", "5"), 0.75), (("backspace", *"0.5"), 0.5)):
            with case(keys):
                it.app.chats.active.tune(it.app.chats.active.chat.params.changed(temperature=0.7))
                await it.pilot.press("enter", *keys, "enter")
                await it.until(lambda value=value: it.app.chats.active.chat.params.temperature == value)


@run
async def test_the_drawer_promises_of_speculation_what_the_help_does(bench: Callable[..., Any]) -> None:
    async with bench((120, 40)) as it:
        await it.pilot.press("f3")
        row(it, "speculate")
        await it.until(lambda: "often faster, same reply" in " ".join(it.screen_text().split()))


@run
async def test_the_bottom_line_shows_what_ends_typing(bench: Callable[..., Any]) -> None:
    async with bench((120, 40)) as it:
        await it.pilot.press("f3")
        row(it, "temperature")
        for begin in ("enter", "1"):
            await it.until(lambda: "Esc close" in it.screen_text())
            await it.pilot.press(begin)
            await it.until(lambda: "Enter accept  Esc cancel  F1" in it.screen_text())
            await it.pilot.press("escape")
        await it.until(lambda: "Esc close" in it.screen_text())
        assert it.drawer.knobs.has_focus


@run
async def test_backspace_clears_a_value_that_is_not_being_typed(bench: Callable[..., Any]) -> None:
    """As after Enter, or, if it is not typed here, as Delete does."""
    async with bench() as it:
        active = it.app.chats.active
        await it.pilot.press("f3")
        for field, before, keys, value in (
            ("seed", 12, ("backspace", "escape"), 12),
            ("seed", 12, ("backspace", "4", "enter"), 4),
            ("seed", 12, ("backspace", "enter"), None),
            ("grammar", Grammar("regex", "a+"), ("backspace",), None),
            ("speculate", "ngram", ("backspace",), ""),
        ):
            with case((field, keys)):
                active.tune(active.chat.params.changed(**{field: before}))
                row(it, field)
                await it.pilot.press(*keys)
                assert getattr(active.chat.params, field) == value


@run
async def test_what_is_no_number_is_said_as_it_is_typed(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await it.pilot.press("f3")
        for field, typed, wrong, why in (
            ("temperature", "-1e-", "x", "temperature: must be a number, got '-1e-x'"),
            ("top_k", "4", ".", "top-k: must be a whole number, got '4.'"),
        ):
            with case(field):
                row(it, field)
                await it.pilot.press(*typed)
                assert not it.drawer.knobs.trouble, "it may become a number"
                await it.pilot.press(wrong)
                assert it.drawer.knobs.trouble == why
                await it.pilot.press("backspace")
                assert not it.drawer.knobs.trouble
                await it.pilot.press(wrong, "escape")
                assert not it.drawer.knobs.trouble


@run
async def test_ctrl_u_clears_a_value_and_ctrl_w_deletes_its_last_word(
    bench: Callable[..., Any],
) -> None:
    async with bench() as it:
        active = it.app.chats.active
        await it.pilot.press("f3")
        for keys, stops in (
            ((*"END|the end", "ctrl+w", *"last", "enter"), ("END", "the last")),
            (("enter", "end", "ctrl+w", "ctrl+w", "enter"), ("END",)),
            (("ctrl+w", *"a", "enter"), ("a",)),  # nothing is typed yet
            (("enter", "ctrl+w", *"b", "enter"), ("b",)),  # all of it is selected
            (("ctrl+u", "escape"), ("b",)),
            (("ctrl+u", *"c", "enter"), ("c",)),
            (("enter", "end", "d", "ctrl+u", "enter"), ()),
        ):
            with case(keys):
                row(it, "stop")
                await it.pilot.press(*keys)
                assert active.chat.params.stop == stops
        row(it, "strategy")
        before = active.chat.params
        await it.pilot.press("ctrl+u", "ctrl+w")
        assert active.chat.params == before and not it.main.prompt.text


_STOP = next(knob for knob in KNOBS if knob.field == "stop")


@pytest.mark.parametrize(
    ("typed", "stops", "seen"),
    [
        (" END |x y", (" END ", "x y"), r"\sEND\s|x y"),
        (r"a\|b|c", ("a|b", "c"), r"a\|b|c"),
        (r"\s|\t\r|\n\n", (" ", "\t\r", "\n\n"), r"\s|\t\r|\n\n"),
        (r"\end|\\n|x\\|\\", (r"\end", r"\n", "x\\", "\\"), r"\\end|\\n|x\\|\\"),
        ("||", (), ""),
    ],
)
def test_stop_texts_are_taken_as_typed_and_are_the_same_when_accepted_again(
    typed: str, stops: tuple[str, ...], seen: str
) -> None:
    assert parsed(_STOP, typed) == stops
    assert shown(_STOP, SamplingParams(stop=stops)) == seen
    assert parsed(_STOP, seen) == stops


@run
async def test_a_stop_text_keeps_its_blanks_and_bars(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        active = it.app.chats.active
        await it.pilot.press("f3")
        row(it, "stop")
        await it.until(lambda: r"texts, separated by |; \| is a bar," in it.screen_text())
        for stops in ((" a ",), ("a|b", " ")):
            active.tune(active.chat.params.changed(stop=stops))
            await it.pilot.press("enter", "end", *"|z", "enter")
            await it.until(lambda stops=stops: active.chat.params.stop == (*stops, "z"))


@run
async def test_the_cursor_stays_on_a_field_that_its_own_value_turns_off(bench: Callable[..., Any]) -> None:
    """Typed again, a value goes to the same field."""
    async with bench((120, 50)) as it:
        active = it.app.chats.active
        await it.pilot.press("f3")
        for field, before, keys, value in (
            ("temperature", {}, (*"0", "enter", *"0.5", "enter"), 0.5),
            ("beams", {"beams": 4}, (*"1", "enter", *"3", "enter"), 3),
            ("n", {"temperature": 0.0, "n": 2}, (*"1", "enter", *"3", "enter"), 3),
        ):
            with case(field):
                active.tune(SamplingParams(**before))
                await it.pilot.pause()
                row(it, field)
                await it.pilot.press(*keys)
                await it.until(lambda field=field, value=value: getattr(active.chat.params, field) == value)
        assert active.chat.params == SamplingParams(temperature=0.0, n=3)


@run
async def test_a_field_that_is_off_is_hidden_once_the_cursor_leaves_it(bench: Callable[..., Any]) -> None:
    async with bench((120, 50)) as it:
        await it.pilot.press("f3")
        row(it, "temperature")
        await it.pilot.press("0", "enter")
        await it.until(lambda: "temperature  ‹ 0 ›" in it.screen_text() and "top-k" not in it.screen_text())
        await it.pilot.press("down")
        await it.until(lambda: "repetition   ‹ – ›" in it.screen_text())
        assert "temperature" not in it.screen_text()
        await it.pilot.press("up")
        await it.until(lambda: "strategy     ‹ greedy ›" in it.screen_text())


@run
async def test_the_cursor_stays_on_its_field_when_fields_before_it_change(bench: Callable[..., Any]) -> None:
    async with bench((120, 50)) as it:
        active = it.app.chats.active
        await it.pilot.press("f3")
        row(it, "max_tokens")
        active.tune(SamplingParams(temperature=0.0))
        await it.pilot.press(*"77", "enter")
        await it.until(lambda: active.chat.params.max_tokens == 77)
