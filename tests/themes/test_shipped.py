from itertools import combinations, product

import pytest
from rich.color import ColorType
from textual.app import App, ComposeResult
from textual.color import Color
from textual.widgets import Static

from minichat.chats.letters import color_index, free_letter
from minichat.settings import Settings
from minichat.shell.themes import OKABE_ITO, ThemeColors, load_themes, readable, shipped_themes
from minichat.ui.picture import strips_of
from tests import impatient

from .colors import VISIONS, contrast, difference

LOADED = load_themes(shipped_themes())
ALL = list(LOADED.palettes.values())
RGB = [palette for palette in ALL if not palette.ansi]
GROUNDS = ("background", "surface", "panel")
TEXTS = ("foreground", "primary", "secondary", "accent", "success", "warning", "error")

every = pytest.mark.parametrize("palette", RGB, ids=lambda palette: palette.name)


def needed(palette: ThemeColors) -> float:
    """The minimum contrast: WCAG AAA if the theme's name promises it, else AA."""
    return 7 if palette.name.startswith("high-contrast") else 4.5


def texts(palette: ThemeColors) -> dict[str, str]:
    """Every color that is used for text."""
    variables = palette.theme().to_color_system().generate()
    ours = {name: palette.colors[name] for name in TEXTS}
    colored = {f"text-{name}": variables[f"text-{name}"] for name in TEXTS[1:]}
    syntax = {name: value for name, value in palette.own_variables().items() if name.startswith("syntax-")}
    return {**ours, **colored, **syntax, "muted": variables["text-muted"]}


def test_all_shipped_themes_load() -> None:
    assert LOADED.problems == []
    names = set(LOADED.palettes)
    assert {"minichat-dark", "minichat-light", "high-contrast", "okabe-ito", "terminal"} < names
    assert len(names) >= 8
    assert Settings().screen.theme in names
    assert {file.stem for file in shipped_themes().glob("*.toml")} == names


def test_contrast_matches_wcag() -> None:
    assert contrast("#000000", "#FFFFFF") == pytest.approx(21)
    assert contrast("#777777", "#FFFFFF") == pytest.approx(4.48, abs=0.01)
    assert contrast("#FFFFFF", "#FFFFFF") == 1


@every
@pytest.mark.parametrize("ground", GROUNDS)
def test_text_is_readable(palette: ThemeColors, ground: str) -> None:
    weak = {
        name: round(found, 2)
        for name, color in texts(palette).items()
        if (found := contrast(color, palette.colors[ground])) < needed(palette)
    }
    assert weak == {}


@every
def test_selected_text_is_readable(palette: ThemeColors) -> None:
    selection = palette.theme().to_color_system().generate()["screen-selection-background"]
    ground = Color.parse(palette.colors["background"]) + Color.parse(selection)
    assert contrast(ground.get_contrast_text(1.0).hex, ground.hex) >= needed(palette)
    assert contrast(ground.hex, palette.colors["background"]) > 1.5


@every
@pytest.mark.parametrize("ground", GROUNDS)
def test_typed_text_is_readable_when_it_is_selected(palette: ThemeColors, ground: str) -> None:
    variables, below = palette.theme().to_color_system().generate(), Color.parse(palette.colors[ground])
    chosen = below + Color.parse(variables["input-selection-background"])
    assert contrast(palette.colors["foreground"], chosen.hex) >= needed(palette)
    assert contrast(chosen.hex, below.hex) > 1.5


@every
def test_notices_are_readable_and_frames_are_visible(palette: ThemeColors) -> None:
    variables = palette.theme().to_color_system().generate()
    notice = variables["panel-lighten-1"]
    assert contrast(palette.colors["foreground"], notice) >= needed(palette)
    for severity in ("success", "warning", "error"):
        assert contrast(palette.colors[severity], notice) >= 3, "the bar beside it"
    assert contrast(palette.own_variables()["frame"], palette.colors["background"]) > 1.5


@every
def test_a_scroll_bar_is_visible_and_its_track_is_subtle(palette: ThemeColors) -> None:
    variables = palette.theme().to_color_system().generate()
    for state in ("", "-hover", "-active"):
        track = variables[f"scrollbar-background{state}"]
        assert contrast(variables[f"scrollbar{state}"], track) >= 3
        for ground in GROUNDS:
            assert contrast(track, palette.colors[ground]) < 1.5


@every
def test_the_letter_of_a_chat_is_readable_on_its_color(palette: ThemeColors) -> None:
    for index in range(len(palette.owners)):
        ink, _, ground = palette.letter(index).partition(" on ")
        assert contrast(ink, ground) >= 4.5, palette.letter(index)


@every
def test_a_dark_theme_is_dark(palette: ThemeColors) -> None:
    background = palette.colors["background"]
    assert (contrast("#FFFFFF", background) > contrast("#000000", background)) is palette.dark


