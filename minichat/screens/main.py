"""The main screen: the chats, the prompt, and the engine beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol, cast

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal
from textual.events import DescendantBlur, DescendantFocus, Resize

from engine.commands import Abort, Preempt
from engine.events import Event
from engine.snapshot import Snapshot
from minichat.conversation import Conversation
from minichat.frames import FrameScreen
from minichat.keys import bindings, keys_for, keys_of
from minichat.layout import layout
from minichat.open_chats import OpenChats
from minichat.screens import beside, deeds, dialogs, labels, schemes, sending, switches
from minichat.screens.decoding import Decoding
from minichat.screens.dialog import closed_by
from minichat.screens.links import Links
from minichat.screens.picking import Picking
from minichat.widgets.banner import Banner
from minichat.widgets.decoding import DecodingDrawer
from minichat.widgets.keybar import KeyBar
from minichat.widgets.knobs import Knobs
from minichat.widgets.marks import ASCII
from minichat.widgets.monitor import EngineLine, MonitorPanel, Owner, Queues
from minichat.widgets.monitor.cells import Order, Tint
from minichat.widgets.monitor.kvmap import KVMap
from minichat.widgets.pane import ChatPane, FindBar
from minichat.widgets.panes import Panes
from minichat.widgets.picker import TokenPicker
from minichat.widgets.prompt import Prompt
from minichat.widgets.quantization import QuantizationDrawer
from minichat.widgets.tabs import ChatTabs
from minichat.widgets.transcript import Transcript

if TYPE_CHECKING:
    from minichat.app import MinichatApp


class Onlooker(Protocol):
    """Looks at the engine beside the monitor."""

    def see_snapshot(self, snapshot: Snapshot) -> None: ...

    def see_events(self, events: Sequence[Event]) -> None: ...


class MainScreen(FrameScreen[None]):
    """Lays out and routes; what a chat does is the conversation's business."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("screen")]
    AUTO_FOCUS = "Prompt"

    def __init__(self, chats: OpenChats) -> None:
        super().__init__()
        self.chats = chats
        self.owners: dict[int, Owner] = {}  # of every request so far: cached blocks outlive theirs
        self.monitor_wanted: bool | None = None  # None: where there is room for it
        self.side_by_side = True
        self.broadcast = False
        self.found = ""  # on the first start of all
        self.latest: Snapshot | None = None
        self.at_work: Snapshot | None = None  # the newest one in which anything ran
        self.links, self.decoding, self.picking = Links(self), Decoding(self), Picking(self)
        self.onlookers: list[Onlooker] = []  # who wants to see what the engine says, while they are there
        self._shown: list[Conversation] = []

    def compose(self) -> ComposeResult:
        yield ChatTabs(id="tabs")
        yield Banner(id="banner")
        with Horizontal(id="work"):
            yield Panes(self.program.glyphs, id="panes")
            yield DecodingDrawer(id="decoding")
            yield QuantizationDrawer(id="quantization")
            yield MonitorPanel(ascii=self.program.start.ascii, id="monitor")
        yield EngineLine(ascii=self.program.start.ascii, id="engine-line")
        prompt = Prompt(id="prompt")
        yield prompt.completion
        yield prompt
        yield KeyBar(id="keybar")

    async def on_mount(self) -> None:
        self.banner, self.tabs = self.query_one(Banner), self.query_one(ChatTabs)
        self.keybar, self.prompt = self.query_one(KeyBar), self.query_one(Prompt)
        self.drawer = self.query_one(DecodingDrawer)
        self.monitor, self.engine_line = self.query_one(MonitorPanel), self.query_one(EngineLine)
        self.quantization, self._panes = self.query_one(QuantizationDrawer), self.query_one(Panes)
        self.drawer.display = self.quantization.display = False
        screen = self.program.settings.screen
        self.monitor.kvmap.order = Order.SESSION if screen.map_order == "session" else Order.PHYSICAL
        self.monitor.kvmap.tint = Tint(screen.map_colour)
        if self.program.start.ascii:
            self.drawer.obey(ASCII)
            self.quantization.obey(ASCII)
            for drawn in (self.tabs, self.banner, self.prompt.completion):
                drawn.marks = ASCII
        self.prompt.obey(self.program.keymap)
        self.prompt.put(self.chats.active.chat.draft)
        self.decoding.turn()
        self.lay_out()
        self.program.app_resume_signal.subscribe(self, lambda _: self.program.action_redraw())
        await sending.begin(self)

    @property
    def program(self) -> MinichatApp:
        return cast("MinichatApp", self.app)

    @property
    def shown(self) -> list[Conversation]:
        return self._shown

    # Layout

    def lay_out(self) -> None:
        """Who is seen, for this size, these chats and what is open."""
        plan = layout(
            self.size.width,
            monitor=self.monitor_wanted,
            drawer=self.drawer.display or self.quantization.display,
            side_by_side=self.side_by_side,
        )
        self.monitor.display = plan.monitor
        self.monitor.styles.width = plan.monitor_columns or "1fr"
        self.engine_line.display = not plan.monitor
        for drawer in (self.drawer, self.quantization):
            drawer.styles.width = plan.drawer_columns or "1fr"
        self._panes.display = plan.chats
        self._shown = self.chats.shown(plan.panes)
        self._panes.show(self._shown, list(self.chats))
        self.set_class(len(self._shown) > 1, "-several")
        self.label()
        self.wake()

    def label(self) -> None:
        """Tabs, heads of panes, the prompt's border, the keys."""
        active, keymap = self.chats.active, self.program.keymap
        greeting = labels.greeting(keymap, self.found, attached=bool(self.program.backend.elsewhere))
        for each in self._shown:
            each.unread = False
            pane = self._panes.of(each)
            pane.show_label(self._colours(each), active=each is active)
            pane.transcript.greet(() if self.program.start.tour else greeting)
        self.tabs.tabs = tuple(
            labels.tab(each, self._colours(each), active=each is active, shown=each in self._shown)
            for each in self.chats
        )
        self.prompt.border_title = labels.recipient(active, self._shown if self.broadcast else [active])
        self.prompt.placeholder = "" if active.chat.messages else "say something"
        self.prompt.border_subtitle = labels.hint(active, keymap)
        self._label_keys()

    @on(DescendantFocus)
    @on(DescendantBlur)
    def _label_keys(self) -> None:
        self.keybar.keys = labels.footer(self.chats.active, self.focused, self.program.keymap)

    def _colours(self, conversation: Conversation) -> str:
        return self.program.owner_colours(conversation.colour)

    def on_resize(self, event: Resize) -> None:
        self.lay_out()

    # What the rest of the program tells

    def changed(self, conversation: Conversation) -> None:
        """A chat began or ended a reply, or is called something else."""
        if not conversation.streaming and conversation not in self._shown:
            conversation.unread = True
        if conversation is self.chats.active:
            if conversation.streaming:
                self.picking.end()
            self.drawer.knobs.params = conversation.chat.params  # the engine may have refused what was set
        self.label()
        self.wake()

    def took(self, conversation: Conversation, request: int) -> None:
        self.owners[request] = Owner(conversation.chat.letter.upper(), conversation.colour)
        self.wake()

    def forget_requests(self) -> None:
        """Another engine comes, which counts its requests and its tokens anew."""
        self.owners.clear()
        self.decoding.forget()
        self.picking.end()
        self.latest = self.at_work = None
        for each in self.chats:
            each.likely, each.reading.left_out = None, 0  # another model may hold more
            each.traces.clear()

    def wake(self) -> None:
        self.program.pulse.wake()

    def show_snapshot(self, snapshot: Snapshot) -> None:
        self.latest = snapshot
        self.tabs.facts = labels.facts(snapshot)
        for view in snapshot.requests:  # several that answer one request are whose that is
            if view.group in self.owners:
                self.owners.setdefault(view.id, self.owners[view.group])
        if snapshot.running and snapshot.rates.steps:
            self.at_work = snapshot
        self.decoding.see_snapshot(snapshot)
        self._panes.see_snapshot(snapshot)
        for each in (self.links, *self.onlookers):
            each.see_snapshot(snapshot)
        self.monitor.update_from(snapshot, self.owners)  # a hidden one only remembers the rates
        if not self.monitor.display:
            self.engine_line.update_from(snapshot, self.owners)

    def show_events(self, events: Sequence[Event]) -> None:
        for event in events:
            self.monitor.add_event(event)
        for each in self.onlookers:
            each.see_events(events)
        self.wake()

    # Chats come and go

    def take_away(self, conversation: Conversation) -> None:
        """A chat that has just been closed; there is always another one."""
        self._panes.drop(conversation)
        self.speak_to(self.chats.active)

    def go_to(self, conversation: Conversation) -> None:
        """Another chat that is open."""
        if conversation is not self.chats.active:
            before = self.chats.active
            before.chat.draft = "" if before.editing is not None else self.prompt.text
            before.editing = None
            self.chats.active = conversation
            self.speak_to(conversation)

    def speak_to(self, conversation: Conversation) -> None:
        """The prompt, the drawer and the marks are this chat's now; the next screen begins there, too."""
        self.picking.end()
        self.prompt.put(conversation.chat.draft)
        self.decoding.turn()
        self.lay_out()
        self.chats.remember(self.program.paths.remembered)

    @property
    def pane(self) -> ChatPane:
        return self._panes.of(self.chats.active)

    @property
    def transcript(self) -> Transcript:
        return self.pane.transcript

    @property
    def panes(self) -> list[ChatPane]:
        return self._panes.all

    # Messages from the widgets

    @on(Prompt.Sent)
    def _send(self, event: Prompt.Sent) -> None:
        sending.send(self, event.text)

    @on(Prompt.Recall)
    def _recall(self, event: Prompt.Recall) -> None:
        sending.recall(self, event.back)

    @on(Prompt.Scroll)
    def _scroll(self, event: Prompt.Scroll) -> None:
        if event.pages:
            self.transcript.scroll_relative(y=event.pages * (self.transcript.size.height - 1), animate=False)
        else:
            self.action_follow()

    @on(ChatTabs.Chosen)
    def _tab_chosen(self, event: ChatTabs.Chosen) -> None:
        self.action_go(event.index)

    @on(KeyBar.Pressed)
    async def _key_pressed(self, event: KeyBar.Pressed) -> None:
        await self.run_action(event.action)

    @on(ChatPane.Touched)
    def _pane_touched(self, event: ChatPane.Touched) -> None:
        self.go_to(event.conversation)

    @on(Transcript.RetryRequested)
    def _retry_wanted(self, event: Transcript.RetryRequested) -> None:
        with self.program.complaining():
            self.chats.active.retry(event.message_id)

    @on(Transcript.MessageMenu)
    def _menu_wanted(self, event: Transcript.MessageMenu) -> None:
        dialogs.message_menu(self, event.message_id)
        closed_by(self.app.screen, keys_of("transcript.menu", self.program.keymap).split(","))

    @on(Transcript.CopyRequested)
    async def _copy_wanted(self, event: Transcript.CopyRequested) -> None:
        await self.program.send_to_clipboard(event.text)

    @on(Transcript.LinkClicked)
    def _link_clicked(self, event: Transcript.LinkClicked) -> None:
        dialogs.link(self, event.address)

    @on(TokenPicker.Said)
    def _picker_says(self, event: TokenPicker.Said) -> None:
        with self.program.complaining():
            self.picking.obey(event)

    @on(KVMap.Pointed)
    def _blocks_pointed(self, event: KVMap.Pointed) -> None:
        self.links.point(event.blocks)

    @on(Transcript.SelectionChanged)
    def _text_selected(self) -> None:
        self.links.select()

    @on(Knobs.Turned)
    def _knob_turned(self, event: Knobs.Turned) -> None:
        with self.program.complaining():
            self.chats.active.tune(event.params)

    @on(Knobs.Asked)
    def _knobs_ask(self, event: Knobs.Asked) -> None:
        self.action_ask(event.dialog)

    @on(MonitorPanel.RateWanted)
    def _rate_wanted(self, event: MonitorPanel.RateWanted) -> None:
        rate = self.program.pulse.hurry(event.by)
        self.notify(f"the monitor looks {rate:g} time{'s' * (rate != 1)} a second", timeout=2)

    @on(Queues.Abort)
    def _abort_wanted(self, event: Queues.Abort) -> None:
        self.program.ask(self.program.backend.send(Abort((event.request,))))

    @on(Queues.Preempt)
    def _preempt_wanted(self, event: Queues.Preempt) -> None:
        self.program.ask(self.program.backend.send(Preempt(event.request)))

    @on(QuantizationDrawer.Chosen)
    def _quantize(self, chosen: QuantizationDrawer.Chosen) -> None:
        schemes.quantize(self, chosen.scheme)

    @on(QuantizationDrawer.Recache)
    def _recache(self, chosen: QuantizationDrawer.Recache) -> None:
        schemes.recache(self, chosen.scheme)

    @on(DecodingDrawer.Left)
    @on(QuantizationDrawer.Left)
    @on(FindBar.Left)
    @on(MonitorPanel.Left)
    def _left(self) -> None:
        beside.leave(self)

    # Actions

    def action_stop_all(self) -> None:
        for conversation in self.chats.streaming:
            conversation.stop()

    def action_go(self, index: int) -> None:
        deeds.go(self, index)

    def action_go_by(self, by: int) -> None:
        self.action_go((self.chats.index + by) % len(self.chats))

    async def action_chat(self, deed: str) -> None:
        """One of `deeds`, by its name."""
        if (work := getattr(deeds, deed)(self)) is not None:
            await work

    def action_beside(self, what: str) -> None:
        """Opens or closes what stands beside the chats: one of `beside`, by its name."""
        getattr(beside, what)(self)

    def action_ask(self, dialog: str) -> None:
        """A question of `dialogs`, by its name; its own key takes it away again."""
        getattr(dialogs, dialog)(self)
        closed_by(self.app.screen, keys_for(f"ask({dialog!r})", self.program.keymap))

    def action_switch(self, name: str) -> None:
        """Turns a technique of the engine off, or on again."""
        switches.turn(self, name)

    def action_press(self, key: str) -> None:
        """As if it was pressed; from the program, since a message stops at whoever sent it."""
        self.program.call_later(self.program.simulate_key, key)

    def action_find(self) -> None:
        beside.uncover(self)
        self.pane.find()

    def action_panes(self) -> None:
        deeds.side_by_side(self)

    def action_follow(self) -> None:
        self.transcript.follow()
