"""Themes as TOML files: the built-in ones, and the user's in a folder beside the settings."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from math import dist
from pathlib import Path
from typing import Any

from textual.color import Color, ColorParseError, Lab, rgb_to_lab
from textual.theme import Theme

from minichat.settings.load import Problem, TomlDocument, read
from minichat.settings.nearest import unknown
from minichat.settings.toml import literal
from minichat.shell.paths import files_in

COLORS = tuple("primary secondary accent foreground background surface panel success warning error".split())
MAP = ("free", "cached")
# Styles of code tokens if the theme sets none.
SYNTAX = {
    "comment": "muted",
    "keyword": "accent",
    "string": "success",
    "number": "warning",
    "function": "primary",
    "builtin": "secondary",
    "inserted": "success",
    "deleted": "error",
}
# The Okabe-Ito palette, distinguishable with any color vision. Its black is gray here.
OKABE_ITO = (
    "#56B4E9",
    "#E69F00",
    "#009E73",
    "#CC79A7",
    "#F0E442",
    "#0072B2",
    "#D55E00",
    "#BBBBBB",
)
_EVEN = 0.179  # the luminance at which black and white have equal contrast
MUTED = 0.72  # position between background and text color
THUMB = 0.6  # likewise, for a dragged scroll bar
_FRAME = 0.15  # the lightness of a frame beyond that of a panel
_SELECTED = 0.35  # opacity of the primary color behind selected text
_ENDS = ("white", "black")
_SHADES = (0.3, 0.5, 0.7)  # positions toward white or black
_MORE = 16  # colors beyond a theme's own, so that 24 chats differ
_SEEN = 3.0  # the minimum contrast of a mark
_READ = 4.5  # and of text
_DARK_ANSI = (0, 1, 4, 5, 8, 12)  # black, red, blue, magenta, gray, bright blue: dark in common terminals
_KEYS = ("name", "about", "dark", "owners", "colours", "map", "syntax", "variables")
_NAME = re.compile(r"^name\s*=.*$", re.MULTILINE)
_UNFIT = re.compile(r"[^\w.-]+")  # for file names
_SHARE = re.compile(r"\s+[0-9.]+%$")  # the opacity of a color, as in `#ffffff 40%`
_STYLES = frozenset("none not bold dim italic underline reverse strike b d i u r s".split())


@dataclass(frozen=True, slots=True)
class ThemeColors:
    """One validated theme."""

    name: str
    about: str
    dark: bool
    colors: Mapping[str, str]
    owners: tuple[str, ...]
    shades: tuple[str, ...]  # lighter and darker variants, so that a ninth chat differs from the first eight
    map: Mapping[str, str]
    syntax: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def ansi(self) -> bool:
        """Whether it uses the terminal's own colors."""
        return Color.parse(self.colors["background"]).ansi is not None

    @property
    def muted(self) -> str:
        """The color of secondary text; for terminal colors no mixture can be computed."""
        return self.colors["foreground"] if self.ansi else self._between(MUTED)

    def _between(self, share: float) -> str:
        """Mix background and text color."""
        text, ground = (Color.parse(self.colors[name]) for name in ("foreground", "background"))
        return ground.blend(text, share).hex

    @property
    def _frame(self) -> str:
        """The color of frames without the focus: Textual's lighter ones are invisible in a light theme."""
        if self.ansi:
            return "ansi_bright_black"
        panel = Color.parse(self.colors["panel"])
        return (panel.lighten(_FRAME) if self.dark else panel.darken(_FRAME)).hex

    def owner(self, index: int) -> str:
        """The color of a chat, by `letters.color_index`."""
        known = self.owners + self.shades
        return known[index % len(known)]

    def letter(self, index: int) -> str:
        """The style of a chat's letter: black or white on the chat's color."""
        owner = self.owner(index)
        ground = Color.parse(owner)
        if ground.ansi is not None:
            return f"{'ansi_bright_white' if ground.ansi in _DARK_ANSI else 'ansi_black'} on {owner}"
        return f"{'#000000' if _luminance(ground) > _EVEN else '#FFFFFF'} on {owner}"

    def own_variables(self) -> dict[str, str]:
        """Variables of our style sheets beyond Textual's: $frame, $map-free, $owner-1 and others."""
        named, known = {**self.colors, "muted": self.muted}, self.owners + self.shades
        return {
            "frame": self._frame,
            **{f"map-{name}": color for name, color in self.map.items()},
            **{f"syntax-{name}": self.syntax.get(name, named[usual]) for name, usual in SYNTAX.items()},
            **{f"owner-{number}": color for number, color in enumerate(known, start=1)},
        }

    def theme(self) -> Theme:
        """The theme for Textual's `register_theme`."""
        if self.ansi:  # Textual's style sheets need these two, and it sets none for such a theme
            black, white = "ansi_black", "ansi_white"
            ground, text = (black, white) if self.dark else (white, black)
            usual = {"ansi-background": ground, "ansi-foreground": text}
            usual |= {"scrollbar-background": self.colors["background"]}
        else:
            usual = {"text-muted": self.muted, "foreground-muted": self.muted}
            usual |= {"scrollbar-background": self.colors["panel"], "scrollbar": self._between(THUMB)}
            usual |= {"scrollbar-hover": self.muted}
            usual |= {
                "input-selection-background": Color.parse(self.colors["primary"]).with_alpha(_SELECTED).hex
            }
        colors: dict[str, Any] = {**self.colors}
        return Theme(
            name=self.name,
            dark=self.dark,
            ansi=self.ansi,
            **colors,
            variables={**usual, **self.own_variables(), **self.variables},
        )


