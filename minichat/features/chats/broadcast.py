"""Send a message to all visible chats; each pane marks where its reply first diverges from the others."""

from collections.abc import Sequence

from textual.content import Content

from minichat.features.feature import Context, Feature, ScreenCommand
from minichat.session.conversation import Conversation
from minichat.session.divergence import MOST, Comparison, Divergence
from minichat.shell.background import begin
from minichat.ui.layout import ROOM, SEVERAL
from minichat.ui.likely import visible

_WORD = 16  # maximum width of a token, in cells


def toggle(context: Context) -> None:
    workspace = context.workspace
    if not workspace.sends_to_all and len(workspace.shown) < 2:
        context.app.notify(f"Only one pane is open: {_why_one(context)}", severity="warning")
        return
    workspace.sends_to_all = not workspace.sends_to_all
    workspace.label()
    if not workspace.sends_to_all:
        context.app.notify("Messages go to this chat only")


def _why_one(context: Context) -> str:
    """Why only one chat is visible."""
    if (width := context.workspace.size.width) < SEVERAL:
        return f"several chats need {SEVERAL} columns, this terminal has {width}"
    if len(context.chats) == 1:
        return f"{context.keys.name('chat.new')} opens another chat"
    if not context.workspace.side_by_side:
        return f"{context.keys.name('view.panes')} shows several chats"
    return ROOM


class Divergences:
    """Compares the replies to a broadcast as they arrive."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._replies: dict[Conversation, int] = {}  # those that are compared
        context.signals.broadcast.connect(self.compare)
        context.signals.changed.connect(self._forget_if_replaced)
        context.signals.chat_changed.connect(self._forget_if_closed)

    def compare(self, conversations: Sequence[Conversation]) -> None:
        """Compare the replies that these chats have just begun."""
        self._replies = {each: each.messages[-1].id for each in conversations}
        comparison = Comparison(tuple(conversations), self._show)
        for each in conversations:
            each.compare(comparison)

    def _forget_if_replaced(self, changed: Conversation) -> None:
        """Say nothing more about replies of which one was regenerated, or its question edited."""
        reply = self._replies.get(changed)
        if reply is None or any(message.id == reply for message in changed.messages):
            return
        self._forget()

    def _forget_if_closed(self) -> None:
        """Say nothing more about a chat that was closed or deleted: another one may get its letter."""
        if not self._replies.keys() <= set(self._context.chats):
            self._forget()

    def _forget(self) -> None:
        for pane in self._context.workspace.panes:
            if pane.conversation in self._replies:
                pane.show_divergence(None)
                pane.transcript.highlight({}, "parted")
        self._replies = {}

    def _show(self, comparison: Comparison[Conversation], chat: Conversation) -> None:
        if chat not in self._replies:
            return
        workspace, backend = self._context.workspace, self._context.program.backend
        pane = next((each for each in workspace.panes if each.conversation is chat), None)
        trace = next(reversed(chat.traces.values()), None)
        if pane is None or trace is None:
            return
        divergence = comparison.divergence(chat)
        pane.show_divergence(self._sentence(divergence))
        replies = self._replies

        async def mark() -> None:
            known = await trace.learn(backend)
            place = trace.prompt_tokens + divergence.at
            if replies is self._replies and place < len(known.places) and known.places[place].message >= 0:
                message, start, end = known.places[place]
                pane.transcript.highlight({message: [(start, end)]}, "parted")

        begin(self._context.app, mark)

    def _sentence(self, divergence: Divergence[Conversation]) -> Content:
        """`Replies diverge at token 12: "the" 41.0%, B "a" 33.0% here`."""
        tokens = [each.token for each in divergence.others]
        known = [token for token in (divergence.token, *tokens) if token is not None]
        words = self._context.program.backend.words(known)
        texts = iter(visible(word, _WORD).rstrip() for word in words)
        parts: list[tuple[str, str]] = [(f" Replies diverge at token {divergence.at + 1}: ", "$text-muted")]
        if divergence.token is None:
            parts.append(("ends", "bold"))
        else:
            own = "" if divergence.share is None else f" {divergence.share:.1%}"
            parts.append((f'"{next(texts)}"{own}', "bold $text-accent"))
        for each in divergence.others:
            text = "ends" if each.token is None else f'"{next(texts)}"'
            rare = f"not in the top {MOST}" if each.token is not None and divergence.share is not None else ""
            share = f"{each.share:.1%} here" if each.share is not None else rare
            parts.append((f", {each.who.chat.letter.upper()} {text} {share}".rstrip(), "$text"))
        return Content.assemble(*parts)


BROADCAST = Feature(
    name="broadcast",
    title="Broadcast",
    commands=(
        ScreenCommand("reply.broadcast", "Reply", "Toggle sending to all open panes", toggle, "alt+a"),
    ),
    part=Divergences,
)
