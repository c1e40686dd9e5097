"""The tour: a panel above the prompt shows pages, and the engine performs each of them."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from tempfile import NamedTemporaryFile

from textual.app import SuspendNotSupported
from textual.content import Content
from textual.events import AppFocus

from engine.api.errors import EngineError
from minichat.features.feature import Context, Feature, ScreenCommand
from minichat.features.leaving import RESTART, Leaver, Loss
from minichat.features.monitor import MonitorSide
from minichat.features.tour.guide import EndedEarlyError, Guide
from minichat.features.tour.pages import LONG, PAGES, SYSTEM, Page
from minichat.features.tour.panel import TourPanel
from minichat.plural import plural
from minichat.shell.background import begin
from minichat.ui.marks import ASCII

_LETTERS = re.compile(r" \([WPDX][ \d]*\)")
KEEP = 65  # the exit code that requests to keep the chats
_INTERRUPTED = (130, -signal.SIGINT)  # exit codes
KEPT = "MINICHAT_KEPT"  # names the file to which a tour writes how many chats it has kept


class Tour:
    """The pages. Each explains what to look at and waits; then it plays, as often as the user wants."""

    def __init__(self, context: Context) -> None:
        self._context, self._panel = context, TourPanel(self.turn_page, self.play, self.leave, self._arranged)
        self._guide = Guide(context, self._say, self._panel.focus)
        self._place = 0
        self._results = [""] * len(PAGES)  # the result of each page
        self._begun: set[int] = set()  # pages that were started
        self._playing = 0
        self._task: asyncio.Task[None] | None = None
        context.chats.first_ever = False  # the panel is the introduction
        context.workspace.shows_greeting = False
        context.signals.arranged.connect(self._arranged)
        begin(context.app, self._begin)

    async def _begin(self) -> None:
        """Show the panel once the engine is ready."""
        context = self._context
        context.part(Leaver).losses.append(self._loss)
        await context.lifecycle.ready.wait()
        if context.program.start.ascii:
            self._panel.marks = ASCII
        await context.workspace.mount(self._panel, before=context.workspace.prompt)
        context.chats.system = SYSTEM  # of the chats that pages open
        context.chats.active.instruct(SYSTEM)
        self._show()
        self._panel.focus()

    def turn_page(self, by: int) -> None:
        """Go to the next or previous page. Forward plays a page first if it has not been played."""
        if by > 0 and self._waits:
            self.play()
            return
        self._place = min(max(self._place + by, 0), len(PAGES) - 1)
        if PAGES[self._place].last:
            self._guide.hand_over(LONG)
            self._context.workspace.prompt.focus()  # letters are a message now
        self._show()

    def play(self) -> None:
        """Play this page from its start, and stop any that is playing."""
        if PAGES[self._place].do is not None:
            self._stop()
            self._begun.add(self._place)
            self._playing, self._results[self._place] = self._place, ""
            self._task = asyncio.create_task(self._do(self._place), name="tour")
            self._show()

    @property
    def _waits(self) -> bool:
        """Whether this page waits for the user to start it."""
        return PAGES[self._place].do is not None and self._place not in self._begun

    def leave(self, keep: bool) -> None:
        if keep:
            self._stop()
            self._guide.hand_over(LONG)
            begin(self._context.app, partial(self._context.program.end, KEEP))
        else:
            begin(self._context.app, partial(self._context.part(Leaver).leave, "q", "quit", 0))

    def _loss(self, code: int) -> Loss | None:
        """What the user has written is lost, except by a restart."""
        if code in (KEEP, RESTART) or not self._guide.has_own:
            return None
        return "Your messages in this tour are not kept (k in its panel keeps them)", "{does} and lose them"

    def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _do(self, place: int) -> None:
        page = PAGES[place]
        self._guide.start_page()
        if page.do is not None:
            try:
                self._report(place, await page.do(self._guide))
            except EngineError as error:
                self._report(place, f"This page failed: {error}")
            except EndedEarlyError:
                self._report(place, "Its replies ended too early. Press r to play it again.")

    def _say(self, sentence: str) -> None:
        """Show a sentence in the middle of a page."""
        self._report(self._playing, sentence)

    def _report(self, place: int, sentence: str) -> None:
        self._results[place] = sentence
        self._show()

    # Display

    def _arranged(self) -> None:
        """The monitor may be shown or hidden."""
        self._context.app.call_after_refresh(self._show)

    def _show(self) -> None:
        page, sentence = PAGES[self._place], self._results[self._place]
        lines = [
            Content.assemble(
                (page.title, "bold $text-accent"), (f"  {self._place + 1}/{len(PAGES)}", "$text-muted")
            ),
            Content(self._context.keys.named(page.text)),
        ]
        if self._waits:
            lines.append(Content.styled(self._watch(page), "bold"))
        elif sentence:
            lines.append(Content.styled(sentence, "bold"))
        elif page.do is not None:
            alive = self._context.lifecycle.alive
            words = (
                "waiting for the engine ..."
                if alive
                else "The engine is not running; see the error at the top."
            )
            lines.append(Content.styled(words, "italic $text-muted"))
        self._panel.say(Content("\n").join(lines), self._keys(page), end=bool(sentence))

    def _watch(self, page: Page) -> str:
        """What to look at, with the letters of the phases if only the engine's line is shown."""
        if self._context.part(MonitorSide).display:
            return _LETTERS.sub("", page.watch.format(where="the monitor"))
        return page.watch.format(where="the line above")

    def _keys(self, page: Page) -> Content:
        keys = [("Enter", "play" if self._waits else "next")]
        if page.do is not None and not self._waits:
            keys.append(("r", "again"))
        back = [("b", "back")] if self._place else []
        leave = ("q", "quit"), ("k", "keep chats, quit")
        keys = [*back, *reversed(leave)] if page.last else [*keys, *back, *leave]
        return Content.assemble(
            *(
                part
                for key, what in keys
                for part in ((key, "bold $text-accent"), (f" {what}  ", "$text-muted"))
            )
        )


