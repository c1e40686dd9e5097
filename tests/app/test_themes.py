"""A theme is chosen, edited, or missing; without colors the screen still says the same."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.app.conftest import run


@run
async def test_a_theme_that_is_edited_is_read_again(
    bench: Callable[..., Any], tmp_path: Path, root: Path
) -> None:
    async with bench() as it:
        themes = it.app.paths.themes
        themes.mkdir(parents=True)
        text = (root / "themes" / "minichat-dark.toml").read_text()
        (themes / "own.toml").write_text(text.replace('name = "minichat-dark"', 'name = "own"'))
        it.app.on_app_focus()
        assert "own" in it.app.available_themes
        (themes / "own.toml").write_text("name = 3")
        it.app.on_app_focus()
        await it.until(lambda: any("own.toml" in said for said in it.notices()))
        assert "own" not in it.app.available_themes
        (themes / "own.toml").write_text(text.replace('name = "minichat-dark"', 'name = "mine"'))
        it.app._looked_around -= 60
        await it.pilot.press("a")  # where the terminal does not tell that it has the focus again
        assert "mine" in it.app.available_themes


@run
async def test_a_theme_that_does_not_exist_is_named(bench: Callable[..., Any], tmp_path: Path) -> None:
    settings = tmp_path / ".config" / "minichat" / "config.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text('[screen]\ntheme = "mos"\n')
    async with bench((100, 30)) as it:
        await it.until(lambda: any("'mos' is not known here; did you mean moss?" in s for s in it.notices()))
        assert it.app.theme == "minichat-dark"


@run
async def test_a_theme_chosen_on_the_screen_is_there_again(bench: Callable[..., Any], tmp_path: Path) -> None:
    async with bench((100, 40)) as it:
        await it.pilot.press("ctrl+p", *"choose a theme")
        await it.until(lambda: "Choose a theme" in it.screen_text())
        await it.pilot.press("down", "enter", *"moss")
        await it.until(lambda: "moss" in it.screen_text())
        await it.pilot.press("down", "enter")
        await it.until(lambda: it.app.theme == "moss")
        await it.until(
            lambda: it.app.paths.remembered.exists() and "moss" in it.app.paths.remembered.read_text()
        )
    async with bench() as it:
        assert it.app.theme == "moss"
        settings = it.app.paths.settings
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text('[screen]\ntheme = "minichat-light"\n')
    async with bench() as it:  # what is written later goes before it
        assert it.app.theme == "minichat-light"


@run
async def test_without_colours_the_active_chat_is_still_told(
    bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with bench() as it:
        await it.answered(await it.say("hello"))
        await it.pilot.press("ctrl+n")
        strip = it.app.screen._compositor.render_strips()[0]
        bold = "".join(segment.text for segment in strip if segment.style and segment.style.bold)
        assert "new chat" in bold
        assert "hello" not in bold
