"""Along the tokens of a reply: what else was likely at each, and a fork that goes on with that."""

import asyncio
import math
from collections.abc import Coroutine

from textual import on

from engine.api.errors import EngineError
from engine.api.events import TokenLogprob
from minichat.chats.model import Message
from minichat.features.feature import Context, Feature, HelpSection, MessageCommand, ScreenCommand
from minichat.features.picking.line import TokenPicker
from minichat.session.branching import go_on_with
from minichat.session.conversation import Conversation
from minichat.session.walk import NoWay, Walk, walk_along
from minichat.ui.likely import likely_of
from minichat.ui.marks import ASCII, UNICODE, Marks
from minichat.ui.panes.pane import ChatPane

_AT_ONCE = 4  # places that the engine is asked for


class Picking:
    """One walk at a time, in the pane of the active chat."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._pane: ChatPane | None = None
        self._walk: Walk | None = None
        self._task: asyncio.Task[None] | None = None
        self._told = -1  # the place whose candidates are shown
        context.signals.changed.connect(self._changed)
        context.signals.turned.connect(self.end)
        context.signals.replaced.connect(self.end)
        context.leaving.append(self._left)

    def _changed(self, conversation: Conversation) -> None:
        """The reply that comes has other tokens."""
        if conversation is self._context.chats.active and conversation.streaming:
            self.end()

    def _left(self) -> bool:
        """Esc, from elsewhere on the screen."""
        walking = self._walk is not None
        if walking:
            self.end()
        return walking

    def begin(self, message_id: int | None = None) -> None:
        """Along the given reply, or the one that the reader has gone to, or the last one."""
        chosen = self._context.workspace.transcript.chosen
        replies = [*filter(_reply, self._context.chats.active.chat.messages)]
        usual = chosen if chosen and _reply(chosen) else replies[-1] if replies else None
        self.end()
        self._run(self._open(message_id if message_id is not None else usual.id if usual else -1))

    def end(self) -> None:
        """The line goes, and what it has marked."""
        if self._task is not None:
            self._task.cancel()
        if self._pane is not None:
            _show_picker(self._picker, None)
            self._pane.transcript.light({}, "picked")
        self._pane = self._walk = self._task = None
        self._told = -1

    def leave(self) -> None:
        self.end()
        self._context.workspace.prompt.focus()

    def obey(self, said: TokenPicker.Said) -> None:
        """What the person does in the line of tokens."""
        match said:
            case TokenPicker.Moved(at=at):
                self.move(at)
            case TokenPicker.Taken(choice=choice):
                self.take(choice)
            case TokenPicker.Left():
                self.leave()

    def move(self, at: int) -> None:
        if self._walk is not None:
            self._walk.at = at
            self._run(self._show(self._walk))

    def take(self, choice: int) -> None:
        """The chat is forked at the reply, and goes on with the candidate."""
        chats, workspace, walk = self._context.chats, self._context.workspace, self._walk
        if walk is None or (rivals := walk.trace.rivals.get(walk.at)) is None:
            return
        token, _ = rivals.top[choice]
        chats.active.chat.draft = workspace.prompt.text
        self.end()
        child = chats.fork(walk.message.id)
        workspace.speak_to(child)
        go_on_with(child, walk, token)
        workspace.prompt.focus()

    async def _open(self, message_id: int) -> None:
        context = self._context
        try:
            walk = await walk_along(context.chats.active, message_id)
        except (NoWay, EngineError) as error:
            context.app.notify(str(error), severity="warning", markup=False)
            return
        walk.at = _start(walk)
        self._walk = walk
        context.panels.uncover()
        self._pane = context.workspace.pane
        _show_picker(self._picker, ASCII if context.program.start.ascii else UNICODE)
        self._picker.focus()
        await self._show(walk)

    @property
    def _picker(self) -> TokenPicker:
        assert self._pane is not None
        return _picker_of(self._pane)

    async def _show(self, walk: Walk) -> None:
        """First what is known; then what the engine says of this place, and of those beside it."""
        picker = self._picker
        self._tell(walk)
        place = walk.place()
        assert self._pane is not None
        self._pane.transcript.light({walk.message.id: [place]} if place else {}, "picked", show=True)
        try:
            await walk.look(walk.at)
            await walk.spell(walk.at)
            self._tell(walk)
            near = sorted(picker.seen(), key=lambda at: abs(at - walk.at))
            for begin in range(0, len(near), _AT_ONCE):
                await asyncio.gather(*map(walk.look, near[begin : begin + _AT_ONCE]))
                self._tell(walk)
        except EngineError as error:
            picker.trouble = str(error)

    def _tell(self, walk: Walk) -> None:
        picker, words = self._picker, self._context.program.backend.words
        picker.shares = [walk.share(at) for at in range(len(walk.trace.tokens))]
        picker.at, picker.trouble = walk.at, ""
        if not picker.words or not all(
            picker.words[at] for at in picker.seen()
        ):  # an engine elsewhere tells later
            picker.words = words(walk.trace.tokens)
        rivals = walk.trace.rivals.get(walk.at)
        picker.told = _told(rivals) if rivals else ""
        rows = likely_of(rivals, words)
        if self._told != walk.at:
            picker.choice = next((place for place, row in enumerate(rows) if row.chosen), 0)
        self._told = walk.at if rows else -1
        picker.rows = rows

    def _run(self, work: Coroutine[None, None, None]) -> None:
        if self._task is not None:
            self._task.cancel()
        self._task = asyncio.create_task(work, name="picking")


def _picker_of(pane: ChatPane) -> TokenPicker:
    return pane.query_one(TokenPicker)


def _show_picker(picker: TokenPicker, marks: Marks | None) -> None:
    """Opens the line of a reply's tokens, drawn with these; none closes it."""
    picker.display = marks is not None
    picker.words = picker.rows = ()
    picker.marks = marks or picker.marks


