"""Themes are chosen, copied and edited in use; errors in the settings about keys are reported."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.color import ColorSystem
from textual.widgets import Input

from minichat.clients.fake import FakeBackend
from minichat.shell.remembered import Remembered
from minichat.ui.picture import strips_of
from tests import impatient
from tests.app.configured import configured
from tests.app.conftest import Clock, run, snapshot


@run
async def test_an_edited_theme_is_reloaded(bench: Callable[..., Any], tmp_path: Path, root: Path) -> None:
    async with bench(clock=(clock := Clock())) as it:
        themes = it.app.paths.themes
        themes.mkdir(parents=True)
        text = (root / "themes" / "minichat-dark.toml").read_text()
        (themes / "own.toml").write_text(text.replace('name = "minichat-dark"', 'name = "own"'))
        it.app.on_app_focus()
        assert "own" in it.app.available_themes
        (themes / "own.toml").write_text("name = 3")
        it.app.on_app_focus()
        await it.until(lambda: any("own.toml" in notice for notice in it.notices()))
        assert "own" not in it.app.available_themes
        (themes / "own.toml").write_text(text.replace('name = "minichat-dark"', 'name = "mine"'))
        clock.now += 60
        await it.pilot.press("a")  # where the terminal does not tell that it has the focus again
        assert "mine" in it.app.available_themes


@run
async def test_a_theme_is_copied_and_each_save_is_applied(
    bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a key or focus: the user is in an editor."""
    monkeypatch.setattr("minichat.ui.live_themes._LOOKS_EVERY", 0.05)
    async with bench() as it:
        await it.command("view.copy_theme")
        await it.pilot.press("enter")
        await it.until(lambda: it.app.theme == "mine")
        file = it.app.paths.themes / "mine.toml"
        assert any(f"Edit {file}. Each save applies immediately" in notice for notice in it.notices())
        text = file.read_text()
        await it.command("view.copy_theme")
        await it.until(lambda: it.app.screen.query(Input))
        assert it.app.screen.query_one(Input).value == "mine-2", "the other one exists"
        await it.pilot.press("escape")

        def ground() -> str:
            return it.app.theme_variables["background"]

        before = ground()
        file.write_text(text.replace("#101418", "#123456"))
        await it.until(lambda: ground() == "#123456" != before)
        file.write_text(text.replace("#101418", "no colour"))
        fault = f"{file}:10: colours.background: must be"
        await it.until(lambda: any(fault in notice for notice in it.notices()))
        assert (it.app.theme, ground()) == ("mine", "#123456"), "unchanged until the error is fixed"
        file.unlink()  # some editors replace the file
        it.app.on_app_focus()
        assert (it.app.theme, ground()) == ("mine", "#123456")
        file.write_text(text.replace("#101418", "#335577").replace('"mine"', '"my own"'))
        await it.until(lambda: (it.app.theme, ground()) == ("my own", "#335577"))
        await it.command("view.copy_theme")
        await it.pilot.press(*"my own", "enter")
        await it.until(lambda: "A theme named 'my own' already exists" in it.notices())
        await it.until(lambda: it.app.screen.query(Input))
        assert it.app.screen.query_one(Input).value == "my own", "it stays, to be corrected"
        await it.pilot.press("escape")
    async with bench() as it:
        assert it.app.theme == "my own", "as at each start from now on"
        assert await impatient.next_timer() < 1, "saves are not noticed"
        it.app.theme = "minichat-light"
        await impatient.quiet()  # files are not read any more


@run
async def test_conflicting_keys_are_reported(bench: Callable[..., Any], tmp_path: Path) -> None:
    """Reports the key, the two actions, and where it is configured."""
    settings = configured(tmp_path, '[keys]\n"chat.new" = "f2"\n')
    async with bench() as it:
        (notice,) = (each for each in it.notices() if "f2" in each)
        assert notice == (
            f'{settings}:2: keys.chat.new: "f2" is bound to both chat.new (New chat) '
            "and view.monitor (Toggle the engine monitor): use another key for one of them"
        )
        await it.pilot.press("f2")
        assert it.monitor.display, "it keeps its key"
        await it.pilot.press("f2", "ctrl+n")
        await it.until(lambda: len(it.app.chats) == 2)


@run
async def test_an_unknown_theme_is_reported(bench: Callable[..., Any], tmp_path: Path) -> None:
    settings = configured(tmp_path, '[screen]\ntheme = "mos"\n')
    async with bench((100, 30)) as it:
        says = f"{settings}:2: screen.theme: 'mos' is unknown; did you mean moss?"
        await it.until(lambda: any(says in s for s in it.notices()))
        assert it.app.theme == "minichat-dark"


@run
async def test_the_highlighted_theme_is_shown_and_escape_restores_the_earlier_one(
    bench: Callable[..., Any],
) -> None:
    async with bench((100, 40)) as it:
        await it.command("view.theme")
        await it.until(lambda: "Choose a theme" in it.screen_text())
        assert it.app.theme == "minichat-dark"
        await it.pilot.press(*"chat-light")
        await it.until(lambda: it.app.theme == "minichat-light")
        below = it.main.styles.background
        assert below.hex == it.app.theme_variables["background"].upper(), "the chats below are in it, too"
        await it.pilot.press(*"xyz")
        assert it.app.theme == "minichat-light", "no theme has that name"
        await it.pilot.press("escape")
        await it.until(lambda: it.app.theme == "minichat-dark")
        assert it.main.styles.background != below


