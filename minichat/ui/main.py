"""The main screen: the chats, the prompt, and the features' widgets around them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.content import Content
from textual.events import DescendantBlur, DescendantFocus, Key, Paste, Resize, TextSelected
from textual.widget import Widget

from engine.api.events import Event
from engine.api.snapshot import Snapshot
from minichat.features.feature import Context
from minichat.models.welcome import things_to_try
from minichat.session.conversation import Conversation
from minichat.session.open_chats import OpenChats
from minichat.ui import labels, sending
from minichat.ui.composing import Composing
from minichat.ui.dialogs import menus
from minichat.ui.dialogs.dialog import closed_by
from minichat.ui.drafts import SavedDrafts, keep, unsent
from minichat.ui.engine_watch import EngineWatch
from minichat.ui.frames import FrameScreen
from minichat.ui.layout import LOW, SHORT, layout
from minichat.ui.marks import ASCII
from minichat.ui.panels import Dock, Panels
from minichat.ui.panes.banner import Banner
from minichat.ui.panes.keybar import HintsChanged, KeyBar
from minichat.ui.panes.pane import ChatPane
from minichat.ui.panes.panes import Panes
from minichat.ui.panes.prompt import Prompt
from minichat.ui.panes.tabs import ChatTabs
from minichat.ui.retries import Retries
from minichat.ui.signals import Contain, Signals
from minichat.ui.transcript import Glyphs, Transcript
from minichat.ui.transcript.greeting import Greeting


class MainScreen(FrameScreen[None]):
    """Lays out the screen and routes messages. Conversations run the chats; features do everything else."""

    AUTO_FOCUS = "Prompt"

    def __init__(
        self, chats: OpenChats, glyphs: Glyphs, owner_colors: Callable[[int], str], contain: Contain
    ) -> None:
        """`context` must be set before the screen is composed."""
        super().__init__()
        self.context: Context
        self.chats = chats
        self.signals = Signals(contain)
        self.engine = EngineWatch(self.signals)
        self.panels = Panels(self.engine)
        self.side_by_side = self.shows_greeting = True
        self.sends_to_all = False  # the prompt sends to all panes
        self.found = ""  # what the first start found on this machine, and the present model
        self.shown: list[Conversation] = []
        self._glyphs, self._owner_colors = glyphs, owner_colors

    def compose(self) -> ComposeResult:
        context, keys = self.context, self.context.keys
        below = [partial(each.in_pane, context) for each in context.features if each.in_pane is not None]
        panels = [each.panel.made(context) for each in context.features if each.panel is not None]
        self.tabs, self.banner = ChatTabs(id="tabs"), Banner(id="banner")
        self._panes = Panes(self._glyphs, below, id="panes")
        self.prompt = Prompt(keys.of("prompt.send"), keys.of("prompt.newline"), id="prompt")
        self.keybar = KeyBar(id="keybar")
        self.drafts, self.composing = SavedDrafts(context), Composing(context)
        self.prompt.refused = self.composing.refused
        self._retries = Retries(context)
        self.panels.bind(panels, self._panes, self.prompt, self._arranged)
        yield self.tabs
        yield self.banner
        with Horizontal(id="work"):
            yield self._panes
            for dock in (Dock.DRAWER, Dock.SIDE):
                yield from (each.widget for each in panels if each.dock is dock)
        yield from (each.line for each in panels if each.line is not None)
        yield self.prompt.completion
        yield self.prompt
        yield self.keybar

    async def on_mount(self) -> None:
        context, program = self.context, self.context.program
        if program.start.ascii:
            for drawn in (self.tabs, self.banner, self.prompt.completion):
                drawn.marks = ASCII
        for feature in context.features:
            with self.signals.contain():
                if feature.part is not None and (part := feature.part(context)) is not None:
                    context.add(part)
        self.prompt.put(unsent(self.chats.active))
        self.signals.chat_changed()
        self.lay_out()
        self.app.app_resume_signal.subscribe(self, lambda _: program.redraw())
        await sending.begin(context, self.composing)

    # Layout

    def lay_out(self) -> None:
        """Choose the visible chats and panels for the screen's size."""
        plan = layout(
            self.size.width,
            side=self.panels.side_requested,
            drawer=self.panels.drawer_open,
            side_by_side=self.side_by_side,
            filled=self.panels.side_fills,
        )
        self.panels.lay_out(plan)
        self._panes.display = plan.chats
        self.shown = self.chats.shown(plan.panes)
        self._panes.show(self.shown, list(self.chats))
        self.set_class(len(self.shown) > 1, "-several")
        self.set_class(self.size.height < SHORT, "-short")
        self.set_class(self.panels.drawer_open and plan.drawer_columns > 0, "-drawer")
        beside = self.panels.drawer_open or not plan.chats
        self.set_class(beside and self.size.height < LOW, "-low")
        self.label()
        self.wake()

    def on_key(self, event: Key) -> None:
        """Type a character into the prompt if the focused part does not handle it."""
        letter, used = event.character or "", event.key in self.active_bindings
        if not used and letter.isprintable() and letter.strip():
            self._into_prompt(event, letter)

    def on_paste(self, event: Paste) -> None:
        self._into_prompt(event, event.text)

    def _into_prompt(self, event: Key | Paste, text: str) -> None:
        """The prompt may have the focus by now, but has not seen it: what it takes itself ends there."""
        event.stop()
        self.prompt.focus()
        self.prompt.insert(text)

    def _arranged(self) -> None:
        """Lay out again: a panel was opened or closed."""
        self.signals.arranged()
        self.lay_out()

    def label(self) -> None:
        """Update the tabs, the pane headers, the prompt's border and the key bar."""
        context, active = self.context, self.chats.active
        greeting = labels.greeting(context, self.found, self.tries)
        for each in self.shown:
            each.unread = False
            pane = self._panes.of(each)
            pane.show_label(self._colors(each), active=each is active)
            pane.transcript.greet(greeting if self.shows_greeting else Greeting())
            pane.transcript.name_keys(*labels.keys_of_replies(context, each))
        self.tabs.tabs = tuple(
            labels.tab(
                each,
                self._colors(each),
                active=each is active,
                shown=each in self.shown,
                pinned=self.chats.is_pinned(each),
            )
            for each in self.chats
        )
        self._retries.look()
        self.prompt.show_recipient(*labels.recipient(context, self.recipients))
        self.prompt.placeholder = "" if active.chat.messages else "Type a message"
        self.prompt.set_class(self.composing.checked.faulty, "-fault")
        self.keybar.unsaved = self.chats.services.store.unsaved
        self.keybar.work = labels.work(len(self.chats.streaming), self.engine.latest)
        self._label_keys()

    @on(DescendantFocus)
    @on(DescendantBlur)
    @on(HintsChanged)
    @on(events.ScreenSuspend)  # below a dialog
    @on(events.ScreenResume)
    def _label_keys(self) -> None:
        context, checked, completes = self.context, self.composing.checked, bool(self.prompt.hints)
        hint = labels.hint(self.chats.active, context.keys, checked, completes=completes)
        self.prompt.border_subtitle = Content(hint)
        covered, dialogs = not self._panes.display, self.app.screen_stack[1:]
        self.keybar.keys = labels.footer(context, self.focused, dialogs, covered=covered)

    def _colors(self, conversation: Conversation) -> str:
        return self._owner_colors(conversation.color)

    def on_resize(self, event: Resize) -> None:
        self.lay_out()

    # Calls from the program

    def changed(self, conversation: Conversation) -> None:
        """Update the screen: a chat started or finished a reply, or was renamed."""
        if conversation.unread and conversation not in self.shown:
            self.chats.remember(self.context.program.paths.remembered)  # a killed screen cannot
        self.signals.changed(conversation)
        self.label()
        self.composing.note()  # its settings may leave less room for the message
        self.wake()

    def catch_up(self, opened: Sequence[Conversation]) -> None:
        """Show chats that another screen has opened. Files that the message names may be there now."""
        self.composing.note()
        if opened:
            self.drafts.know(opened)
            self.lay_out()

    def took(self, conversation: Conversation, request: int, role: str = "") -> None:
        self.engine.took(conversation, request, role)
        self.wake()

    def forget_requests(self) -> None:
        """Forget request ids and tokens: a new engine starts counting again."""
        self.engine.forget()
        self._retries.forget()
        for each in self.chats:
            each.likely = None
            each.traces.clear()
            if each.reading.reset():
                each.show_messages()
        self.label()

    def wake(self) -> None:
        self.context.program.poller.wake()

    def show_snapshot(self, snapshot: Snapshot) -> None:
        self.chats.see_snapshot(snapshot)
        for see in (self._panes.see_snapshot, self.engine.show_snapshot, self._show_facts):
            with self.signals.contain():
                see(snapshot)

    def _show_facts(self, snapshot: Snapshot) -> None:
        for each in self.chats:
            each.reading.context, each.reading.bound = snapshot.max_context, snapshot.context_bound
        self.keybar.lack = self.engine.lack
        self.keybar.work = labels.work(len(self.chats.streaming), snapshot)
        facts = labels.facts(snapshot)
        if facts != self.tabs.facts:  # the sample messages depend on the model
            self.tabs.facts = facts
            self.label()
        self.composing.note_engine(facts, snapshot.max_context)

    def show_late(self, on: bool) -> None:
        """Show that the engine's answer is overdue, or that it is there."""
        self.engine.show_late(on)
        self.keybar.lack = self.engine.lack

    def show_events(self, events: Sequence[Event]) -> None:
        self.engine.show_events(events)
        self.wake()

    # Switching chats

    def take_away(self, conversation: Conversation) -> None:
        """Remove a chat that has just been closed; another one is always open."""
        self._panes.drop(conversation)
        self.follow_chat(self.chats.active)

    def new_chat(self) -> None:
        self.keep_draft()
        self.follow_chat(self.chats.new())
        self.prompt.focus()

    def keep_draft(self) -> None:
        """Store the unsent text with its chat, so that it is restored when the user returns."""
        keep(self.chats.active, self.prompt.text)

    def go_to(self, conversation: Conversation) -> None:
        """Switch to another open chat."""
        if conversation is not self.chats.active:
            self.keep_draft()
            self.chats.active = conversation
            self.follow_chat(conversation)

    def follow_chat(self, conversation: Conversation) -> None:
        """Make the prompt and the panels follow this chat, and remember it for the next start."""
        self.prompt.put(unsent(conversation))
        self.signals.chat_changed()
        self.lay_out()
        self.chats.remember(self.context.program.paths.remembered)

    @property
    def recipients(self) -> list[Conversation]:
        active = self.chats.active
        return self.shown if self.sends_to_all and active.editing is None else [active]

    @property
    def tries(self) -> tuple[str, ...]:
        shot = self.engine.latest
        if shot is None or shot.state == "dead" or not self.shows_greeting:
            return ()
        return things_to_try(shot.model, template=self.context.program.backend.has_template)

    @property
    def pane(self) -> ChatPane:
        return self._panes.of(self.chats.active)

    @property
    def transcript(self) -> Transcript:
        return self.pane.transcript

    @property
    def panes(self) -> list[ChatPane]:
        return self._panes.all

    def focus_next(self, selector: Any = "*") -> Widget | None:
        """Tab: from the prompt to the messages of its chat, not to those of the leftmost one."""
        if self.focused is not self.prompt or self.transcript not in self.focus_chain:
            return super().focus_next(selector)
        return self.transcript.focus()

    # Messages from the widgets

    @on(Prompt.Submitted)
    async def _send(self, event: Prompt.Submitted) -> None:
        await sending.submit(self.context, self.composing, event.text)

    @on(Prompt.Empty)
    def _show_reasoning(self) -> None:
        active = self.context.chats.active
        if active.streaming or any(each.reasoning for each in active.chat.messages):
            self.transcript.action_toggle_thought()

    @on(Prompt.Changed)
    def _typed(self) -> None:
        self.drafts.note()
        self.composing.note()

    def keep_drafts(self, *, soon: bool = False) -> None:
        (self.drafts.note if soon else self.drafts.keep)()

    @on(Prompt.RecallRequested)
    def _recall(self, event: Prompt.RecallRequested) -> None:
        sending.recall(self.context, event.back)

    @on(Prompt.ScrollRequested)
    def _scroll(self, event: Prompt.ScrollRequested) -> None:
        if event.pages:
            self.transcript.scroll_relative(y=event.pages * (self.transcript.size.height - 1), animate=False)
        else:
            self.transcript.follow()

    @on(ChatTabs.TabActivated)
    def _tab_activated(self, event: ChatTabs.TabActivated) -> None:
        self.go_to(list(self.chats)[event.index])
        self.prompt.focus()

    @on(KeyBar.Pressed)
    async def _key_pressed(self, event: KeyBar.Pressed) -> None:
        for command in self.context.commands:
            if command.id == event.key.command:
                await self.context.run(command)
        if event.key.pressed:  # called by the app, since a message does not return to its sender
            self.app.call_later(self.app.simulate_key, event.key.pressed)

    @on(ChatPane.Activated)
    def _pane_activated(self, event: ChatPane.Activated) -> None:
        selected = self.selections
        self.go_to(event.conversation)
        self.selections = selected  # the prompt drops it with its text

    @on(ChatPane.Clicked)
    @on(TextSelected)
    def _clicked(self, event: ChatPane.Clicked | TextSelected) -> None:
        """Focus the transcript if text is selected in it, because letters are its keys then."""
        for pane in self.panes:
            if pane.transcript in self.selections:
                pane.transcript.focus()
                return
        if isinstance(event, ChatPane.Clicked):
            self.prompt.focus()

    @on(Transcript.RetryRequested)
    def _retry_requested(self, event: Transcript.RetryRequested) -> None:
        with self.context.program.reporting_errors():
            sending.retry(self.context, event.message_id)

    @on(Transcript.MessageMenu)
    def _menu_requested(self, event: Transcript.MessageMenu) -> None:
        menus.message_menu(self.context, event.message_id)
        closed_by(self.app.screen, self.context.keys.of("transcript.menu"))

    @on(Transcript.CopyRequested)
    async def _copy_requested(self, event: Transcript.CopyRequested) -> None:
        await self.context.program.send_to_clipboard(event.text)

    @on(Transcript.LinkClicked)
    def _link_clicked(self, event: Transcript.LinkClicked) -> None:
        menus.link(self.context, event.address)

    @on(Transcript.TryChosen)
    def _try_chosen(self, event: Transcript.TryChosen) -> None:
        self.prompt.put(event.text)
        self.prompt.focus()

    @on(Transcript.SelectionChanged)
    def _text_selected(self) -> None:
        self.signals.selected()