@dataclass(frozen=True, slots=True)
class Themes:
    """The valid themes by name, and the problems in others."""

    palettes: dict[str, ThemeColors]
    problems: list[Problem]
    files: dict[str, Path] = field(default_factory=dict)  # by name


def shipped_themes() -> Path:
    """The folder of built-in themes: inside the installed package, or above it in a checkout."""
    inside = Path(__file__).parents[1] / "themes"
    return inside if inside.is_dir() else Path(__file__).parents[2] / "themes"


def load_themes(*folders: Path) -> Themes:
    """Load the themes of the folders; a later folder overrides an earlier one."""
    found = Themes({}, [])
    for folder in folders:
        for file in files_in(folder, "*.toml"):
            document = read(file)
            palette = None if document.problems else _palette(document)
            other = found.files.get(palette.name) if palette else None
            if other is not None and other.parent == folder:
                document.report("name", f"is also the name in {other.name}; choose another")
                palette = None
            found.problems.extend(document.problems)
            if palette:
                found.palettes[palette.name] = palette
                found.files[palette.name] = file
    return found


def copied(file: Path, name: str, folder: Path) -> Path:
    """Copy a theme file to the folder under another name, to be edited."""
    copy = folder / f"{_UNFIT.sub('-', name)}.toml"
    text = _NAME.sub(lambda _: f"name = {literal(name)}", file.read_text(encoding="utf-8"), count=1)
    folder.mkdir(parents=True, exist_ok=True)
    with copy.open("x", encoding="utf-8") as written:
        written.write(text)
    return copy


