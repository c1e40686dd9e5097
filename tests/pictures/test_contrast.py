"""Every pair of colors on the screen: contrast at least 4.5 for text and 3 for marks.

`make soak` checks the screen in all themes, and tests/themes checks the colors of each.
"""

import unicodedata
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.style import Style
from textual.color import Color

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
    """Text with too little contrast, its colors, and their contrast."""
    for strip in strips_of(app.screen):
        for segment in strip:
            if segment.text.strip() and segment.style and (pair := colors(segment.style)):
                found = contrast(*pair)
                if found < needed(segment.text, segment.style):
                    yield segment.text, *pair, round(found, 2)


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


async def chosen_scheme(it: World) -> None:
    await it.pilot.press("f4", "down")


async def chosen_field(it: World) -> None:
    await it.pilot.press("f3", "down", "down")


async def help_screen(it: World) -> None:
    await it.pilot.press("f1")


async def find_bar(it: World) -> None:
    await it.pilot.press("escape", "ctrl+f")


PLACES = {
    "quantization": chosen_scheme,
    "decoding": chosen_field,
    "help": help_screen,
    "find": find_bar,
}
THEMES = [each.name for each in load_themes(shipped_themes()).palettes.values() if not each.ansi]


@run
@pytest.mark.parametrize(
    "themes",
    [
        pytest.param(("minichat-light", "minichat-dark"), id="usual"),
        pytest.param(THEMES, id="all", marks=pytest.mark.soak),  # their colors are compared in tests/themes
    ],
)
async def test_the_whole_screen_is_readable(
    bench: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    themes: Sequence[str],
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    found = set[tuple[str, str, str, str, str, float]]()
    sitting = SITTINGS["several"]
    async with (
        opened(bench, monkeypatch, tmp_path, sitting, "minichat-dark") as it,
        sitting.scenes["panes"](it),
    ):
        await it.resize((160, 40))  # drawer and monitor both fit beside a chat
        for place, show in PLACES.items():
            await show(it)
            for theme in themes:
                it.app.theme = theme
                await it.still()
                assert "KV map" in it.screen_text() or place == "help"
                found.update((place, theme, *each) for each in weak(it.app))
        for reply in it.replies:
            reply.end()
        await it.until(lambda: not it.app.chats.streaming)
    assert not found, "\n".join(map(str, sorted(found)))