@run
async def test_a_theme_chosen_on_the_screen_is_remembered(bench: Callable[..., Any], tmp_path: Path) -> None:
    async with bench((100, 40)) as it:
        await it.pilot.press("ctrl+p", *"choose a theme")
        await it.until(lambda: "Choose a theme" in it.screen_text())
        await it.pilot.press("enter", *"moss")
        await it.until(lambda: it.app.theme == "moss")
        await it.pilot.press("enter")
        await it.until(
            lambda: it.app.paths.remembered.exists() and "moss" in it.app.paths.remembered.read_text()
        )
    async with bench() as it:
        assert it.app.theme == "moss"
        settings = it.app.paths.settings
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text('[screen]\ntheme = "minichat-light"\n')
    async with bench() as it:  # the newer file takes precedence
        assert it.app.theme == "minichat-light"
        assert not it.notices()


@run
async def test_a_chosen_theme_that_is_gone_is_reported(bench: Callable[..., Any], tmp_path: Path) -> None:
    async with bench() as it:
        file = it.app.paths.remembered
    Remembered().themed("mine", "minichat-dark").write(file)
    async with bench() as it:
        await it.until(lambda: it.notices() == ["The theme mine is gone. This is minichat-dark"])
        await it.until(lambda: "minichat-dark" in Remembered.read(file).theme)
    async with bench() as it:
        await it.until(lambda: it.app.lifecycle.alive)
        assert it.app.theme == "minichat-dark" and not it.notices(), "once is enough"


@run
async def test_a_chosen_theme_with_an_error_stays_chosen(bench: Callable[..., Any], root: Path) -> None:
    async with bench() as it:
        remembered, folder = it.app.paths.remembered, it.app.paths.themes
    Remembered().themed("mine", "minichat-dark").write(remembered)
    folder.mkdir(parents=True, exist_ok=True)
    whole = (root / "themes" / "moss.toml").read_text()
    (folder / "mine.toml").write_text(whole.replace("dark = true", "dark = 3"))
    async with bench() as it:
        assert it.app.theme == "minichat-dark"
        await it.until(lambda: any("mine.toml" in each for each in it.notices()))
    (folder / "mine.toml").write_text(whole.replace('"moss"', '"mine"'))
    async with bench() as it:
        assert it.app.theme == "mine"


@run
async def test_without_colors_the_active_chat_is_still_marked(
    bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with bench() as it:
        await it.answered(await it.say("hello"))
        await it.pilot.press("ctrl+n")
        strip = strips_of(it.app.screen)[0]
        bold = "".join(segment.text for segment in strip if segment.style and segment.style.bold)
        assert "new chat" in bold
        assert "hello" not in bold


@run
@pytest.mark.parametrize("colors", ["none", "16", "the terminal's"])
async def test_where_no_shade_is_shown_the_selected_line_of_each_list_is_marked(
    bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, colors: str
) -> None:
    """The Linux console, for example, has 16 colors, and shows bright text as if it were bold."""
    if colors == "none":
        monkeypatch.setenv("NO_COLOR", "1")
    else:
        monkeypatch.delenv("NO_COLOR", raising=False)

    def reversed_text() -> str:
        segments = (segment for strip in strips_of(it.app.screen) for segment in strip)
        return "".join(each.text for each in segments if each.style and each.style.reverse)

    async with bench((100, 40), backend=FakeBackend([snapshot(0, (0, 1))])) as it:
        it.app.console._color_system = ColorSystem.STANDARD if colors == "16" else ColorSystem.TRUECOLOR
        it.app.theme = "terminal" if colors == "the terminal's" else "minichat-dark"
        await it.answered(await it.say("hello"))
        await it.pilot.press("ctrl+p")
        await it.until(lambda: "Stop this reply" in reversed_text())
        await it.pilot.press("escape", "ctrl+o")
        await it.until(lambda: "hello" in reversed_text())
        await it.pilot.press("escape", "f3")
        await it.until(lambda: "preset" in reversed_text())
        assert "strategy" not in reversed_text()
        await it.pilot.press("escape", "f2", "alt+m", "2")
        await it.until(lambda: "decode" in reversed_text())


@run
async def test_a_listed_theme_whose_file_is_removed(bench: Callable[..., Any]) -> None:
    async with bench((120, 40)) as it:
        await it.command("view.copy_theme")
        await it.pilot.press("enter")
        await it.until(lambda: it.app.theme == "mine")
        await it.command("view.theme")
        await it.pilot.press("down")
        await it.until(lambda: it.app.theme != "mine")
        (it.app.paths.themes / "mine.toml").unlink()
        it.app.on_app_focus()
        await it.pilot.press("up", "escape")
        await it.until(lambda: it.app.screen is it.main)
        assert it.app.theme != "mine" and not it.failures
