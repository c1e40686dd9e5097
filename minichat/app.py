"""The terminal program: it owns the engine, the chats and the settings, and exits cleanly."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from inspect import isawaitable
from pathlib import Path
from typing import Any

from textual.binding import BindingsMap
from textual.dom import DOMNode
from textual.events import Event as TextualEvent
from textual.events import Key, Paste
from textual.scrollbar import ScrollBar, ScrollBarRender
from textual.theme import Theme
from textual.timer import Timer
from textual.widget import Widget

from engine.api.errors import EngineError
from engine.api.events import Died, Event, Restarted, Restarting
from minichat.chats.errors import StoreError
from minichat.chats.model import Message
from minichat.chats.store import Store
from minichat.clients.protocol import Backend, LinkBack, LinkLost
from minichat.features import installed
from minichat.features.feature import Context, Feature, ScreenCommand
from minichat.features.table import bindings, bound, commands
from minichat.models.lifecycle import EngineLifecycle
from minichat.notices import Notices, capitalized, sentences
from minichat.session.conversation import Conversation
from minichat.session.open_chats import OpenChats
from minichat.session.pacer import Pacer
from minichat.session.presets import SavedPresets
from minichat.session.services import ChatServices
from minichat.settings.keymap import keymap
from minichat.settings.nearest import unknown
from minichat.shell import clipboard
from minichat.shell.background import begin
from minichat.shell.key_order import KeyOrder
from minichat.shell.keys import Keys
from minichat.shell.output import TerminalDriver
from minichat.shell.remembered import Remembered
from minichat.shell.terminal import when_gone
from minichat.start import Start
from minichat.ui.css.features import add_css
from minichat.ui.css.stylesheet import CachedStylesheet
from minichat.ui.dialogs.dialog import closed_by
from minichat.ui.error_boundary import ErrorBoundary, on_removed
from minichat.ui.live_themes import LiveThemes
from minichat.ui.main import MainScreen
from minichat.ui.marks import PlainBars
from minichat.ui.snapshot_poller import SnapshotPoller
from minichat.ui.transcript import glyphs
from minichat.ui.transcript.glyphs import enterable, one_line

_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
_EXIT_WITHIN = 2.0  # seconds after a signal
_FOLLOW_EVERY = 1.0  # seconds between looks at a reply that another screen receives
_CHECK_EVERY = 2.0  # seconds between checks for changes by other screens


class MinichatApp(Notices, inherit_bindings=False):
    """The screen appears at once; the engine is connected when it has been loaded."""

    CSS_PATH = "minichat.tcss"
    TITLE = "minichat"
    NOTIFICATION_TIMEOUT = 4
    _takes_signals = False  # a test's process keeps its own handlers
    _ends_on_signal = False

    def __init__(
        self, backend: Backend, store: Store, start: Start, features: Sequence[Feature] | None = None
    ) -> None:
        """`features`: the parts of the screen; by default all that are installed."""
        super().__init__(TerminalDriver)
        self.backend, self.store, self.start, self.paths = backend, store, start, start.paths
        self.settings = start.loaded.settings
        found, self._misfits = installed() if features is None else (tuple(features), ())
        known = tuple(bound(found))
        self.keys = Keys(known, keymap(start.loaded, known))
        self._bindings = BindingsMap(bindings(found))
        self.lifecycle = EngineLifecycle(self, start.model)
        self.error_boundary = ErrorBoundary(self)
        self._key_order = KeyOrder(self)
        self._mouse_captured = self.settings.screen.mouse
        remembered, damage = Remembered.opened(self.paths.remembered)
        self._misfits += damage
        self._themes = LiveThemes(self, self.paths.themes, self._report_all)
        self._wanted_theme = remembered.theme_for(self.settings.screen.theme)
        self._themes.read(self._wanted_theme)
        self._following: Timer | None = None
        self._saved_theme, self._checked_at = self._wanted_theme, start.clock()
        rates, ssh = self.settings.rates, start.terminal.ssh
        pacer = Pacer(rates.ssh_transcript if ssh else rates.transcript)
        given = (self._took, self._changed, self._spread, self.report, start.params)
        timing = self.settings.chat.deadline, start.clock
        services = ChatServices(store, backend, pacer, self.lifecycle.ready, *given, *timing)
        restored = (remembered.chats, remembered.active, remembered.pinned, remembered.unread)
        self.chats = OpenChats(services, start.params, start.system, *restored)
        signs = glyphs.ASCII if start.ascii else glyphs.UNICODE
        self.main = MainScreen(self.chats, signs, self.owner_colors, self.error_boundary.guarded)
        changed = self.main.signals.presets
        self.presets = SavedPresets(
            self.paths.presets, changed=changed, notify=self.notify, report_all=self._report_all
        )
        self.main.context = self.context = self._context_of(found)
        self._load_css(found)
        self.main.signals.chat_changed.connect(lambda: self.call_next(self.follow_others))  # once laid out
        show, rate = self.main.show_snapshot, rates.ssh_monitor if ssh else rates.monitor
        self.poller = SnapshotPoller(backend, show, lambda: self.lifecycle.alive, rate, self.main.show_late)

    def _context_of(self, features: tuple[Feature, ...]) -> Context:
        """Return what the features of this screen work with."""
        return Context(
            app=self,
            program=self,
            chats=self.chats,
            workspace=self.main,
            panels=self.main.panels,
            engine=self.main.engine,
            lifecycle=self.lifecycle,
            presets=self.presets,
            keys=self.keys,
            signals=self.main.signals,
            features=features,
            commands=commands(features),
            run=self.run_command,
            do=self._do,
        )

    def _load_css(self, features: Sequence[Feature]) -> None:
        """Load the CSS of the features. A feature with invalid CSS goes without; the screen still starts."""
        self.stylesheet = CachedStylesheet(variables=self.get_css_variables())
        self._misfits += tuple(filter(None, (add_css(self.stylesheet, each) for each in features)))

    def get_default_screen(self) -> MainScreen:
        return self.main

    def on_mount(self) -> None:
        self.set_class(self.start.ascii, "-ascii")
        ScrollBar.renderer = PlainBars if self.start.ascii else ScrollBarRender
        self.set_keymap(dict(self.keys.keymap))
        self.theme_changed_signal.subscribe(self, self._theme_chosen)
        self.presets.read()
        self._themes.begin()
        if (name := self.settings.screen.theme) not in (there := self._themes.known.palettes):
            self.start.loaded.document.report("screen.theme", f"{name!r} {unknown(name, there)}")
        elif self._wanted_theme not in there:
            self.report(f"The theme {self._wanted_theme} is gone. This is {self.theme}")
            if not self._themes.known.problems:  # an invalid file may be mended
                self.call_after_refresh(self._theme_chosen, self.current_theme)
        self._report_all([*self._misfits, *self.start.loaded.problems, *self._themes.known.problems])
        self._show_notices()
        self._signal_loop = asyncio.get_running_loop()
        self._signal_loop.set_exception_handler(self.error_boundary.handle_from_loop)
        if self._takes_signals:
            for number in _SIGNALS:  # asyncio's own handlers would need a loop that is not stuck
                signal.signal(number, self._end_on_signal)
            when_gone(lambda: self._end_on_signal(signal.SIGHUP, None))
        self._key_order.settle()
        self.call_after_refresh(lambda: self.run_worker(self.lifecycle.load()))

    async def run_async(self, **how: Any) -> object:
        self._takes_signals = not how.get("headless")
        try:
            return await super().run_async(**how)
        finally:  # not before the terminal is as it was: a second signal would leave it half way
            for number in _SIGNALS:
                usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
                signal.signal(number, usual)

    # The engine

    def receive_events(self, events: Sequence[Event]) -> None:
        if not self.main.is_attached:
            return  # the screen is closed and the engine is shutting down
        for event in events:
            if isinstance(event, Died):
                self.lifecycle.stopped(event.error)
                self.ask(self._look())
            elif isinstance(event, Restarting):
                self.lifecycle.restarting(event.error)
                self.ask(self._look())
            elif isinstance(event, Restarted):
                self.lifecycle.restarted()
                self.ask(self._look())
            elif isinstance(event, LinkLost) and self.is_running:
                self.lifecycle.cut(event)
            elif isinstance(event, LinkBack):
                self.lifecycle.reconnected(event)
        self.main.show_events(events)

    async def _look(self) -> None:
        """Show one more snapshot: nothing runs, so nothing is polled."""
        self.main.show_snapshot(await self.backend.snapshot())

    def _took(self, conversation: Conversation, request: int, role: str = "") -> None:
        self.main.took(conversation, request, role)

    def _changed(self, conversation: Conversation) -> None:
        self._show_notices()
        self.main.changed(conversation)

    def _spread(self, conversation: Conversation, others: list[Message]) -> None:
        with self.reporting_errors():
            self.chats.spread(conversation, others)
        self.main.lay_out()
        self.chats.remember(self.paths.remembered)

    def ask(self, request: Coroutine[object, object, None]) -> None:
        """Send a request to the engine in the background. An error is shown as a notice."""

        async def ask() -> None:
            try:
                await request
            except EngineError as error:
                self.report(str(error))

        self.run_worker(ask())

    async def on_event(self, event: TextualEvent) -> None:
        if not isinstance(event, Key | Paste) or event.is_forwarded:
            if not on_removed(self, event):
                await super().on_event(event)
        elif not self._key_order.waits(event):
            if isinstance(event, Paste):
                event.text = enterable(event.text)  # for any field
            elif self.start.clock() - self._checked_at > _CHECK_EVERY:
                self.on_app_focus()  # tmux reports focus only if configured to
            path = self._key_order.path(event)
            await super().on_event(event)
            self._key_order.hold(path)

    # Errors

    def _register_child(self, parent: DOMNode, child: Widget, before: int | None, after: int | None) -> None:
        self.error_boundary.guard(child)
        super()._register_child(parent, child, before, after)

    def _start_widget(self, parent: Widget, widget: Widget) -> None:  # a scroll bar
        self.error_boundary.guard(widget)
        super()._start_widget(parent, widget)

    def _handle_exception(self, error: Exception) -> None:
        """Contain the error; Textual would exit, which is right only before there is a screen."""
        if self.main.is_mounted:
            self.error_boundary.handle(error)
        else:
            super()._handle_exception(error)

    def report(self, sentence: str) -> None:
        self.notify(capitalized(one_line(sentence)), severity="error", timeout=8)

    def _report_all(self, problems: Sequence[object], before: Sequence[object] = ()) -> None:
        """Show the first few. `before`: those known until now; notices of the solved ones end."""
        found = sentences(problems)
        for each in sentences(before):
            if each not in found:
                self.end_notice(capitalized(one_line(each)))
        for each in found:
            self.report(each)

    @contextmanager
    def reporting_errors(self) -> Iterator[None]:
        """Show errors of the disk and the store as notices instead of raising them."""
        try:
            yield
        except OSError as error:
            self.report(": ".join(str(part) for part in (error.filename, error.strerror or error) if part))
        except StoreError as error:
            self.report(str(error))
        self._show_notices()

    def _show_notices(self) -> None:
        """Show what the store had to repair."""
        while self.store.notices:
            self.report(self.store.notices.pop(0))

    # Appearance

    def _theme_chosen(self, theme: Theme) -> None:
        """Remember the theme that the user picked in the palette for the next start."""
        self.main.label()  # the colors of chat letters come from the theme
        self._themes.watch()
        if theme.name != self._saved_theme:
            self._saved_theme, file = theme.name, self.paths.remembered
            Remembered.read(file).themed(theme.name, self.settings.screen.theme).write(file)

    def on_app_focus(self) -> None:
        """Catch up when the terminal regains focus: another screen may have written, or a theme changed."""
        self._checked_at = self.start.clock()
        with self.reporting_errors():
            self.chats.catch_up()
            self.main.catch_up(self.chats.open_others())
        self.follow_others()
        if (shown := self.main.engine.latest) is not None:
            self.poller.refresh(shown.tiers)  # another program may have stored or cleared blocks
        self._themes.look()

    def follow_others(self) -> None:
        """Look again in a moment if a reply that another screen receives is shown here."""
        with self.reporting_errors():
            if any(map(self.chats.replying_elsewhere, self.main.shown)) and self._following is None:
                self._following = self.set_timer(_FOLLOW_EVERY, self._look_again)
        if self.backend.elsewhere and self.lifecycle.alive:
            for each in self.main.shown:
                if each.messages and each.messages[-1].interrupted:  # that screen has ended
                    self.ask(each.resume())

    def _look_again(self) -> None:
        self._following = None
        self.follow_others()

    def copy_theme(self, name: str) -> Path:
        return self._themes.copy(name)

    def owner_colors(self, index: int) -> str:
        return self._themes.known.palettes[self.theme].letter(index)

    # Actions

    async def send_to_clipboard(self, text: str) -> None:
        driver, self._clipboard = self._driver, text
        write = driver.write if driver else lambda _: None
        self.notify(await clipboard.send(text, self.paths.clipboard, write, self.start.terminal))

    def copy_to_clipboard(self, text: str) -> None:
        """Called for text that a field cuts."""
        self._clipboard = text
        begin(self, partial(self.send_to_clipboard, text))

    async def action_command(self, id: str) -> None:
        """Run the command that a key is bound to."""
        await self.run_command(next(each for each in self.context.commands if each.id == id))

    async def run_command(self, command: ScreenCommand) -> None:
        """Run a command as its key would. The same key closes the dialog it opens."""
        before = self.screen
        if not command.enabled(self.context):
            self.notify(f"Not available now: {command.title}", severity="warning")
        elif command.run is not None:
            await self._do(partial(command.run, self.context))
        if self.screen is not before:
            closed_by(self.screen, self.keys.of(command.id))

    async def _do(self, work: Callable[[], object]) -> None:
        """Run a user's action, which may fail on the disk. A defect is reported each time: the user asked."""
        try:
            with self.reporting_errors():
                if isawaitable(running := work()):
                    await running
        except Exception as error:
            self.error_boundary.handle(error, asked=True)

    async def action_quit(self) -> None:
        await self.end(0)

    def toggle_mouse(self) -> bool:
        self._mouse_captured = taken = not self._mouse_captured
        if isinstance(self._driver, TerminalDriver):  # others have no terminal
            (self._driver._enable_mouse_support if taken else self._driver._disable_mouse_support)()
        return taken

    def redraw(self) -> None:
        """Redraw everything, over other programs' output; updates send only the cells that changed."""
        if self._driver is not None:
            self._driver.write("\x1b[0m\x1b[2J")
        self.screen.refresh()

    def _end_on_signal(self, number: int, _frame: object) -> None:
        """Quit as a key would; force an exit soon after, as the terminal may be gone or stalled."""
        if self._ends_on_signal:
            return
        self._ends_on_signal, code = True, 128 + number
        last_resort = threading.Timer(_EXIT_WITHIN, self._force_exit, (code,))
        last_resort.daemon = True
        last_resort.start()
        if not self._signal_loop.is_closed():
            asyncio.run_coroutine_threadsafe(self.end(code), self._signal_loop)

    def _force_exit(self, code: int) -> None:
        for conversation in self.chats.streaming:
            conversation.keep()
        os._exit(code)

    async def end(self, code: int) -> None:
        """Save what has arrived of each reply, then close the screen, then the engine."""
        await self.main.composing.stop()  # the message returns to the prompt
        self.main.keep_drafts()
        await self.chats.shut_down()
        self.chats.remember(self.paths.remembered)
        self.poller.stop()
        self.exit(return_code=code)
