"""Alt+G: an overview of the open chats, pinned ones first: title, state and rate of each."""

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.events import Click, MouseScrollDown, MouseScrollUp
from textual.widget import Widget

from engine.api.snapshot import Snapshot
from minichat.features.feature import Context, Feature, HelpSection, PanelSpec, ScreenCommand
from minichat.session.conversation import Conversation
from minichat.ui.marks import ASCII, UNICODE
from minichat.ui.monitor.figures import token_rate
from minichat.ui.panes.keybar import Hints, HintsChanged
from minichat.ui.panes.tabs import cut_title

_HEAD = 1  # lines above the chats
_WHEEL = 3  # lines
_RATE_AFTER = 0.2  # seconds after the first token; before that, the rate reflects batching in transit


class ChatOverview(Widget, can_focus=True):
    """One line per chat, in tab order. Redrawn when a chat changes and while replies stream."""

    HINTS: ClassVar[Hints] = (
        ("Up Down", "choose"),
        ("Enter", "go"),
        ("overview.pin", "pin"),
        ("Esc", "close"),
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", show=False),
        Binding("down", "move(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("home", "move(-1000000)", show=False),
        Binding("end", "move(1000000)", show=False),
        Binding("enter", "go", show=False),
        Binding("p", "pin", "Pin or unpin the selected chat", id="overview.pin", show=False),
        Binding("escape", "leave", show=False),
    ]

    def __init__(self, context: Context) -> None:
        super().__init__(classes="drawer")
        self.context = context
        self._first = 0  # the first visible chat
        self._at, self._selected = 0, context.chats.active  # its line was this one when it was selected
        self._marks = ASCII if context.program.start.ascii else UNICODE
        context.signals.changed.connect(self._changed)
        context.signals.chat_changed.connect(self._turned)

    @property
    def hints(self) -> Hints:
        """The keys, for the selected chat. With one chat there is none to choose or to go to."""
        unpins = self.context.chats.is_pinned(self.chosen)
        labels = {"overview.pin": "unpin"} if unpins else {}
        hints = self.HINTS if len(self.context.chats) > 1 else self.HINTS[2:]
        return tuple((key, labels.get(key, label)) for key, label in hints)

    @property
    def at(self) -> int:
        """The line of the selected chat, also after others came above it; its last line if it was closed."""
        chats = list(self.context.chats)
        return chats.index(self._selected) if self._selected in chats else min(self._at, len(chats) - 1)

    @at.setter
    def at(self, line: int) -> None:
        self._at, self._selected = line, list(self.context.chats)[line]
        self.show_again()

    def show_again(self) -> None:
        self.post_message(HintsChanged())
        self.refresh()

    def see_snapshot(self, snapshot: Snapshot) -> None:
        if self.context.chats.streaming:
            self.refresh()

    def _changed(self, _: Conversation) -> None:
        self.refresh()

    def on_show(self) -> None:
        self._turned()

    def _turned(self) -> None:
        chats = self.context.chats
        closed_here = self.has_focus and self._selected not in chats
        self.at = self.at if closed_here else chats.index

    def render(self) -> Content:
        chats, width = list(self.context.chats), self.size.width
        room = self._room
        at = self.at
        self._first = max(min(self._first, at, len(chats) - room), at - room + 1, 0)
        seen = list(enumerate(chats))[self._first : self._first + room]
        head = Content.styled(
            f"{len(chats)} open, {len(self.context.chats.streaming)} replying", "$text-muted"
        )
        return Content("\n").join(
            [head.truncate(width), *(self._row(number, each, width, number == at) for number, each in seen)]
        )

    def _row(self, number: int, conversation: Conversation, width: int, chosen: bool) -> Content:
        chat, marks = conversation.chat, self._marks
        pinned = self.context.chats.is_pinned(conversation)
        active = conversation is self.context.chats.active
        pointer = marks.pointer if chosen and self.has_focus else " "
        left = Content.assemble(
            (f"{pointer}{number + 1:>2}{marks.pinned if pinned else ' '}", "$text-muted"),
            (f" {chat.letter.upper()} ", f"bold {self.context.program.owner_colors(conversation.color)}"),
            " ",
        )
        label, label_style = state_of(conversation)
        room = max(width - left.cell_length - len(label) - 1, 0)
        name = cut_title(chat.title, room, marks.ellipsis)
        title = Content.styled(name, "bold $text" if active else "$text").truncate(room, pad=True)
        return Content.assemble(left, title, " ", (label, label_style)).truncate(width)

    @property
    def _room(self) -> int:
        """The number of chats that fit."""
        return max(self.size.height - _HEAD, 1)

    @property
    def chosen(self) -> Conversation:
        return list(self.context.chats)[self.at]

    def action_move(self, by: int) -> None:
        self.at = min(max(self.at + by, 0), len(self.context.chats) - 1)

    def action_page(self, by: int) -> None:
        self.action_move(by * self._room)

    def on_mouse_scroll_up(self, event: MouseScrollUp) -> None:
        event.stop()
        self._scroll(-_WHEEL)

    def on_mouse_scroll_down(self, event: MouseScrollDown) -> None:
        event.stop()
        self._scroll(_WHEEL)

    def _scroll(self, by: int) -> None:
        """Scroll, and keep the selected chat in view."""
        last = len(self.context.chats) - 1
        self._first = max(min(self._first + by, last + 1 - self._room), 0)
        self.at = min(max(self.at, self._first), self._first + self._room - 1, last)
        self.refresh()

    def action_go(self) -> None:
        self._go_to(self.at)

    def action_pin(self) -> None:
        _turn_pin(self.context, self.chosen)

    def action_leave(self) -> None:
        self.context.panels.leave()

    def on_click(self, event: Click) -> None:
        number = self._first + event.y - _HEAD
        if event.y >= _HEAD and number < len(self.context.chats):
            self._go_to(number)

    def _go_to(self, number: int) -> None:
        self.context.workspace.go_to(list(self.context.chats)[number])
        self.context.panels.to_chat()


def state_of(conversation: Conversation) -> tuple[str, str]:
    """The state of a chat as a word or a rate, and its style."""
    run, messages = conversation.run, conversation.chat.messages
    if run is not None and run.taken and run.begun:
        return run.taken, "$text-warning"
    if run is not None and run.first is None:
        return run.doing, "$text-muted"
    if run is not None:
        stats = run.stats_so_far(conversation.services.clock())
        settled = stats.seconds - stats.ttft >= _RATE_AFTER
        return token_rate(stats.rate) if settled else "writing", "$text-success"
    if messages and messages[-1].state == "failed":
        return "failed", "$text-error"
    return ("unread", "$text-accent") if conversation.unread else ("", "$text-muted")


def toggle(context: Context) -> None:
    context.panels.toggle(context.part(ChatOverview))


def overview_with_keys(context: Context) -> ChatOverview | None:
    focused = context.app.focused
    return focused if isinstance(focused, ChatOverview) else None


def meant(context: Context) -> Conversation:
    """The chat that a command is for: in the overview the selected one."""
    overview = overview_with_keys(context)
    return overview.chosen if overview else context.chats.active


def pin(context: Context) -> None:
    _turn_pin(context, meant(context))


def _turn_pin(context: Context, conversation: Conversation) -> None:
    context.chats.pin(conversation, not context.chats.is_pinned(conversation))
    context.chats.remember(context.program.paths.remembered)
    context.workspace.lay_out()
    context.part(ChatOverview).show_again()


OVERVIEW = Feature(
    name="overview",
    title="Overview of open chats",
    commands=(
        ScreenCommand("view.chats", "View", "Overview of open chats", toggle, "alt+g"),
        ScreenCommand("chat.pin", "Chats", "Pin or unpin this chat", pin, "alt+i"),
    ),
    panel=PanelSpec(ChatOverview, sees=ChatOverview.see_snapshot),
    help=(
        HelpSection(
            "In the overview of chats ({view.chats})",
            (
                ("Up Down Enter", "select a chat and go to it"),
                ("{overview.pin}", "pin or unpin it"),
                ("{chat.rename chat.close chat.delete}", "rename, close or delete it"),
                ("{chat.fork chat.system}", "fork it; its system prompt"),
            ),
        ),
    ),
    keyed=(("overview", ChatOverview),),
)
