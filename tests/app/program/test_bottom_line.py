"""The keys on the bottom line are those of the place with the focus."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.api.events import Evicted
from engine.api.snapshot import Change, SchemeView
from minichat.clients.fake import FakeBackend
from tests.app.configured import configured
from tests.app.conftest import run, snapshot


@run
async def test_the_bottom_line_has_the_keys_of_the_filter_of_events(bench: Callable[..., Any]) -> None:
    async with bench((120, 40)) as it:
        keys = lambda: it.screen_text().splitlines()[-1]  # noqa: E731
        await it.pilot.press("alt+m", "slash")
        await it.until(lambda: "Enter keep the filter  Esc all events  F1" in keys())
        await it.pilot.press("x", "enter")
        await it.until(lambda: "/ filter" in keys() and "Esc all events" in keys())
        await it.pilot.press("escape")
        await it.until(lambda: "/ filter" in keys() and "Esc back" in keys())


@run
async def test_in_a_chat_it_says_what_escape_does(bench: Callable[..., Any]) -> None:
    async with bench((120, 40)) as it:
        keys = lambda: it.screen_text().splitlines()[-1]  # noqa: E731
        reply = await it.say("hello")
        await it.pilot.press("f3", "shift+tab")
        await it.until(lambda: it.main.transcript.has_focus and "y copy  Esc close" in keys())
        await it.pilot.press("escape")
        await it.until(lambda: not it.drawer.display)
        it.main.transcript.focus()
        await it.until(lambda: "y copy  Esc stop" in keys())
        await it.pilot.press("escape")
        await it.until(lambda: reply.finished)
        it.main.transcript.focus()
        await it.until(lambda: "y copy  Esc back" in keys())
        await it.pilot.press("escape")
        await it.until(lambda: it.main.prompt.has_focus)


@run
async def test_it_has_the_keys_of_the_list_of_files(
    bench: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "notes.txt").write_text("1")
    monkeypatch.chdir(tmp_path)
    async with bench((120, 40)) as it:
        keys = lambda: it.screen_text().splitlines()[-1]  # noqa: E731
        await it.say("hello")
        await it.pilot.press("@", "n")
        await it.until(lambda: "Tab complete  Up Down choose  Esc close" in keys())
        assert "Esc stop" not in keys()
        assert str(it.main.prompt.border_subtitle).endswith("Enter complete")
        await it.pilot.press("escape")
        await it.until(lambda: "Esc stop" in keys() and "Tab complete" not in keys())
        assert str(it.main.prompt.border_subtitle).endswith("Enter send  ^J newline")


@run
async def test_an_open_list_of_files_is_closed_before_an_edit_is_cancelled(
    bench: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "notes.txt").write_text("1")
    monkeypatch.chdir(tmp_path)
    async with bench((120, 40)) as it:
        below = lambda: str(it.main.prompt.border_subtitle)  # noqa: E731
        await it.answered(await it.say("hello"))
        await it.pilot.press("alt+e")
        await it.until(lambda: below().endswith("Esc cancel"))
        await it.pilot.press("space", "@", "n")
        await it.until(lambda: below().endswith("Enter complete"))
        await it.pilot.press("escape")
        await it.until(lambda: below().endswith("Esc cancel"))


@run
@pytest.mark.parametrize(
    ("settings", "shown"), [("", "1-6 pane"), ('[keys]\n"monitor.pane_1" = "v"\n', "v 2 3 4 5 6 pane")]
)
async def test_in_the_monitor_it_has_the_keys_of_the_panes(
    bench: Callable[..., Any], tmp_path: Path, settings: str, shown: str
) -> None:
    configured(tmp_path, settings)
    async with bench((120, 40)) as it:
        await it.pilot.press("alt+m")
        await it.until(lambda: it.app.focused is it.monitor.kvmap)
        await it.until(lambda: f"{shown}  Esc" in it.screen_text().splitlines()[-1])


@run
async def test_while_the_monitor_is_paused_the_key_resumes_it(bench: Callable[..., Any]) -> None:
    async with bench((120, 40)) as it:
        keys = lambda: it.screen_text().splitlines()[-1]  # noqa: E731
        await it.pilot.press("alt+m")
        for pane in (it.monitor.queues, it.monitor.latency):
            pane.focus()
            await it.until(lambda: "p pause" in keys())
            await it.pilot.press("p")
            await it.until(lambda: "p resume" in keys() and "p pause" not in keys())
            await it.pilot.press("p")
            await it.until(lambda: "p pause" in keys())


@run
async def test_what_escape_closes_first_is_said_first(bench: Callable[..., Any]) -> None:
    async with bench((120, 40)) as it:
        keys = lambda: it.screen_text().splitlines()[-1]  # noqa: E731
        await it.answered(await it.say("hello"))
        reply = await it.say("more")
        await it.pilot.press("ctrl+f", "h")
        await it.until(lambda: "Esc done" in keys())
        for focused in (it.main.transcript, it.main.prompt):
            focused.focus()
            await it.until(lambda: "Esc close" in keys() and "Esc stop" not in keys())
        await it.pilot.press("escape")
        await it.until(lambda: "Esc stop" in keys())
        await it.answered(reply)
        await it.pilot.press("f3", "alt+e")
        await it.until(lambda: "Esc cancel" in keys() and "Esc close" not in keys())
        await it.pilot.press("escape")
        await it.until(lambda: "Esc close" in keys() and it.drawer.display)
        await it.pilot.press("escape")
        await it.until(lambda: not it.drawer.display and "Esc" not in keys())


@run
async def test_below_a_dialog_it_has_only_keys_that_work_there(bench: Callable[..., Any]) -> None:
    async with bench((120, 40)) as it:
        shown = lambda: [f"{key.written} {key.label}" for key in it.main.keybar.keys]  # noqa: E731
        await it.say("hello")
        everywhere = ["F1 help", "F2 monitor", "F3 decoding", "^P all", "^N new", "^O jump"]
        await it.until(lambda: shown() == ["Esc stop", *everywhere])
        for opens in ("ctrl+p", "alt+t", "f8"):
            await it.pilot.press(opens)
            await it.until(lambda: it.app.screen is not it.main and shown() == [])
            await it.pilot.press("escape")
            await it.until(lambda: shown() == ["Esc stop", *everywhere])
        await it.pilot.press("f1")
        await it.until(lambda: shown() == everywhere)
        it.main.label()
        await it.until(lambda: shown() == everywhere)


@run
async def test_it_has_the_keys_of_the_listed_blocks(bench: Callable[..., Any]) -> None:
    async with bench((120, 40)) as it:
        keys = lambda: it.screen_text().splitlines()[-1]  # noqa: E731
        await it.until(lambda: it.main.engine.latest)
        await it.pilot.press("alt+m")
        await it.until(lambda: "Enter blocks  o order  c color" in keys())
        await it.pilot.press("enter")
        await it.until(lambda: "Left Right cell  Enter map  1-6 pane  Esc map" in keys())
        await it.pilot.press("escape")
        await it.until(lambda: "Enter blocks  o order  c color" in keys())


@run
async def test_the_keys_that_scroll_the_events_are_there_if_they_do(bench: Callable[..., Any]) -> None:
    async with bench((120, 40)) as it:
        keys = lambda: it.screen_text().splitlines()[-1]  # noqa: E731
        await it.pilot.press("alt+m")
        it.monitor.event_log.focus()
        await it.until(lambda: "/ filter" in keys() and "scroll" not in keys())
        for number in range(40):
            it.backend.emit(Evicted(number, 1.0, number, 1))
        await it.until(lambda: "Up Down scroll  / filter" in keys())


@run
async def test_the_keys_of_the_focus_come_before_where_the_engine_runs(bench: Callable[..., Any]) -> None:
    backend = FakeBackend([snapshot()], elsewhere="/run/user/1000/box.sock")
    async with bench((80, 24), backend=backend) as it:
        keys = lambda: it.screen_text().splitlines()[-1]  # noqa: E731
        place = "attached to /run/user/1000/box.sock"
        await it.until(lambda: place in keys() and "F1 help" in keys())
        await it.pilot.press("alt+m")
        await it.until(lambda: keys().startswith(" ready  ") and "Esc back" in keys() and place not in keys())
        await it.pilot.press("escape")
        await it.until(lambda: place in keys())


@run
async def test_in_a_searched_chat_it_has_the_keys_from_match_to_match(bench: Callable[..., Any]) -> None:
    async with bench((80, 24)) as it:
        keys = lambda: it.screen_text().splitlines()[-1]  # noqa: E731
        await it.answered(await it.say("hello"), "a needle")
        it.main.transcript.focus()
        await it.until(lambda: "m menu" in keys() and "match" not in keys())
        await it.pilot.press("ctrl+f", *"needle", "tab")
        await it.until(lambda: "n N match" in keys() and "Esc close" in keys())
        await it.pilot.press("escape", "tab")
        await it.until(lambda: "m menu" in keys() and "match" not in keys())


@run
async def test_the_key_that_pins_a_chat_unpins_a_pinned_one(bench: Callable[..., Any]) -> None:
    async with bench((120, 40)) as it:
        keys = lambda: it.screen_text().splitlines()[-1]  # noqa: E731
        await it.pilot.press("ctrl+n", "alt+g")
        await it.until(lambda: "p pin" in keys())
        await it.pilot.press("home", "p")
        await it.until(lambda: "p unpin" in keys())
        await it.pilot.press("down")
        await it.until(lambda: "p pin" in keys())
        await it.pilot.press("up", "p")
        await it.until(lambda: "p pin" in keys())


@run
async def test_it_says_that_the_weights_are_converted(bench: Callable[..., Any]) -> None:
    """Another screen may have asked for it; every reply waits."""
    async with bench((120, 40)) as it:
        state = lambda: it.screen_text().splitlines()[-1]  # noqa: E731
        await it.say("hello")
        it.main.show_snapshot(replace(snapshot(), change=Change("int8", 3, 8)))
        await it.until(lambda: state().startswith(" converting to int8  "))
        it.main.show_snapshot(replace(snapshot(), change=Change("int8", 2, 8, "it was canceled")))
        await it.until(lambda: state().startswith(" reverting to none  "))
        it.main.show_snapshot(replace(snapshot(), change=Change("int8", 0, 8, "it was canceled", True)))
        await it.until(lambda: state().startswith(" 1 replying  "))


@run
async def test_in_the_quantization_drawer_it_has_only_keys_that_do_something(
    bench: Callable[..., Any],
) -> None:
    schemes = (SchemeView("none", "", 4_000_000_000), SchemeView("int8", "", 2_200_000_000))
    shot = replace(snapshot(), schemes=schemes, kv_schemes=schemes)
    backend = FakeBackend([shot])
    backend.loaded.clear()
    async with bench((120, 20), backend=backend) as it:
        keys = lambda: it.screen_text().splitlines()[-1].split("  F1")[0].split("  ", 1)[1].strip()  # noqa: E731
        await it.pilot.press("f4")
        await it.until(lambda: keys() == "Esc close")
        backend.loaded.set()
        await it.until(lambda: keys() == "Up Down choose  Tab cache  PgDn more  Enter convert  Esc close")
        await it.pilot.resize_terminal(120, 60)
        await it.until(lambda: keys() == "Up Down choose  Tab cache  Enter convert  Esc close")
        it.main.show_snapshot(replace(shot, kv_schemes=()))
        await it.until(lambda: keys() == "Up Down choose  Enter convert  Esc close")


@run
async def test_escape_closes_the_quantization_drawer_while_a_conversion_is_reverted(
    bench: Callable[..., Any],
) -> None:
    """There is nothing left to cancel."""
    async with bench((120, 40)) as it:
        keys = lambda: it.screen_text().splitlines()[-1]  # noqa: E731
        await it.pilot.press("f4")
        it.main.show_snapshot(replace(snapshot(), change=Change("int8", 3, 8)))
        await it.until(lambda: "Esc cancel" in keys())
        it.main.show_snapshot(replace(snapshot(), change=Change("int8", 2, 8, "it was canceled")))
        await it.until(lambda: "Esc close" in keys())
        await it.pilot.press("escape")
        await it.until(lambda: not it.quantization.display)
        assert it.backend.quantized == []
