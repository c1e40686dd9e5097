"""How a cell of the map is drawn: a color if the terminal can mix colors, else a letter."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from rich.color import Color as RichColor
from rich.segment import Segment
from rich.style import Style
from textual.app import App
from textual.color import Color

from minichat.shell.themes import MAP
from minichat.ui.monitor.cells import BRIGHT, RAMP, State, Tint
from minichat.ui.monitor.owners import Owner

# A cell is one number; an empty cell is 0.
THERE, CURSOR, GLOW = 1 << 24, 1 << 25, 1 << 26
_BELOW = 32  # shift of the second cell, if a character has two
_FAINTEST, _DARKEST = 0.45, 0.3  # share of an owner's color, of the ramp's color
_TRACE = 0.3  # share of the owner's color in a cached block
_LEFT = 0.3  # share of the text color in a block that was dropped
_SHARED = 0.6  # share of the text color in a shared block
_FALLBACK = {"free": "#2b323a", "cached": "#4a5561"}  # for an app without minichat's themes


def mixes(app: App[object]) -> bool:
    """Whether this terminal can show shades of a color."""
    plain = app.no_color or app.current_theme.ansi
    return not plain and app.console.color_system in ("256", "truecolor")


class Segments(dict[tuple[int, int], Segment]):
    """Segments by cell number and length, made on first use."""

    def __init__(self, make: Callable[[int], tuple[str, Style]]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, run: tuple[int, int]) -> Segment:
        sign, style = self._make(run[0])
        found = self[run] = Segment(sign * run[1], style)
        return found


class Shades:
    """The colors of one theme for one `Tint`."""

    def __init__(
        self,
        app: App[object],
        plain: Style,
        hue: Callable[[int], Color | None],
        owners: Sequence[Owner],
        tint: Tint,
        tiers: Sequence[str] = (),
    ) -> None:
        variables = app.theme_variables
        free, cached = (variables.get(f"map-{name}", _FALLBACK[name]) for name in MAP)
        self._free, self._cached = Color.parse(free), Color.parse(cached)
        self._text = Color.parse(variables["foreground"])
        self._ground = Color.parse(variables["background"])
        self._ramp = Color.parse(variables["primary"])
        self._plain, self._hue, self._owners, self._tint = plain, hue, owners, tint
        self._tiers = tiers
        self._mixes = mixes(app)
        self._colors: dict[int, RichColor] = {}
        self._single, self._double = Segments(self._letter), Segments(self._pair)

    def segments(self, cells: np.ndarray, span: int) -> list[Segment]:
        """Draw a line of characters from one or two lines of cells. Equal neighbors share a segment."""
        known, keys = self._single, cells[0]
        if len(cells) == 2:
            known, keys = self._double, cells[0] | cells[1] << _BELOW
        edges = [0, *(np.flatnonzero(keys[1:] != keys[:-1]) + 1).tolist(), len(keys)]
        lengths = [(after - before) * span for before, after in pairwise(edges)]
        return [known[run] for run in zip(keys[edges[:-1]].tolist(), lengths, strict=True)]

    def swatch(self, state: State, owner: int = 0, level: int = 0) -> tuple[str, Style]:
        """The letter of a cell and its style."""
        found = self._single[THERE | state << 16 | level << 8 | owner, 1]
        return found.text, found.style or Style()

    def _pair(self, key: int) -> tuple[str, Style]:
        """The character for two cells, one above the other."""
        above, below = key & (1 << _BELOW) - 1, key >> _BELOW
        if not above:
            return " ", self._plain
        upper = self.rich(above)
        if sign := "┼" if above & CURSOR else "*" if (above | below) & GLOW else "":
            return sign, Style(color=self._text.rich_color, bgcolor=upper, bold=True)
        lower = self.rich(below) if below else None
        return (
            (" ", Style(bgcolor=upper))
            if upper == lower
            else ("▀", self._plain + Style(color=upper, bgcolor=lower))
        )

    def _letter(self, value: int) -> tuple[str, Style]:
        """The character for one cell, readable without color."""
        if not value:
            return " ", self._plain
        if value & CURSOR:
            return "X", self._plain + Style(bold=True, reverse=True)
        state, owner, level = parts(value)
        return self._sign(state, owner, level), self._plain + Style(
            color=self.rich(value),
            bold=state is State.SHARED or (state is State.USED and level >= BRIGHT // 2),
            reverse=bool(value & GLOW) or None,
        )

    def _sign(self, state: State, owner: int, level: int) -> str:
        if state <= State.DROPPED:
            return "~" if state is State.DROPPED else "."
        if self._tint is Tint.TIER:
            rank, loaded = divmod(level - 1, 2)
            return "-" if not level else self._tiers[rank][0].upper() if loaded else self._tiers[rank][0]
        if self._tint is not Tint.OWNER:
            return f"{level}" if state >= State.USED or self._tint is Tint.AGE else "-"
        letter = self._owners[owner].letter[-1:]  # the letter that differs in AA, AB ...
        if state is State.SHARED:
            return "+"
        return letter.upper() if state is State.USED else letter.lower() if owner else "-"

    def rich(self, value: int) -> RichColor:
        value &= THERE - 1
        if (found := self._colors.get(value)) is None:
            found = self._colors[value] = self.color(value).rich_color
        return found

    def color(self, value: int) -> Color:
        state, owner, level = parts(value)
        if state is State.FREE:
            return self._free
        if state is State.DROPPED:
            return self._mix(self._free, self._text, _LEFT)
        if self._tint is Tint.TIER:
            return self._of_tier(state, level)
        if self._tint is not Tint.OWNER:
            if state is State.CACHED and self._tint is not Tint.AGE:
                return self._cached
            bright = RAMP - 1 - level if self._tint is Tint.AGE else level
            return self._mix(self._ground, self._ramp, _DARKEST + (1 - _DARKEST) * bright / (RAMP - 1))
        hue = self._hue(self._owners[owner].index) or self._text.blend(self._ground, 0.4)
        if not self._mixes:
            return hue
        if state is State.CACHED:
            return self._mix(self._cached, hue, _TRACE)
        if state is State.SHARED:
            return self._mix(hue, self._text, _SHARED)
        return self._mix(self._ground, hue, _FAINTEST + (1 - _FAINTEST) * level / (BRIGHT - 1))

    def _of_tier(self, state: State, level: int) -> Color:
        """One hue per tier, brighter for blocks that were loaded than for those that were copied there."""
        neutral = self._text.blend(self._ground, 0.4)
        if not level:
            return self._cached if state is State.CACHED else neutral
        rank, loaded = divmod(level - 1, 2)
        hue = self._hue(rank) or neutral
        return hue if loaded else self._mix(self._ground, hue, _FAINTEST)

    def _mix(self, one: Color, other: Color, share: float) -> Color:
        return one.blend(other, share) if self._mixes else other


def parts(value: int) -> tuple[State, int, int]:
    return State(value >> 16 & 0xFF), value & 0xFF, value >> 8 & 0xFF
