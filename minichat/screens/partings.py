"""A broadcast: where its replies first part is marked in each pane, with what was likely there."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from textual.content import Content

from minichat.conversation import Conversation
from minichat.parting import MOST, Comparison, Parting
from minichat.widgets.likely import visible

if TYPE_CHECKING:
    from minichat.screens.main import MainScreen

_WORD = 16  # cells of a token


def compare(screen: MainScreen, conversations: Sequence[Conversation]) -> None:
    """The next replies of these chats are looked at side by side."""
    comparison = Comparison(tuple(conversations), partial(_tell, screen))
    for each in conversations:
        each.compare(comparison)


def _tell(screen: MainScreen, comparison: Comparison[Conversation], chat: Conversation) -> None:
    pane = next((each for each in screen.panes if each.conversation is chat), None)
    trace = next(reversed(chat.traces.values()), None)
    if pane is None or trace is None:
        return
    parting = comparison.parting(chat)
    pane.say_parting(_sentence(screen, parting))

    async def mark() -> None:
        known = await trace.learn(screen.program.backend)
        place = trace.prompt_tokens + parting.at
        if place < len(known.places) and known.places[place].message >= 0:
            message, start, end = known.places[place]
            pane.transcript.light({message: [(start, end)]}, "parted")

    screen.run_worker(mark())


def _sentence(screen: MainScreen, parting: Parting[Conversation]) -> Content:
    """`parts at token 12: " the" 41 %   B " a" 33 %`."""
    tokens = [each.token for each in parting.others]
    words = screen.program.backend.words([token for token in (parting.token, *tokens) if token is not None])
    spoken = iter(visible(word, _WORD).rstrip() for word in words)
    parts: list[tuple[str, str]] = [(f" parts at token {parting.at + 1}: ", "$text-muted")]
    if parting.token is None:
        parts.append(("ends", "bold"))
    else:
        parts.append((f"{next(spoken)} {parting.share:.1%}", "bold $text-accent"))
    for each in parting.others:
        said = "ends" if each.token is None else next(spoken)
        rare = f"not in the top {MOST}" if each.token is not None else ""
        share = f"{each.share:.1%} here" if each.share is not None else rare
        parts.append((f"   {each.who.chat.letter.upper()} {said} {share}".rstrip(), "$text"))
    return Content.assemble(*parts)
