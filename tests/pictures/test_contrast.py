"""Every pair of colors on the screen: contrast at least 4.5 for text and 3 for marks.

`make soak` checks the screen in all themes, and tests/themes checks the colors of each.
"""

import unicodedata
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from rich.style import Style
from textual.color import Color
from textual.geometry import Region
from textual.widget import Widget
from textual.widgets import Input, TextArea

from minichat.shell.themes import load_themes, shipped_themes
from minichat.ui.picture import strips_of
from tests.app.conftest import run
from tests.pictures.scenes import SITTINGS
from tests.pictures.world import World, opened
from tests.themes.colors import contrast

TEXT, MARK = 4.5, 3.0
# These draw frames and fill areas. The text or the marks beside them carry the meaning. The colors of the KV
# map, in half cells, are compared in tests/themes.
FRAMES = frozenset("─│┌┐└┘├┤┬┴┼╭╮╰╯━┃▏▕▎░·▀▄■")


def weak(app: Any) -> Iterator[tuple[str, str, str, float]]:
    """Text with too little contrast, its colors, and their contrast. What a dialog dims does not count."""
    lines = strips_of(app.screen)
    for area in areas(app.screen):
        for strip in lines[area.y : area.bottom]:
            for segment in strip.crop(area.x, area.right):
                if segment.text.strip() and segment.style and (pair := colors(segment.style)):
                    found = contrast(*pair)
                    if found < needed(segment.text, segment.style):
                        yield segment.text, *pair, round(found, 2)


def areas(widget: Widget) -> Iterator[Region]:
    """Where a screen draws, other than the screens below it."""
    for child in widget.children:
        if child.visible and child.display:
            yield child.region.intersection(child.screen.region)
        else:
            yield from areas(child)


def needed(text: str, style: Style) -> float:
    """The largest minimum over the characters of the text. A single bold letter, a chat's, is a mark."""
    shown = [each for each in text if not each.isspace() and each not in FRAMES]
    if any(unicodedata.category(each)[0] in "LN" for each in shown):
        return MARK if len(shown) == 1 and style.bold else TEXT
    return MARK if shown else 0


def colors(style: Style) -> tuple[str, str] | None:
    """A style's text and background colors."""
    if style.color is None or style.bgcolor is None:
        return None
    text, ground = (Color.from_rich_color(each).hex for each in (style.color, style.bgcolor))
    return (ground, text) if style.reverse else (text, ground)


Show = Callable[[World], Awaitable[None]]


def pressed(*keys: str) -> Show:
    async def show(it: World) -> None:
        await it.pilot.press(*keys)

    return show


async def selected_reply(it: World) -> None:
    it.main.transcript.text_select_all()


async def selected_field(it: World) -> None:
    await it.pilot.press("alt+t")
    it.app.screen.query_one(Input).select_all()


async def selected_text(it: World) -> None:
    await it.pilot.press("alt+s", *"be brief")
    it.app.screen.query_one(TextArea).select_all()


async def missing_file(it: World) -> None:
    it.main.banner.say("the engine has stopped", fault=True)
    it.main.prompt.put("see @gone.py")
    await it.until(lambda: "no such file" in it.screen_text())


async def completion(it: World) -> None:
    it.main.banner.say("loading", 0.5)
    it.main.prompt.put("@/")
    it.main.prompt.focus()
    await it.until(lambda: it.main.prompt.completion.offers)


PLACES: dict[str, Show] = {
    "quantization": pressed("f4", "down"),
    "decoding": pressed("f3", "down", "down"),
    "find": pressed("ctrl+f"),
    "overview": pressed("alt+g", "down"),
    "monitor": pressed("alt+m"),
    "queues": pressed("alt+m", "2", "down"),
    "events": pressed("alt+m", "5", "slash", "a"),
    "message": pressed("tab", "ctrl+up"),
    "menu": pressed("tab", "m"),
    "selected reply": selected_reply,
    "missing file": missing_file,
    "completion": completion,
    "help": pressed("f1"),
    "palette": pressed("ctrl+p", "s"),
    "techniques": pressed("alt+x", "down"),
    "jump": pressed("ctrl+o", "down"),
    "models": pressed("alt+o"),
    "why": pressed("f8"),
    "selected field": selected_field,
    "selected text": selected_text,
}


async def leave(it: World) -> None:
    """Close and clear what a place has shown."""
    while it.app.screen is not it.main:
        await it.pilot.press("escape")
    it.main.banner.say("")
    it.main.prompt.put("")
    it.app.screen.clear_selection()
    it.main.prompt.focus()
    for panel in (it.drawer, it.quantization):
        if panel.display:
            it.main.panels.toggle(panel)
    it.main.panels.show_chat()


THEMES = [each.name for each in load_themes(shipped_themes()).palettes.values() if not each.ansi]
USUAL = ("minichat-light", "minichat-dark")


@run
@pytest.mark.parametrize(
    "shown",
    [
        pytest.param([(USUAL[at // 5 % 2], place) for at, place in enumerate(PLACES)][::5], id="usual"),
        # All places in all themes. Colors are compared in tests/themes, too.
        pytest.param([*product(THEMES, PLACES)], id="all", marks=pytest.mark.soak),
    ],
)
async def test_the_whole_screen_is_readable(
    bench: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    shown: Sequence[tuple[str, str]],
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    found = set[tuple[str, str, str, str, str, float]]()
    sitting = SITTINGS["several"]
    async with (
        opened(bench, monkeypatch, tmp_path, sitting, "minichat-dark") as it,
        sitting.scenes["panes"](it),
    ):
        await it.resize((160, 40))  # drawer and monitor both fit beside a chat
        for theme, place in shown:
            it.app.theme = theme
            before = it.screen_text()
            await PLACES[place](it)
            await it.still()
            assert it.screen_text() != before or place == "selected reply"
            found.update((place, theme, *each) for each in weak(it.app))
            await leave(it)
        for reply in it.replies:
            reply.end()
        await it.until(lambda: not it.app.chats.streaming)
    assert not found, "\n".join(map(str, sorted(found)))