class Watch:
    """Detects changed, added or removed themes in a folder; each check reads the file times."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen = self._stamps()

    def changed(self) -> bool:
        """Whether a file has changed since the last call."""
        before, self._seen = self._seen, self._stamps()
        return self._seen != before

    def _stamps(self) -> dict[Path, tuple[int, int]]:
        stamps = {}
        for file in files_in(self._folder, "*.toml"):
            try:
                stat = file.stat()
            except OSError:  # deleted since the folder was listed
                continue
            stamps[file] = (stat.st_mtime_ns, stat.st_size)
        return stamps


def _palette(document: TomlDocument) -> ThemeColors | None:
    """The theme of the file, if it is valid."""
    found = document.tables
    for name in found.keys() - set(_KEYS):
        document.report(name, unknown(name, _KEYS))
    called: Any = found.get("name")
    about: Any = found.get("about", "")
    dark: Any = found.get("dark")
    if not isinstance(called, str) or not called.strip():
        document.report("name", "is required: a nonempty text")
    if not isinstance(about, str):
        document.report("about", f"must be a text, got {literal(about)}")
    if not isinstance(dark, bool):
        says = "is required:" if dark is None else "must be"
        document.report("dark", f"{says} true, or false for a light background")
    colors = _colors(document, "colours", COLORS, required=True)
    on_map = _colors(document, "map", MAP, required=True)
    syntax = _colors(document, "syntax", SYNTAX)
    owners, variables = _owners(document), _variables(document)
    if document.problems:
        return None
    shades = _shades_of(owners, (colors["background"], colors["surface"]), tuple(on_map.values()))
    return ThemeColors(called, about, dark, colors, owners, shades, on_map, syntax, variables)


@lru_cache(maxsize=64)  # themes are read again whenever one is edited
def _shades_of(owners: tuple[str, ...], grounds: tuple[str, ...], others: tuple[str, ...]) -> tuple[str, ...]:
    """Lighter and darker variants of the owners' colors; none for terminal colors.

    Each is the visible one that differs most from all before it and from the `others` on the map.
    """
    behind, there = [*map(Color.parse, grounds)], [*map(Color.parse, (*owners, *others))]
    if any(color.ansi is not None for color in (*there, *behind)):
        return ()
    tried = _variants(owners)
    seen = [each for each in tried if min(_contrast(each, ground) for ground in behind) >= _SEEN] or tried
    apart = [min(dist(_lab(each), _lab(color)) for color in there) for each in seen]
    chosen: list[str] = []
    for _ in range(_MORE):
        best = seen[max(range(len(seen)), key=apart.__getitem__)]
        chosen.append(best.hex)
        apart = [min(near, dist(_lab(each), _lab(best))) for near, each in zip(apart, seen, strict=True)]
    return tuple(chosen)


@cache  # many themes have the same colors of owners
def _variants(owners: tuple[str, ...]) -> tuple[Color, ...]:
    ends, known = [*map(Color.parse, _ENDS)], [*map(Color.parse, owners)]
    return tuple(color.blend(end, share) for end in ends for share in _SHADES for color in known)


@cache
def _lab(color: Color) -> Lab:
    return rgb_to_lab(color)


def readable(color: Color, ground: Color, text: Color) -> Color:
    """The color, mixed with that of the text until it can be read on the ground."""
    mixed = (color.blend(text, share / 10) for share in range(10))
    return next((each for each in mixed if _contrast(each, ground) >= _READ), text)


def _contrast(one: Color, other: Color) -> float:
    darker, lighter = sorted((_luminance(one), _luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def _colors(
    document: TomlDocument, section: str, names: Iterable[str], required: bool = False
) -> dict[str, str]:
    table = _table(document, section)
    for name, value in table.items():
        if name not in names:
            document.report(f"{section}.{name}", unknown(name, names))
        elif fault := _color_fault(value):
            document.report(f"{section}.{name}", fault)
    if missing := [name for name in names if name not in table] if required else []:
        document.report(section, f"must also set {', '.join(missing)}")
    return table


def _owners(document: TomlDocument) -> tuple[str, ...]:
    owners = document.tables.get("owners", OKABE_ITO)
    if not isinstance(owners, list | tuple) or len(owners) < len(OKABE_ITO):
        document.report("owners", f"must be a list of at least {len(OKABE_ITO)} colors")
        return ()
    for number, value in enumerate(owners, start=1):
        if fault := _color_fault(value):
            document.report("owners", f"color {number} {fault}")
    return tuple(owners)


def _variables(document: TomlDocument) -> dict[str, str]:
    table = _table(document, "variables")
    for name, value in table.items():
        known = _known_variables()
        fault = _variable_fault(name, value) if name in known else unknown(name, known)
        if fault:
            document.report(f"variables.{name}", fault)
    return table


@cache
def _known_variables() -> Mapping[str, str]:
    return Theme("any", "#000000").to_color_system().generate()


def _variable_fault(name: str, value: Any) -> str:
    if name.endswith("-style"):
        good = isinstance(value, str) and _STYLES.issuperset(value.split())
        return "" if good else f"must be words like bold or none, got {literal(value)}"
    color = _SHARE.sub("", value) if isinstance(value, str) else value
    return "" if color == "auto" else _color_fault(color)


def _table(document: TomlDocument, section: str) -> dict[str, Any]:
    table = document.tables.get(section, {})
    if isinstance(table, dict):
        return table
    document.report(section, f"must be a table: write [{section}] above its keys")
    return {}


def _color_fault(value: Any) -> str:
    """What is wrong with a color; empty if it is valid."""
    if not isinstance(value, str):
        return f'must be a color like "#88aaff" or "ansi_blue", got {literal(value)}'
    try:
        Color.parse(value)
    except ColorParseError as error:
        near = f"; did you mean {error.suggested_color}?" if error.suggested_color else ""
        return f'must be a color like "#88aaff" or "ansi_blue", got {literal(value)}{near}'
    return ""


def _luminance(color: Color) -> float:
    """The relative luminance of WCAG 2, from 0 (black) to 1 (white)."""
    parts = (part / 255 for part in color.rgb)
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
