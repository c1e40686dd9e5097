"""Step through the tokens of a reply: the alternatives at each, and a fork that continues with one."""

import asyncio
from collections.abc import Coroutine

from textual import on

from engine.api.errors import EngineError
from engine.api.snapshot import Snapshot
from minichat.chats.model import Message
from minichat.features.feature import Context, Feature, HelpSection, Leaving, MessageCommand, ScreenCommand
from minichat.features.picking.line import TokenPicker
from minichat.notices import capitalized
from minichat.session.branching import go_on_with
from minichat.session.conversation import Conversation
from minichat.session.walk import TokensUnknown, Walk, start_walk
from minichat.ui.likely import likely_of, probability_of
from minichat.ui.marks import ASCII, UNICODE, Marks
from minichat.ui.panes.pane import ChatPane

_AT_ONCE = 4  # positions to query at once
_LATE = 1.0  # seconds that opening takes before a notice says what it waits for


class Picking:
    """At most one walk, in the pane of the active chat."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._pane: ChatPane | None = None
        self._walk: Walk | None = None
        self._task: asyncio.Task[None] | None = None
        self._shown_at = -1  # the position whose candidates are shown
        self._form: tuple[str, str] | None = None  # the schemes of weights and cache
        context.signals.changed.connect(self._changed)
        context.signals.snapshot.connect(self._see)
        context.signals.chat_changed.connect(self.end)
        context.signals.replaced.connect(self.end)
        context.leaving.append(Leaving(self._shown, self.end))

    def _shown(self) -> bool:
        return self._walk is not None and self._context.panels.chats_shown

    def _changed(self, conversation: Conversation) -> None:
        """End the walk when a new reply streams, because its tokens differ, or when its own is replaced."""
        if conversation is not self._context.chats.active:
            return
        there = [message.id for message in conversation.chat.messages]
        if conversation.streaming or (self._walk is not None and self._walk.message.id not in there):
            self.end()

    def _see(self, snapshot: Snapshot) -> None:
        """After a conversion the model may give other probabilities than those known so far."""
        before, self._form = self._form, (snapshot.quantization, snapshot.kv_scheme)
        if before not in (None, self._form):
            traces = [trace for each in self._context.chats for trace in each.traces.values()]
            for trace in [*traces, *([self._walk.trace] if self._walk else [])]:
                trace.former.update(trace.logprobs)
            if self._walk is not None:
                self._update(self._walk)

    def begin(self, message_id: int | None = None) -> None:
        """Start at the given reply, the selected one, or the last one."""
        chosen = self._context.workspace.transcript.chosen
        replies = [*filter(_reply, self._context.chats.active.chat.messages)]
        usual = chosen if chosen and _reply(chosen) else replies[-1] if replies else None
        self.end()
        self._run(self._open(message_id if message_id is not None else usual.id if usual else -1))

    def end(self) -> None:
        """Close the line of tokens and clear its highlight."""
        if self._task is not None:
            self._task.cancel()
        if self._pane is not None:
            if self._picker.has_focus:  # else the messages get it, to which letters are commands
                self._context.workspace.prompt.focus()
            _show_picker(self._picker, None)
            self._pane.transcript.highlight({}, "picked")
        self._pane = self._walk = self._task = None
        self._shown_at = -1

    def leave(self) -> None:
        self.end()
        self._context.workspace.prompt.focus()

    def handle(self, action: TokenPicker.Action) -> None:
        """Handle a user action in the line of tokens."""
        match action:
            case TokenPicker.Moved(at=at):
                self.move(at)
            case TokenPicker.CandidateChosen(choice=choice):
                self.take(choice)
            case TokenPicker.Closed():
                self.leave()

    def move(self, at: int) -> None:
        if self._walk is not None:
            self._walk.at = at
            self._run(self._show(self._walk))

    def take(self, choice: int) -> None:
        """Fork the chat at the reply and continue with the chosen candidate."""
        chats, workspace, walk = self._context.chats, self._context.workspace, self._walk
        if walk is None or (entry := walk.trace.logprobs.get(walk.at)) is None:
            return
        if self._context.lifecycle.refuses():
            return
        token, _ = entry.top[choice]
        workspace.keep_draft()
        self.end()
        child = chats.fork(walk.message.id)
        workspace.follow_chat(child)
        go_on_with(child, walk, token)
        workspace.prompt.focus()

    async def _open(self, message_id: int) -> None:
        context = self._context
        try:
            with context.app.late_notice(self._wait, _LATE):
                walk = await start_walk(context.chats.active, message_id)
        except (TokensUnknown, EngineError) as error:
            context.app.notify(capitalized(str(error)), severity="warning")
            return
        walk.at = _start(walk)
        self._walk = walk
        context.panels.show_chat()
        self._pane = context.workspace.pane
        _show_picker(self._picker, ASCII if context.program.start.ascii else UNICODE)
        self._picker.focus()
        await self._show(walk)

    def _wait(self) -> str:
        """What opening waits for."""
        why, when = (engine := self._context.engine).gap
        waits = engine.unlinked or engine.silent
        return f"{why}. The tokens are read when {when}" if waits else "Reading the tokens ..."

    @property
    def _picker(self) -> TokenPicker:
        assert self._pane is not None
        return _picker_of(self._pane)

    async def _show(self, walk: Walk) -> None:
        """Show what is cached, then query the engine for this position and its neighbors."""
        picker = self._picker
        self._update(walk)
        place = walk.place()
        assert self._pane is not None
        self._pane.transcript.highlight({walk.message.id: [place]} if place else {}, "picked", show=True)
        try:
            await walk.look(walk.at)
            await walk.spell(walk.at)
            self._update(walk)
            near = sorted(picker.seen(), key=lambda at: abs(at - walk.at))
            for begin in range(0, len(near), _AT_ONCE):
                await asyncio.gather(*map(walk.look, near[begin : begin + _AT_ONCE]))
                self._update(walk)
        except EngineError as error:
            picker.trouble = str(error)

    def _update(self, walk: Walk) -> None:
        picker, words = self._picker, self._context.program.backend.words
        picker.shares = [walk.share(at) for at in range(len(walk.trace.tokens))]
        picker.at, picker.trouble = walk.at, ""
        # A remote engine supplies the text later.
        if not picker.words or not all(picker.words[at] for at in picker.seen()):
            picker.words = words(walk.trace.tokens)
        entry = walk.trace.logprobs.get(walk.at)
        former = " before the conversion" if walk.at in walk.trace.former else ""
        picker.probability = f"{probability_of(entry)}{former}" if entry else ""
        rows = likely_of(entry, words)
        if self._shown_at != walk.at:
            picker.choice = next((place for place, row in enumerate(rows) if row.chosen), 0)
        self._shown_at = walk.at if rows else -1
        picker.rows = rows

    def _run(self, work: Coroutine[None, None, None]) -> None:
        if self._task is not None:
            self._task.cancel()
        self._task = asyncio.create_task(work, name="picking")
        self._task.add_done_callback(_raise)


def _raise(done: asyncio.Task[None]) -> None:
    """Raise the error of a finished task in the event loop, which reports it at once."""
    if not done.cancelled():
        done.result()


def _picker_of(pane: ChatPane) -> TokenPicker:
    return pane.query_one(TokenPicker)


def _show_picker(picker: TokenPicker, marks: Marks | None) -> None:
    """Open the token line with these marks, or close it if None."""
    picker.display = marks is not None
    picker.words = picker.rows = ()
    picker.marks = marks or picker.marks


def _reply(message: Message) -> bool:
    return message.role == "assistant"


def _reply_with_tokens(message: Message) -> bool:
    return _reply(message) and bool(message.text or message.reasoning)


def _start(walk: Walk) -> int:
    """The least likely known position, or the first."""
    known = [(share, at) for at in range(len(walk.trace.tokens)) if (share := walk.share(at)) is not None]
    return min(known)[1] if known else 0


class PanePicker(TokenPicker):
    """The token line in a pane; forwards user actions to `Picking`."""

    def __init__(self, context: Context, pane: ChatPane) -> None:
        super().__init__()
        self.context = context
        self.display = False

    @on(TokenPicker.Action)
    def _handle(self, action: TokenPicker.Action) -> None:
        with self.context.program.reporting_errors():
            self.context.part(Picking).handle(action)


def pick(context: Context) -> None:
    """Open and focus the token line; close it if it has the focus."""
    if any(picker.has_focus for picker in context.workspace.pane.query(TokenPicker)):
        context.part(Picking).leave()
    else:
        context.part(Picking).begin()


def _pick_message(context: Context, message: Message) -> None:
    context.part(Picking).begin(message.id)


PICKING = Feature(
    name="picking",
    title="Tokens of a reply",
    commands=(
        ScreenCommand("reply.pick", "Reply", "Step through the tokens of the last reply", pick, "alt+c"),
    ),
    message_commands=(
        MessageCommand(
            "Step through its tokens, continue with another",
            _pick_message,
            _reply_with_tokens,
            when_idle=True,
        ),
    ),
    part=Picking,
    in_pane=PanePicker,
    help=(
        HelpSection(
            "Stepping through tokens ({reply.pick}, or the message menu)",
            (
                ("{tokens.left tokens.right}", "previous or next token"),
                ("{tokens.far_left tokens.far_right}", "ten tokens back, forward"),
                ("Home End", "first or last token"),
                ("{tokens.up tokens.down}", "other likely tokens"),
                ("Enter", "continue from there in a fork"),
            ),
        ),
    ),
    keyed=(("tokens", TokenPicker),),
    css="TokenPicker { height: 13; max-height: 60%; padding: 0 1; background: $surface; }",
)