@every
def test_owners_are_distinct_from_the_background_and_each_other(palette: ThemeColors) -> None:
    assert len(palette.owners) >= 8
    for owner in palette.owners:
        for ground in ("background", "surface"):
            least = needed(palette) if needed(palette) == 7 else 3
            assert contrast(owner, palette.colors[ground]) >= least, owner
    for vision in VISIONS:
        for one, other in combinations(palette.owners, 2):
            assert difference(one, other, vision) > 12, (vision, one, other)


@every
def test_each_of_24_chats_has_its_own_color(palette: ThemeColors) -> None:
    colors = [palette.owner(index) for index in range(24)]
    assert palette.owners == tuple(colors[:8])
    for one, other in combinations(colors, 2):
        assert difference(one, other, "usual") > 12, (one, other)
    for one, other in product(colors, palette.map.values()):
        assert difference(one, other, "usual") > 12, (one, other)
    for index, color in enumerate(colors):
        assert min(contrast(color, palette.colors[ground]) for ground in ("background", "surface")) >= 3
        ink, _, ground = palette.letter(index).partition(" on ")
        assert (ground, contrast(ink, ground) >= 4.5) == (color, True)
        assert palette.own_variables()[f"owner-{index + 1}"] == color


@pytest.mark.parametrize("palette", ALL, ids=lambda palette: palette.name)
def test_no_two_chats_share_letter_and_color(palette: ThemeColors) -> None:
    letters: list[str] = []
    while len(letters) < 100:
        letters.append(free_letter(letters))
    assert len(set(letters)) == 100
    on_map = {(letter[-1], palette.owner(color_index(letter))) for letter in letters}
    assert len(on_map) == 100
    assert len({palette.owner(index) for index in range(14)}) == 14


@every
def test_blocks_without_an_owner_are_distinct(palette: ThemeColors) -> None:
    assert contrast(palette.map["free"], palette.colors["background"]) > 1.2
    assert contrast(palette.map["cached"], palette.map["free"]) > 1.4
    assert contrast(palette.map["cached"], palette.colors["background"]) >= 3


@every
def test_the_color_of_a_chat_is_readable_as_text(palette: ThemeColors) -> None:
    ground, text = (Color.parse(palette.colors[name]) for name in ("background", "foreground"))
    for index in range(24):
        owner = Color.parse(palette.owner(index))
        shown = readable(owner, ground, text)
        assert contrast(shown.hex, ground.hex) >= 4.5
        assert shown == owner or contrast(owner.hex, ground.hex) < 4.5


# As xterm shows them.
XTERM = (
    "#000000 #CD0000 #00CD00 #CDCD00 #0000EE #CD00CD #00CDCD #E5E5E5 "
    "#7F7F7F #FF0000 #00FF00 #FFFF00 #5C5CFF #FF00FF #00FFFF #FFFFFF"
).split()


@pytest.mark.parametrize("palette", [each for each in ALL if each.ansi], ids=lambda palette: palette.name)
def test_the_letter_of_a_chat_is_readable_on_the_terminals_color(palette: ThemeColors) -> None:
    for index in range(len(palette.owners)):
        ink, ground = (XTERM[Color.parse(name).ansi or 0] for name in palette.letter(index).split(" on "))
        assert contrast(ink, ground) >= 4, palette.letter(index)


@pytest.mark.parametrize("vision", VISIONS)
def test_okabe_ito_separates_good_from_bad_for_every_color_vision(vision: str) -> None:
    palette = LOADED.palettes["okabe-ito"]
    assert palette.owners == OKABE_ITO
    for one, other in combinations(("success", "warning", "error"), 2):
        assert difference(palette.colors[one], palette.colors[other], vision) > 20


class Page(App[None]):
    CSS = """
        Screen { background: $background; color: $foreground; }
        #muted { color: $text-muted; }
        #owner { color: $owner-3; background: $map-free; }
        #code { color: $syntax-string; }
        Static { border: solid $border; }
    """

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return LOADED.palettes["minichat-dark"].own_variables()

    def compose(self) -> ComposeResult:
        for id in ("muted", "owner", "code"):
            yield Static("text", id=id)


async def colors_on_screen(palette: ThemeColors) -> set[ColorType]:
    """The kinds of color on the screen."""
    page = Page()
    page.register_theme(palette.theme())
    async with page.run_test(size=(20, 12)) as pilot:
        page.theme = palette.name
        await pilot.pause()
        assert page.native_ansi_color is palette.ansi  # otherwise Textual converts them
        strips = strips_of(page.screen)
    styles = [segment.style for strip in strips for segment in strip]
    return {color.type for style in styles if style for color in (style.color, style.bgcolor) if color}


@pytest.mark.parametrize("palette", ALL, ids=lambda palette: palette.name)
def test_textual_accepts_each_theme(palette: ThemeColors) -> None:
    kinds = impatient.run(colors_on_screen(palette))
    assert kinds == ({ColorType.DEFAULT, ColorType.STANDARD} if palette.ansi else {ColorType.TRUECOLOR})
