"""Incremental frames: the terminal shows the same as after a full redraw, and little is sent."""

import random
from collections.abc import Awaitable, Callable
from functools import wraps
from inspect import signature

import pytest
from rich.segment import Segment
from rich.style import Style
from textual.app import App, ComposeResult
from textual.containers import Horizontal
from textual.content import Content
from textual.geometry import Size
from textual.pilot import Pilot
from textual.screen import ModalScreen
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Input, Static

from minichat.chats.model import Message
from minichat.ui.frames import Frames, FrameScreen
from minichat.ui.transcript import Transcript
from tests import impatient
from tests.app.screen_cells import Cells, Recorder, cells_of
from tests.cases import soak

SIZE = (90, 24)
WORDS = (
    "block ",
    "**cache** ",
    "`x` ",
    "漢字 ",
    "é ",
    "\n\n",
    "\n```python\na = 1\n```\n",
    "- item\n",
    "z" * 40,
    "\x1b]52;c;aGk=\x07\x1b[2J\x9b31m\r\x00\u202e",  # the terminal must receive none of these
)


class Checkers(Widget):
    """Lines of many small segments, a few of which change."""

    def __init__(self) -> None:
        super().__init__()
        self.levels = [[0] * 30 for _ in range(12)]

    def render_line(self, y: int) -> Strip:
        row = self.levels[y] if y < len(self.levels) else [0] * 30
        return Strip([Segment("▀", Style(color=f"rgb({level},0,0)", bgcolor="black")) for level in row])


class Note(ModalScreen[None]):
    def compose(self) -> ComposeResult:
        yield Static("something else")


class Stage(App[None]):
    CSS = """
    Screen { layers: base over; }
    Transcript { width: 1fr; border-right: solid $panel; }
    Checkers { width: 30; height: 12; }
    #over { layer: over; width: 20; height: 3; offset: 10 4; background: $panel; border: round $primary; }
    """

    def __init__(self) -> None:
        super().__init__(driver_class=Recorder)
        self.pilot: Pilot[None]
        self.chats = [Transcript(), Transcript()]
        self.checkers, self.over, self.field = Checkers(), Static("above", id="over"), Input()

    def get_default_screen(self) -> FrameScreen[None]:
        return FrameScreen()

    def compose(self) -> ComposeResult:
        with Horizontal():
            yield from self.chats
            yield self.checkers
        yield self.over
        yield self.field

    async def drawn(self) -> None:
        """Wait until everything requested is on the terminal."""
        await self.pilot.pause()
        await impatient.rest()


def with_stage(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a test inside the program, which has a terminal."""

    @wraps(test)
    def play(**arguments: object) -> None:
        Recorder.cells, Recorder.sent = Cells(*SIZE), 0
        app = Stage()

        async def inside(pilot: Pilot[None]) -> None:
            app.pilot = pilot
            for letter, chat in zip("ab", app.chats, strict=True):
                chat.show(
                    [Message(1, "user", "hello"), Message(2, "assistant", "", state="streaming")], letter
                )
            await app.drawn()
            await test(app, **arguments)
            app.exit()

        impatient.run(app.run_async(size=SIZE, auto_pilot=inside))

    play.__signature__ = signature(test).replace(  # type: ignore[attr-defined]
        parameters=[each for name, each in signature(test).parameters.items() if name != "app"]
    )
    return play


def change_something(app: Stage, draw: random.Random) -> None:
    """Make one random change to the screen."""
    chat = draw.choice(app.chats)
    acts: list[Callable[[], object]] = [
        lambda: chat.extend("".join(draw.choices(WORDS, k=draw.randint(1, 6))), draw.choice(["", "tail"])),
        lambda: chat.extend(draw.choice(WORDS)),
        lambda: chat.scroll_relative(y=draw.randint(-9, 9), animate=False),
        chat.follow,
        lambda: setattr(chat, "display", not chat.display),
        lambda: setattr(app.over, "display", not app.over.display),
        lambda: app.over.update(draw.choice(["above", "ab", "漢字", ""])),
        lambda: setattr(app.over.styles, "offset", (draw.randint(-5, 80), draw.randint(-2, 20))),
        lambda: app.field.insert_text_at_cursor(draw.choice(["a", "漢", " "])),
        lambda: setattr(app, "theme", draw.choice(["textual-dark", "textual-light", "ansi-dark"])),
        lambda: app.push_screen(Note()) if len(app.screen_stack) == 1 else app.pop_screen(),
    ]
    draw.choice(acts)()
    for _ in range(draw.randint(0, 3)):
        app.checkers.levels[draw.randrange(12)][draw.randrange(30)] = draw.randrange(3)
    app.checkers.refresh()


@pytest.mark.parametrize("seed", [2, *soak(0, 1)])
@with_stage
async def test_the_terminal_shows_the_same_as_a_full_redraw(app: Stage, seed: int) -> None:
    draw = random.Random(seed)
    for number in range(20):
        change_something(app, draw)
        await app.drawn()
        if len(app.screen_stack) == 1:  # Textual does not update what another screen covers, either
            assert Recorder.cells.lines == cells_of(app), number


@with_stage
async def test_small_changes_send_few_bytes(app: Stage) -> None:
    app.chats[0].extend("The cache holds")
    app.checkers.refresh()
    await app.drawn()
    before = Recorder.sent
    app.chats[0].extend(" keys")
    await app.drawn()
    assert 0 < Recorder.sent - before < 100
    before = Recorder.sent
    app.checkers.levels[3][7] = 200
    app.checkers.refresh()
    await app.drawn()
    assert 0 < Recorder.sent - before < 100
    assert Recorder.cells.lines == cells_of(app)


@with_stage
async def test_a_region_read_before_the_layout_hides_no_resize(app: Stage) -> None:
    frames, size = Frames(), Size(*SIZE)
    frames.reflow(app.screen, size)
    app.checkers.styles.width = 20
    added = Static("new")
    await app.query_one(Horizontal).mount(added)
    frames.update_widgets({added})
    assert frames.full_map[app.checkers].region.width == 20
    changed = frames.reflow(app.screen, size)
    assert app.checkers in changed.resized
    assert added in changed.shown


@with_stage
async def test_only_changed_lines_are_rendered(app: Stage) -> None:
    made: list[tuple[str, int]] = []

    class Counting(Checkers):
        def render_line(self, y: int) -> Strip:
            made.append((self.name or "", y))
            return super().render_line(y)

    app.checkers.remove()
    await app.query_one(Horizontal).mount(Counting())
    await app.drawn()
    made.clear()
    app.chats[0].extend("The cache holds keys")
    await app.drawn()
    assert made == []


@with_stage
async def test_control_characters_that_a_widget_draws_do_not_reach_the_terminal(app: Stage) -> None:
    """The name of a model, for example, is what an engine on another machine says."""
    app.over.update(Content("m\x1b]52;c;aGk=\x07\x1b[2J\x9b31m\x7f\u202enet"))
    await app.drawn()
    redrawn = Cells(*SIZE)
    redrawn.take(app.screen._compositor.render_full_update().render_segments(app.console))
    for lines in (Recorder.cells.lines, redrawn.lines):
        shown = ["".join(character for character, _ in line) for line in lines]
        assert any("m]52;c;aGk=" in line for line in shown)
        assert all(line.isprintable() for line in shown)
