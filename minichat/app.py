"""The program on the terminal: it owns the engine, the chats and the settings, and ends cleanly."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ClassVar

from textual.actions import ActionParseResult
from textual.app import App, SuspendNotSupported
from textual.binding import BindingType
from textual.command import CommandPalette, Provider
from textual.dom import DOMNode
from textual.events import Event as TextualEvent
from textual.events import Key, Paste
from textual.scrollbar import ScrollBar, ScrollBarRender
from textual.theme import Theme
from textual.widget import Widget
from textual.widgets import Input, TextArea

from engine.errors import EngineError
from engine.events import Died, Event
from engine.params import SamplingParams
from engine.snapshot import Snapshot
from minichat import clipboard
from minichat.backends.protocol import Backend, LinkBack, LinkLost
from minichat.chats.errors import StoreError
from minichat.chats.model import Message
from minichat.chats.store import Store
from minichat.containment import Containment
from minichat.conversation import Conversation
from minichat.desk import Desk
from minichat.first import First
from minichat.keeper import Keeper
from minichat.key_order import KeyOrder
from minichat.keys import bindings, bound, key_name, keys_of
from minichat.open_chats import OpenChats
from minichat.pacer import Pacer
from minichat.palette import Commands, Palette
from minichat.paths import Paths
from minichat.presets import Presets
from minichat.pulse import Pulse
from minichat.remembered import Remembered
from minichat.screens.guide import Guide
from minichat.screens.main import MainScreen
from minichat.settings import Loaded
from minichat.settings.keymap import keymap
from minichat.settings.nearest import unknown
from minichat.terminal import Terminal, when_gone
from minichat.themes import Themes, Watch, load_themes, shipped_themes
from minichat.widgets.marks import PlainBars
from minichat.widgets.transcript import glyphs
from minichat.widgets.transcript.glyphs import enterable, one_line

RESTART = 64  # the exit code that asks to be started again
_TWICE = 1.0  # seconds between two Ctrl+C that quit
_ENDING = (signal.SIGTERM, signal.SIGHUP)
_LEAVE_WITHIN = 2.0  # seconds after a signal
_PROBLEMS = 4  # that are told at the start
_AWAY = 2.0  # seconds without a look at what others may have written
_THEME = "minichat-dark"


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What the command line and the settings say."""

    model: str
    paths: Paths
    terminal: Terminal
    params: SamplingParams
    system: str = ""
    named: bool = False  # the command line says how a chat is drawn, and gets one that is
    ascii: bool = False
    loaded: Loaded
    first: First = field(default_factory=First)
    tour: bool = False  # whether a panel leads through what the engine can do


