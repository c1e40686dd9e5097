"""Where notices are shown on the screen."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from textual.widgets._toast import Toast

from engine.api.events import Died, Restarted, Restarting
from minichat import notices
from tests.app.conftest import run


@run
async def test_a_notice_after_others_that_were_cleared_is_at_the_top(bench: Callable[..., Any]) -> None:
    async with bench((80, 24), shows_notices=True) as it:
        for number in range(4):
            it.app.notify(f"notice {number}")
            await it.until(lambda number=number: f"notice {number}" in it.screen_text())
            assert f"notice {number}" in it.screen_text().splitlines()[1]
            await it.pilot.press("escape")
            await it.until(lambda: "notice" not in it.screen_text())


@run
async def test_a_notice_covers_no_field_of_an_open_drawer(bench: Callable[..., Any]) -> None:
    async with bench((80, 24), shows_notices=True) as it:
        it.app.notify("the settings of this program have a long problem that takes several lines here")
        await it.until(lambda: "long problem" in it.screen_text())
        await it.pilot.press("f3")
        await it.until(lambda: it.drawer.region)
        [notice] = it.app.screen.query(Toast)
        await it.until(lambda: not notice.region.overlaps(it.drawer.region))
        assert "preset" in it.screen_text() and "problem" in it.screen_text()


@run
async def test_the_notice_of_a_closed_chat_ends_when_it_is_reopened(bench: Callable[..., Any]) -> None:
    closed = "Chat closed. Alt+Z reopens it"
    async with bench((80, 24), shows_notices=True) as it:
        await it.answered(await it.say("first"))
        it.app.notify("another notice")
        for _ in range(2):  # the second time it is no repetition
            await it.pilot.press("alt+w")
            await it.until(lambda: closed in it.screen_text())
            await it.pilot.press("alt+z")
            await it.until(lambda: closed not in it.screen_text())
        assert "another notice" in it.screen_text()


@run
async def test_closing_a_chat_says_that_its_reply_was_stopped(bench: Callable[..., Any]) -> None:
    async with bench((80, 24), shows_notices=True) as it:
        reply = await it.say("first")
        await it.until(lambda: reply in it.backend.replies)
        await it.pilot.press("alt+w")
        await it.until(lambda: "Chat closed, its reply stopped." in it.screen_text())
        await it.pilot.press("alt+z")
        await it.until(lambda: "Chat closed" not in it.screen_text())


@run
async def test_the_error_of_a_theme_ends_when_the_file_is_correct(
    bench: Callable[..., Any], root: Path
) -> None:
    text = (root / "themes" / "minichat-dark.toml").read_text()
    async with bench((100, 30), shows_notices=True) as it:
        (folder := it.app.paths.themes).mkdir(parents=True)

        def save(name: str, text: str) -> None:
            (folder / f"{name}.toml").write_text(text.replace("minichat-dark", name))
            it.app.on_app_focus()

        def shown() -> str:
            return " ".join(toast._notification.message for toast in it.app.screen.query(Toast))

        it.app.notify("another notice")
        save("one", text.replace("#101418", "no colour"))
        save("two", text.replace("#101418", "nothing"))
        await it.until(lambda: "one.toml:10" in shown() and "two.toml:10" in shown())
        save("one", text)
        await it.until(lambda: "one.toml" not in shown())
        assert "two.toml:10" in shown() and "another notice" in shown()


@run
@pytest.mark.parametrize(
    ("sentence", "shown"),
    [
        ("another minichat writes", "Another minichat writes"),
        ("no", "No"),
        ("max_tokens must be at least 1", "max_tokens must be at least 1"),
        ("src is a folder; name the files in it", "src is a folder; name the files in it"),
        ("int4 needs a GPU", "int4 needs a GPU"),
        ("minichat quit while this reply was streaming", "minichat quit while this reply was streaming"),
    ],
)
async def test_an_error_begins_with_a_capital_letter_unless_it_begins_with_a_name(
    bench: Callable[..., Any], sentence: str, shown: str
) -> None:
    async with bench() as it:
        it.app.report(sentence)
        await it.until(lambda: it.notices() == [shown])


@run
async def test_a_repeated_notice_stays_as_long_as_a_new_one(
    bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Just before the first one ends, the repetition would be visible for a moment only."""
    now = 0.0
    monkeypatch.setattr(notices, "time", SimpleNamespace(monotonic=lambda: now))
    async with bench((80, 24), shows_notices=True) as it:

        def shown() -> list[Toast]:
            return [*it.app.screen.query(Toast)]

        it.app.notify("wait for the end")
        await it.until(shown)
        [first] = shown()
        now = 0.2 * it.app.NOTIFICATION_TIMEOUT
        it.app.notify("wait for the end")
        await it.pilot.pause()
        assert shown() == [first]
        now = 0.9 * it.app.NOTIFICATION_TIMEOUT
        it.app.notify("wait for the end")
        await it.until(lambda: len(shown()) == 1 and shown() != [first])


@run
async def test_that_there_is_no_engine_ends_once_there_is_one(
    bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bench((100, 30), shows_notices=True) as it:
        monkeypatch.setattr(it.app, "report", lambda sentence: it.app.notify(sentence, timeout=600))
        await it.answered(await it.say("hello"))
        for lost, found, notice in (
            (Died(3, 1.0, "killed"), None, "There is no engine. F5 restarts the engine"),
            (Restarting(3, 1.0, "killed", 2.0), Restarted(0, 2.0, 4.0), "The engine is being restarted."),
        ):
            it.backend.emit(lost)
            it.main.prompt.put("typed")
            await it.pilot.press("enter")
            await it.until(lambda notice=notice: notice in it.screen_text())
            if found is None:
                await it.pilot.press("f5")
            else:
                it.backend.emit(found)
            await it.until(lambda notice=notice: notice not in it.screen_text())


@run
async def test_a_notice_ends_although_the_screen_has_closed(bench: Callable[..., Any]) -> None:
    """An interrupted program closes its screens before its replies end."""
    async with bench() as it:
        it.app.notify("A is still replying")
    it.app.end_notice("A is still replying")
