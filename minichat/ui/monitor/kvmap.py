"""The map of all KV blocks: their owners, states and fill."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar, TypeVar

import numpy as np
from textual.actions import SkipAction
from textual.binding import Binding, BindingType
from textual.events import Click
from textual.message import Message
from textual.strip import Strip

from engine.api.snapshot import Snapshot
from minichat.plural import plural
from minichat.ui.monitor.bindings import MAXIMIZE, down, up
from minichat.ui.monitor.cells import Grid, Order, State, Tint, aggregate, moves, session_order, states
from minichat.ui.monitor.figures import fleet_size, ranges
from minichat.ui.monitor.legend import legend, tier_legend, totals
from minichat.ui.monitor.owners import Codes, Owner
from minichat.ui.monitor.pane import Line, Pane, Row, clip
from minichat.ui.monitor.shades import CURSOR, GLOW, THERE, Shades, mixes
from minichat.ui.monitor.zoom import block_rows
from minichat.ui.panes.keybar import Hints, HintsChanged

_BELOW = 2  # lines below the map
_QUOTED = 5  # cells that the text of blocks needs at least
_ZOOMED = (
    ("monitor.left monitor.right", "cell"),
    ("monitor.up monitor.down", "scroll"),
    ("monitor.zoom", "map"),
    MAXIMIZE,
    ("Esc", "map"),
)
Option = TypeVar("Option", Order, Tint)


class KVMap(Pane):
    """Draws two cells per character if the terminal can mix colors, else letters (also on request)."""

    number, title = 1, "KV map"
    HINTS = (
        ("monitor.left monitor.right monitor.up monitor.down", "move"),
        ("monitor.zoom", "blocks"),
        ("monitor.order", "order"),
        ("monitor.colour", "color"),
        MAXIMIZE,
        ("Esc", "back"),
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "move(-1, 0)", "Move left on the map", id="monitor.left", show=False),
        Binding("right", "move(1, 0)", "Move right on the map", id="monitor.right", show=False),
        up("move(0, -1)"),
        down("move(0, 1)"),
        Binding("enter", "zoom", "List the blocks and who holds them", id="monitor.zoom", show=False),
        Binding("escape", "leave_zoom", show=False),
    ]

    class Pointed(Message):
        """The cursor is on these blocks; none if the map lost the focus."""

        def __init__(self, blocks: tuple[int, ...]) -> None:
            super().__init__()
            self.blocks = blocks

    def __init__(self, *, ascii: bool = False, id: str | None = None) -> None:
        super().__init__(ascii=ascii, id=id)
        self.order, self.tint = Order.PHYSICAL, Tint.OWNER
        self.letters = False  # the user wants letters instead of colors
        self.replica: int | None = None  # the one shown of a fleet; None: all
        self.zoomed = False
        self._codes = Codes()
        self._code = np.zeros(0, np.uint8)  # the owner code of each block
        self._state = np.zeros(0, np.uint8)
        self._sorted: np.ndarray | None = None  # the blocks shown, in their order; None: all by address
        self._grid = Grid(1, 1, 1, 1)
        self._cursor = (0, 0)  # column and line, in characters
        self._first = 0  # the first visible line of the block list
        self.glowing: frozenset[int] = frozenset()
        self._texts: Mapping[int, str] = {}  # text of the blocks under the cursor
        self._message = ""  # shown below the map
        self._shades: Shades | None = None
        self._shades_for: object = None
        self._values = np.zeros((0, 0), np.int64)
        self._body: list[Strip] = []

    @property
    def hints(self) -> Hints:
        return self.working(_ZOOMED if self.zoomed else self.HINTS)

    def update_from(self, snapshot: Snapshot, owners: Mapping[int, Owner]) -> None:
        self.snapshot, self.owners = snapshot, owners
        if self.seen:
            self._read()
            self.draw()

    def _read(self) -> None:
        assert self.snapshot is not None
        blocks = self.snapshot.blocks
        live = [request.id for request in self.snapshot.requests]
        self._code, self._state = self._codes.of(blocks.owner, self.owners, live), states(blocks)
        self._sorted = session_order(self._state, self._code) if self.order is Order.SESSION else None
        if (own := self._own_blocks()) is not None:
            ordered = np.arange(len(self._state)) if self._sorted is None else self._sorted
            self._sorted = ordered[own[ordered]]

    def _own_blocks(self) -> np.ndarray | None:
        """Which blocks are those of the replica shown, or of those that run; None: all are."""
        replicas = self.snapshot.replicas if self.snapshot is not None else ()
        found = [each for each in replicas if each.number == self.replica] or replicas
        shown = [each.runs and each in found for each in replicas]
        if all(shown) or not any(each.runs for each in replicas):
            return None
        return np.repeat(shown, [each.blocks for each in replicas])

    def _shown(self, column: np.ndarray) -> np.ndarray:
        return column if (own := self._own_blocks()) is None else column[own]

    def redraw(self) -> None:
        self._shades_for, self._values = None, np.zeros((0, 0), np.int64)
        if self.snapshot is not None:
            self._read()
        super().redraw()

    @property
    def mixes(self) -> bool:
        """Whether it can have colors instead of letters."""
        return not self.signs.ascii and mixes(self.app)

    @property
    def halves(self) -> bool:
        """Whether a character shows two cells."""
        return self.mixes and not self.letters

    # Drawing

    def rows(self, width: int, height: int) -> Sequence[Line]:
        if (shot := self.snapshot) is None:
            return super().rows(width, height)
        shown = self._shown(self._state)
        count, in_use = len(shown), int((shown >= State.USED).sum())
        use = in_use / max(count, 1)
        if self.zoomed:
            pointed = self.pointed()
            facts = plural(len(pointed), "block")
            listed = block_rows(shot, self.owners, self._state, pointed, self.signs, self._texts)
            self._first = max(0, min(self._first, len(listed) - height + 1))
            self.tell_scrolling(len(listed) >= height)
            return [self.heading(facts, right="Esc back"), *listed[self._first :]]
        lines = max(1, height - 1 - _BELOW)
        self._grid = Grid.fit(count, width, lines * (2 if self.halves else 1))
        self._paint(width, lines)
        scale = f"{plural(self._grid.per, 'block')}/cell"
        figures = (f"{use:.0%}", scale, self.tint, self.order, f"{in_use:,} of {count:,}")
        heading = self.heading(*self._replica_words(), *figures)
        return [heading, *self._body, *self._legend(width)]

    def _replica_words(self) -> list[str]:
        """Which caches the map shows, for a fleet."""
        if self.snapshot is None or not (replicas := self.snapshot.replicas):
            return []
        chosen = next((each for each in replicas if each.number == self.replica), None)
        if chosen is None:
            return [fleet_size(self.snapshot)]
        return [f"replica {chosen.number}" + f" {chosen.state}" * (chosen.state != "ready")]

    def _paint(self, width: int, lines: int) -> None:
        """Redraw the lines whose cells changed."""
        grid, shades = self._grid, self._current_shades()
        values = self._cells()
        if values.shape == self._values.shape and len(self._body) == lines:
            changed = np.flatnonzero((values != self._values).any(axis=(1, 2))).tolist()
        else:
            self._body, changed = [Strip([])] * lines, list(range(lines))
        for line in changed:
            strip = Strip(shades.segments(values[line], grid.span), grid.columns * grid.span)
            self._body[line] = strip.adjust_cell_length(width, self.plain)
        self._values = values

    def _cells(self) -> np.ndarray:
        """The cells as numbers, by line of characters, one or two cells high."""
        assert self.snapshot is not None
        grid, shot = self._grid, self.snapshot
        cells = aggregate(shot, self._state, self._code, grid.per, self.tint, self._sorted)
        values = np.zeros(grid.cells, np.int64)
        owner = cells.owner if self.tint is Tint.OWNER else 0
        values[: len(cells.state)] = (
            THERE | cells.state.astype(np.int64) << 16 | cells.level.astype(np.int64) << 8 | owner
        )
        if self.glowing:
            values[self._cells_of(self.glowing)] |= GLOW
        shaped = values.reshape(-1, 2 if self.halves else 1, grid.columns)
        if self.has_focus:
            column, line = self._place()
            shaped[line, :, column] |= CURSOR
        return shaped

    def _cells_of(self, blocks: Collection[int]) -> np.ndarray:
        needed = np.fromiter((block for block in blocks if block < len(self._state)), np.int64)
        if self._sorted is not None:
            needed = np.flatnonzero(np.isin(self._sorted, needed))  # those of other replicas are not shown
        return needed // self._grid.per

    def _current_shades(self) -> Shades:
        owners, tiers = self._codes.owners, () if self.snapshot is None else self.snapshot.tier_names
        needed = (self.tint, self.halves, tuple(owners), tiers)
        if self._shades is None or self._shades_for != needed:
            self._shades = Shades(self.app, self.plain, self.hue, owners, self.tint, tiers)
            self._shades_for = needed
            self._values = np.zeros((0, 0), np.int64)
        return self._shades

    def _legend(self, width: int) -> list[Row]:
        assert self.snapshot is not None
        shot, shades = self.snapshot, self._current_shades()
        owners, halves = self._codes.owners, self.halves
        state, code = self._shown(self._state), self._shown(self._code)
        if self.tint is Tint.TIER:
            moved = self._shown(moves(shot.blocks))
            first = tier_legend(shot, state, moved, shades, self.signs, width, halves=halves)
        else:
            first = legend(state, code, owners, self.tint, shades, self.signs, width, halves=halves)
        if self._message:
            return [first, ((f" {self._message}", "strong"),)]
        if self.has_focus and (blocks := self.pointed()):
            words = f" {plural(len(blocks), 'block')} {ranges(blocks)}: {self._summary(blocks)}"
            text = self.signs.line("".join(self._texts.get(block, "") for block in blocks))
            room = width - len(words) - len('  ""')
            quoted = f'  "{clip(text, room, self.signs.cut).rstrip()}"' if text and room >= _QUOTED else ""
            return [first, ((words, "value"), (quoted, "strong"))]
        return [first, totals(shot, state, code, self.tint, shades, self.signs, width, halves=halves)]

    def _summary(self, blocks: Sequence[int]) -> str:
        held = self._state[list(blocks)]
        counts = [(state.name.lower(), int((held == state).sum())) for state in reversed(State)]
        return ", ".join(f"{count} {name}" for name, count in counts if count)

    # The cursor

    def _place(self) -> tuple[int, int]:
        """The cursor's position, within the current size of the map."""
        lines = self._grid.lines // (2 if self.halves else 1)
        column, line = self._cursor
        return min(column, self._grid.columns - 1), min(line, max(lines - 1, 0))

    def pointed(self) -> tuple[int, ...]:
        """The numbers of the blocks under the cursor."""
        column, line = self._place()
        high = 2 if self.halves else 1
        cells = [(line * high + half) * self._grid.columns + column for half in range(high)]
        count = len(self._state) if self._sorted is None else len(self._sorted)
        places = [place for cell in cells for place in self._grid.blocks(cell, count)]
        return tuple(places if self._sorted is None else self._sorted[places].tolist())

    def action_move(self, columns: int, lines: int) -> None:
        if self.zoomed and lines:
            self._first = max(0, self._first + lines)
        else:
            column, line = self._place()
            self._point(column + columns, line + lines)
        self.draw()

    def _point(self, column: int, line: int) -> None:
        self._cursor = max(0, column), max(0, line)
        self._cursor = self._place()
        self._first = 0
        self.post_message(self.Pointed(self.pointed()))

    def action_zoom(self) -> None:
        self.zoomed = not self.zoomed and bool(self.pointed())
        self._first = 0
        if self.zoomed:
            self.post_message(self.Pointed(self.pointed()))
        self.post_message(HintsChanged())
        self.redraw()

    def action_leave_zoom(self) -> None:
        if not self.zoomed:
            raise SkipAction
        self.action_zoom()

    def on_click(self, event: Click) -> None:
        if not self.zoomed and 1 <= event.y <= len(self._body):
            self._point(event.x // self._grid.span, event.y - 1)
            self.draw()

    def _tell_pointed(self) -> None:
        """Other blocks are under the cursor."""
        if self.has_focus:
            self.post_message(self.Pointed(self.pointed()))

    def on_blur(self) -> None:
        self.post_message(self.Pointed(()))
        super().on_blur()

    # Display options

    def glow(self, blocks: Collection[int]) -> None:
        """Highlight these blocks only."""
        self.glowing = frozenset(blocks)
        self.draw()

    def tell(self, texts: Mapping[int, str]) -> None:
        """Set the known text of the blocks under the cursor."""
        self._texts = texts
        self.draw()

    def say(self, sentence: str) -> None:
        """Show a message below the map; an empty one removes it."""
        self._message = self.signs.line(sentence)
        self.draw()

    @property
    def picture(self) -> Sequence[Strip]:
        """What it shows, to be compared."""
        return tuple(self._strips)

    def next_order(self) -> str:
        """Return how it shows the blocks now."""
        self.order = _next(self.order)
        self.redraw()
        self._tell_pointed()
        return "by address" if self.order is Order.PHYSICAL else self.order

    def next_tint(self) -> str:
        self.tint = _next(self.tint)
        self.redraw()
        return f"with color by {self.tint}"

    def next_replica(self) -> bool:
        """Show the next replica's blocks alone; after the last one, those of all. False: it has one."""
        numbers = [each.number for each in self.snapshot.replicas] if self.snapshot is not None else []
        if len(numbers) > 1:
            after = numbers.index(self.replica) + 1 if self.replica in numbers else 0
            self.replica = numbers[after] if after < len(numbers) else None
            self._first = 0
            self.redraw()
            self._tell_pointed()
        return len(numbers) > 1

    def toggle_letters(self) -> str:
        self.letters = not self.letters
        self.redraw()
        return "as letters" if self.letters else "as colors"


def _next(present: Option) -> Option:
    every = list(type(present))
    return every[(every.index(present) + 1) % len(every)]