class MinichatApp(App[object], inherit_bindings=False):
    """Draws at once; the engine comes when it has been loaded."""

    CSS_PATH = "minichat.tcss"
    TITLE = "minichat"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings("app")]
    COMMANDS: ClassVar[set[type[Provider] | Callable[[], type[Provider]]]] = {Commands}
    NOTIFICATION_TIMEOUT = 4
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (60, "-normal")]  # noqa: RUF012 (textual's own type)
    VERTICAL_BREAKPOINTS = [(0, "-short"), (20, "-high")]  # noqa: RUF012 (textual's own type)

    def __init__(self, backend: Backend, store: Store, start: Start) -> None:
        super().__init__()
        self.backend, self.store, self.start, self.paths = backend, store, start, start.paths
        self.settings = start.loaded.settings
        self.keymap = keymap(start.loaded, bound())
        self.glyphs = glyphs.ASCII if start.ascii else glyphs.UNICODE
        self.keeper = Keeper(self, start.model)
        self.containment = Containment(self)
        self._key_order = KeyOrder(self)
        self._interrupted_at = 0.0
        self._mouse_is_ours = self.settings.screen.mouse
        remembered = Remembered.read(self.paths.remembered)
        self._themes = self._read_themes(remembered.theme_for(self.settings.screen.theme))
        self.presets = Presets(self)
        self._theme_files, self._looked_around = Watch(self.paths.themes), time.monotonic()
        rates, ssh = self.settings.rates, start.terminal.ssh
        pacer = Pacer(rates.ssh_transcript if ssh else rates.transcript)
        told = (self._took, self._changed, self._spread, self.complain)
        desk = Desk(store, backend, pacer, self.keeper.ready, *told)
        self.chats = OpenChats(desk, start.params, start.system, remembered.chats, remembered.active)
        self.main = MainScreen(self.chats)
        if not self.settings.screen.monitor:
            self.main.monitor_wanted = False
        self.pulse = Pulse(
            backend,
            self._show,
            lambda: self.keeper.alive,
            rates.ssh_monitor if ssh else rates.monitor,
        )

    def get_default_screen(self) -> MainScreen:
        return self.main

    def on_mount(self) -> None:
        self.set_class(self.start.ascii, "-ascii")
        ScrollBar.renderer = PlainBars if self.start.ascii else ScrollBarRender
        self.set_keymap(self.keymap)
        self.theme_changed_signal.subscribe(self, self._theme_chosen)
        self.presets.read()
        self.complain_of([*self.start.loaded.problems, *self._themes.problems])
        if (wanted := self.settings.screen.theme) not in self._themes.palettes:
            self.complain(f"screen.theme: {wanted!r} {unknown(wanted, self._themes.palettes)}")
        self._tell_notices()
        self._loop_of_signals = asyncio.get_running_loop()
        self._loop_of_signals.set_exception_handler(self.containment.take_from_loop)
        for number in _ENDING:  # the loop's own handlers wait for a loop that may be stuck
            signal.signal(number, self._told_to_end)
        if not self.is_headless:
            when_gone(lambda: self._told_to_end(signal.SIGHUP, None))
        self._key_order.settle()
        self.call_after_refresh(lambda: self.run_worker(self.keeper.load()))
        if self.start.tour:
            self.chats.first_ever = False  # the panel says what there is
            self.run_worker(Guide(self.main).begin())

    def on_unmount(self) -> None:
        for number in _ENDING:
            signal.signal(number, signal.SIG_DFL)

    # The engine

    def heard(self, events: Sequence[Event]) -> None:
        if not self.main.is_attached:
            return  # the screen has gone, and the engine goes
        for event in events:
            if isinstance(event, Died):
                self.keeper.lose(f"the engine has stopped: {event.error}")
                self.ask(self._look())
            elif isinstance(event, LinkLost) and self.is_running:
                self.keeper.cut(event)
            elif isinstance(event, LinkBack):
                self.keeper.mended(event)
        self.main.show_events(events)

    async def _look(self) -> None:
        """Once more, though the pulse rests: nothing runs any longer."""
        self._show(await self.backend.snapshot())

    def _show(self, snapshot: Snapshot) -> None:
        self.main.show_snapshot(snapshot)

    def _took(self, conversation: Conversation, request: int) -> None:
        self.main.took(conversation, request)

    def _changed(self, conversation: Conversation) -> None:
        self.main.changed(conversation)

    def _spread(self, conversation: Conversation, others: list[Message]) -> None:
        with self.complaining():
            self.chats.spread(conversation, others)
        self.main.lay_out()
        self.chats.remember(self.paths.remembered)

    def ask(self, request: Coroutine[object, object, None]) -> None:
        """Something for the engine, for which nobody waits; what cannot be is told."""

        async def ask() -> None:
            try:
                await request
            except EngineError as error:
                self.complain(str(error))

        self.run_worker(ask())

    async def on_event(self, event: TextualEvent) -> None:
        if not isinstance(event, Key | Paste) or event.is_forwarded:
            await super().on_event(event)
        elif not self._key_order.waits(event):
            if isinstance(event, Paste):
                event.text = enterable(event.text)  # for whichever field it goes to
            elif time.monotonic() - self._looked_around > _AWAY:
                self.on_app_focus()  # tmux tells of no focus, unless it was told to
            path = self._key_order.path(event)
            await super().on_event(event)
            self._key_order.hold(path)

    # What goes wrong

    def _register_child(self, parent: DOMNode, child: Widget, before: int | None, after: int | None) -> None:
        self.containment.hold(child)
        super()._register_child(parent, child, before, after)

    def _start_widget(self, parent: Widget, widget: Widget) -> None:  # a scroll bar
        self.containment.hold(widget)
        super()._start_widget(parent, widget)

    def _handle_exception(self, error: Exception) -> None:
        """Textual ends the program here. That is right only before there is a screen."""
        if self.main.is_mounted:
            self.containment.take(error)
        else:
            super()._handle_exception(error)

    def complain(self, sentence: str) -> None:
        self.notify(one_line(sentence), severity="error", timeout=8, markup=False)

    def complain_of(self, problems: Sequence[object]) -> None:
        """The first ones; each may take a quarter of a small screen."""
        for problem in problems[:_PROBLEMS]:
            self.complain(str(problem))
        if (rest := len(problems) - _PROBLEMS) > 0:
            self.complain(f"and {rest} more like these, told when these are mended")

    @contextmanager
    def complaining(self) -> Iterator[None]:
        """What the disk refuses is said, and the screen goes on."""
        try:
            yield
        except (StoreError, OSError) as error:
            self.complain(str(error))
        self._tell_notices()

    def _tell_notices(self) -> None:
        """What the store had to do to go on."""
        for sentence in self.store.notices:
            self.complain(sentence)
        self.store.notices.clear()

    async def run_action(  # whatever a key or the palette does may touch the disk
        self,
        action: str | ActionParseResult,
        default_namespace: DOMNode | None = None,
        namespaces: Mapping[str, DOMNode] | None = None,
    ) -> bool:
        try:
            return await super().run_action(action, default_namespace, namespaces)
        except (StoreError, OSError) as error:
            self.complain(str(error))
            return True
        finally:
            self._tell_notices()

    # How it looks

    def _read_themes(self, wanted: str) -> Themes:
        """Ours instead of Textual's: they say what owners and blocks look like, too."""
        themes = load_themes(shipped_themes(), self.paths.themes)
        for palette in themes.palettes.values():
            self.register_theme(palette.theme())
        self.theme = self._given_theme = wanted if wanted in themes.palettes else _THEME
        for name in self.available_themes.keys() - themes.palettes.keys():
            self.unregister_theme(name)
        return themes

    def _theme_chosen(self, theme: Theme) -> None:
        """What a person chose in the palette is there again at the next start."""
        self.main.label()  # the letters of chats have their colours from here
        if theme.name != self._given_theme:
            self._given_theme, file = theme.name, self.paths.remembered
            Remembered.read(file).themed(theme.name, self.settings.screen.theme).write(file)

    def on_app_focus(self) -> None:
        """The person comes back from somewhere, perhaps from another screen, or from editing a theme."""
        self._looked_around = time.monotonic()
        with self.complaining():
            self.chats.catch_up()
        if self._theme_files.changed():
            self._themes = self._read_themes(self.theme)
            self.refresh_css(animate=False)
            self.complain_of(self._themes.problems)

    def owner_colours(self, index: int) -> str:
        return self._themes.palettes[self.theme].letter(index)

    # Actions

    async def send_to_clipboard(self, text: str) -> None:
        driver = self._driver
        write = driver.write if driver else lambda _: None
        said = await clipboard.send(text, self.paths.clipboard, write, self.start.terminal)
        self.notify(said)

    async def action_interrupt(self) -> None:
        """Ctrl+C: copies a selection; else stops the reply; twice in a second it quits."""
        field = self.focused
        selected = field.selected_text if isinstance(field, Input | TextArea) else ""
        if selected := selected or self.screen.get_selected_text() or "":
            self.screen.clear_selection()
            await self.send_to_clipboard(selected)
            return
        now = time.monotonic()
        if now - self._interrupted_at < _TWICE:
            await self.action_quit()
            return
        self._interrupted_at = now
        if not self.chats.active.stop():
            self.notify("once more quits", timeout=_TWICE)

    def action_mouse(self) -> None:
        """Lets the terminal select by itself, which it cannot while the program has the mouse."""
        taken = not self._mouse_is_ours
        self._mouse_is_ours = taken
        switch = getattr(self._driver, "_enable_mouse_support" if taken else "_disable_mouse_support", None)
        if switch is not None:  # a driver without a terminal has none
            switch()
        self.notify(
            "the mouse is minichat's again"
            if taken
            else f"the mouse is the terminal's; {key_name(keys_of('view.mouse', self.keymap))} takes it back"
        )

    def action_redraw(self) -> None:
        """What something else has written to the terminal goes: only cells that change are sent else."""
        if self._driver is not None:
            self._driver.write("\x1b[0m\x1b[2J")
        self.screen.refresh()

    def action_command_palette(self) -> None:
        if not CommandPalette.is_open(self):
            self.push_screen(Palette())

    def action_tour(self) -> None:
        """A program of its own, with an engine of its own, while this one stands aside."""
        if self.start.tour:
            self.notify("this is the tour")
            return
        words = ["--ascii"] if self.start.ascii else []
        try:
            with self.suspend():
                subprocess.run([sys.executable, "-m", "minichat", "tour", *words], check=False)
        except SuspendNotSupported:
            self.notify("the tour needs the terminal: leave, and say minichat tour", severity="warning")

    def leave(self, code: int) -> None:
        self.run_worker(self._leave(code))

    async def action_restart(self) -> None:
        if not self.keeper.again():
            await self._leave(RESTART)

    async def action_quit(self) -> None:
        await self._leave(0)

    def _told_to_end(self, number: int, _frame: object) -> None:
        """Leaves as if told by a key; soon without the terminal, which may be gone or stalled."""
        code = 128 + number
        last_resort = threading.Timer(_LEAVE_WITHIN, self._leave_at_once, (code,))
        last_resort.daemon = True
        last_resort.start()
        if not self._loop_of_signals.is_closed():
            asyncio.run_coroutine_threadsafe(self._leave(code), self._loop_of_signals)

    def _leave_at_once(self, code: int) -> None:
        for conversation in self.chats.streaming:
            conversation.keep()
        os._exit(code)

    async def _leave(self, code: int) -> None:
        """Every reply is saved where it is, then the screen goes, then the engine."""
        self.chats.active.chat.draft = self.main.prompt.text
        await self.chats.put_away()
        self.chats.remember(self.paths.remembered)
        self.pulse.rest()
        self.exit(return_code=code)