def start(context: Context) -> None:
    """Run the tour as a separate program with its own engine, while this one is suspended."""
    if context.program.start.tour:
        context.app.notify("This is the tour")
        return
    words = ["--ascii"] if context.program.start.ascii else []
    with NamedTemporaryFile("r", prefix="minichat-kept-") as kept:
        try:
            with context.app.suspend():
                # The shell's screen shows for some seconds.
                print("minichat: starting the tour ...", flush=True)
                code = _run(words, kept.name)
        except SuspendNotSupported:
            needs = "The tour needs the terminal. Quit and run: minichat tour"
            context.app.notify(needs, severity="warning")
            return
        count = int(kept.read() or 0)
    if code and code not in _INTERRUPTED:
        context.app.notify(f"The tour failed with exit code {code}", severity="error")
    if count:
        context.app.post_message(AppFocus())  # look for them
        context.app.notify(f"Kept {plural(count, 'chat')}. {context.keys.name('chat.jump')} lists them")


def _run(words: Sequence[str], kept: str) -> int:
    """Run the tour. Return its exit code. Ctrl+C while it starts ends it alone."""
    command = [sys.executable, "-m", "minichat", "tour", *words]
    usual = signal.signal(signal.SIGINT, lambda number, frame: None)  # ignored, it would be in the tour, too
    try:
        return subprocess.run(command, env={**os.environ, KEPT: kept}, check=False).returncode
    finally:
        signal.signal(signal.SIGINT, usual)


def _make(context: Context) -> Tour | None:
    return Tour(context) if context.program.start.tour else None


TOUR = Feature(
    name="tour",
    title="Tour of the engine",
    commands=(ScreenCommand("program.tour", "Program", "Tour the engine", start),),
    part=_make,
    css="""
    #tour {
        height: auto;
        max-height: 50%;
        padding: 0 1;
        background: $panel;
        border-left: outer $frame;
    }
    #tour:focus { border-left: outer $accent; }
    App.-ascii #tour, App.-ascii #tour:focus { border-left: ascii $accent; }
    """,
)
