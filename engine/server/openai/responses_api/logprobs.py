"""Which tokens of a reply its messages consist of. Reasoning and calls have no log-probabilities here."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from engine.api.events import Delta, TokenLogprob
from engine.server.token_logprobs import Pieces, token_records
from engine.server.tool_calls.events import ContentPiece, Event


class MessageLogprobs:
    """Collects the tokens of a message's text, whose text may be held back for some deltas."""

    def __init__(self, pieces: Pieces, shown: Pieces) -> None:
        """`pieces`: the bytes of tokens. `shown`: their names in the records."""
        self._pieces, self._shown = pieces, shown
        self._held: list[TokenLogprob] = []
        self._inside = False  # a message's text

    def of(self, delta: Delta, events: Sequence[Event], *, thought: bool) -> list[dict[str, Any]]:
        """Return the records of the content in `events`, which the delta's text turned out to be.

        `thought`: whether its text may be reasoning.
        """
        entries, self._held = [*self._held, *delta.logprobs], []
        text = "".join(event.text for event in events if isinstance(event, ContentPiece))
        if not text:
            if thought or events:
                self._inside = False
            else:
                self._held = entries
            return []
        if not self._inside:
            entries = self._around(entries, text, last=True)
        self._inside = isinstance(events[-1], ContentPiece)
        if not self._inside:
            entries = self._around(entries, text, last=False)
        return token_records(entries, self._shown)

    def rest(self) -> list[dict[str, Any]]:
        """Return the records of what was held back, such as the token that ends the reply."""
        entries, self._held = self._held, []
        return token_records(entries, self._shown)

    def _around(self, entries: list[TokenLogprob], text: str, *, last: bool) -> list[TokenLogprob]:
        """Return those from the text on (`last`), or up to its end: many tokens may have come together."""
        pieces, wanted = self._pieces([entry.token for entry in entries]), text.encode()
        whole = b"".join(pieces)
        ends = [*accumulate(map(len, pieces))]
        if last:
            start = max(whole.rfind(wanted), 0)
            return [entry for entry, end in zip(entries, ends, strict=True) if end > start]
        end = whole.find(wanted) + len(wanted)
        starts = [end - len(piece) for end, piece in zip(ends, pieces, strict=True)]
        return [entry for entry, start in zip(entries, starts, strict=True) if start < end]
