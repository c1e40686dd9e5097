"""The tokens of a request, and the messages their text belongs to."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from engine.api.errors import EngineError
from engine.api.events import Delta, TokenLogprob
from engine.api.layout import PromptLayout, TokenSpan
from minichat.clients.protocol import Backend, Prompt

NOWHERE = TokenSpan(-1)


class Known(NamedTuple):
    """The tokens of a request, prompt and reply, with their character ranges in stored messages."""

    ids: np.ndarray
    places: tuple[TokenSpan, ...]  # message -1: template token or unknown


NOTHING = Known(np.zeros(0, np.int64), ())


@dataclass(eq=False)
class Trace:
    """One request. Its token positions are computed only on demand."""

    request: int
    prompt: Prompt
    parts: tuple[tuple[int, int], ...]  # of the prompt: message id (-1: none) and length
    prompt_tokens: int
    reply: int  # id of the message being written
    tokens: list[int] = field(default_factory=list)  # of the reply, as received
    logprobs: dict[int, TokenLogprob] = field(default_factory=dict)  # by index of these tokens, if requested
    former: set[int] = field(default_factory=set)  # of `logprobs`, those from before a conversion
    begins: int = 0  # index in the raw text at which the answer begins, after the reasoning
    shown: int = 0  # characters of the answer
    adapter: str = ""  # that computes it
    _layout: PromptLayout | None = None
    _known: Known | None = None
    _known_for: tuple[int, int, int] = (0, 0, 0)

    def add(self, deltas: Sequence[Delta]) -> None:
        """Add tokens of the reply."""
        for delta in deltas:
            if len(delta.logprobs) == len(delta.tokens):  # otherwise logprobs were requested in mid-batch
                self.logprobs |= dict(enumerate(delta.logprobs, len(self.tokens)))
            self.tokens += delta.tokens

    async def learn(self, backend: Backend) -> Known:
        """All that is known now; empty if the engine cannot supply it."""
        state = (len(self.tokens), self.begins, self.shown)
        if self._known is None or self._known_for != state:
            try:
                self._known = await self._learn(backend, state[0])
            except EngineError:  # the engine is dead, or its tokenizer has no offsets
                return NOTHING
            self._known_for = state
        return self._known

    async def _learn(self, backend: Backend, count: int) -> Known:
        if self._layout is None:
            self._layout = await backend.layout(self.prompt)
        layout, tokens = self._layout, self.tokens[:count]
        if len(layout.ids) != self.prompt_tokens:  # the template may contain the current time
            return NOTHING
        texts = await backend.texts(tokens, layout.ids if isinstance(self.prompt, str) else ())
        read = self._of_text(layout) if isinstance(self.prompt, str) else self._of_messages(layout)
        return Known(np.array([*layout.ids, *tokens], np.int64), (*read, *self._of_reply(texts)))

    def _of_messages(self, layout: PromptLayout) -> list[TokenSpan]:
        ids = [id for id, _ in self.parts]
        return [NOWHERE if n < 0 or ids[n] < 0 else TokenSpan(ids[n], *span) for n, *span in layout.places]

    def _of_text(self, layout: PromptLayout) -> list[TokenSpan]:
        """Positions in a prompt that is the messages' texts, concatenated."""
        places, part, begin = [], 0, 0
        for place in layout.places:
            while part < len(self.parts) and place.start >= begin + self.parts[part][1]:
                begin += self.parts[part][1]
                part += 1
            if place.message < 0 or part == len(self.parts):
                places.append(NOWHERE)
            else:
                places.append(TokenSpan(self.parts[part][0], place.start - begin, place.end - begin))
        return places

    def _of_reply(self, texts: list[str]) -> list[TokenSpan]:
        places, start = [], -self.begins
        for each in texts:
            end = start + len(each)
            low, high = max(start, 0), min(end, self.shown)
            places.append(TokenSpan(self.reply, low, high) if low < high else NOWHERE)
            start = end
        return places