def _told(rivals: TokenLogprob) -> str:
    share = f"{math.exp(rivals.logprob):.1%}"
    return share if rivals.rank else f"under {share}"


def _reply(message: Message) -> bool:
    return message.role == "assistant"


def _start(walk: Walk) -> int:
    """The place that was least likely, of those that are known; else the first."""
    known = [(share, at) for at in range(len(walk.trace.tokens)) if (share := walk.share(at)) is not None]
    return min(known)[1] if known else 0


class PanePicker(TokenPicker):
    """The line in a pane: what the person does there is the walk's business."""

    def __init__(self, context: Context, pane: ChatPane) -> None:
        super().__init__()
        self.context = context
        self.display = False

    @on(TokenPicker.Said)
    def _obey(self, said: TokenPicker.Said) -> None:
        with self.context.program.complaining():
            self.context.part(Picking).obey(said)


def pick(context: Context) -> None:
    """Goes to the line of tokens, and opens it first; from within, closes it."""
    if _picker_of(context.workspace.pane).has_focus:
        context.part(Picking).leave()
    else:
        context.part(Picking).begin()


def _pick_message(context: Context, message: Message) -> None:
    context.part(Picking).begin(message.id)


PICKING = Feature(
    name="picking",
    title="Along the tokens of a reply",
    commands=(
        ScreenCommand("reply.pick", "Reply", "Tokens of the last reply: pick another one", pick, "alt+c"),
    ),
    message_commands=(
        MessageCommand(
            "Walk along its tokens, and go on with another one", _pick_message, _reply, at_rest=True
        ),
    ),
    part=Picking,
    in_pane=PanePicker,
    help=(
        HelpSection(
            "Along the tokens of a reply ({reply.pick}, or its menu)",
            (
                ("{tokens.left tokens.right}", "another token"),
                ("{tokens.far_left tokens.far_right}", "ten further"),
                ("Home End", "first, last"),
                ("{tokens.up tokens.down}", "what else was likely there"),
                ("Enter", "continue from there in a fork"),
            ),
        ),
    ),
    keyed=(("tokens", TokenPicker),),
    css="TokenPicker { height: 13; max-height: 60%; padding: 0 1; background: $surface; }",
)
