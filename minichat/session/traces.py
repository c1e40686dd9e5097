"""Which tokens a request has read and written, and whose text they are."""

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
    """The tokens of one request, prompt and reply, each with its characters of a message of the store."""

    ids: np.ndarray
    places: tuple[TokenSpan, ...]  # message -1: the template's, or not known


NOTHING = Known(np.zeros(0, np.int64), ())


@dataclass(eq=False)
class Trace:
    """One request. It costs nothing until somebody wants to know."""

    request: int
    prompt: Prompt
    parts: tuple[tuple[int, int], ...]  # of the prompt: the id of each message, -1 for none, and its length
    prompt_tokens: int
    reply: int  # the id of the message that is written
    tokens: list[int] = field(default_factory=list)  # of the reply, as they came
    rivals: dict[int, TokenLogprob] = field(default_factory=dict)  # by place among these, where it was asked
    begins: int = 0  # character of the reply's raw text where the answer begins: reasoning comes before
    shown: int = 0  # characters of the answer
    _layout: PromptLayout | None = None
    _known: Known | None = None
    _known_for: tuple[int, int, int] = (0, 0, 0)

    def heard(self, deltas: Sequence[Delta]) -> None:
        """More of the reply."""
        for delta in deltas:
            if len(delta.logprobs) == len(delta.tokens):  # else it was asked for while they were gathered
                self.rivals |= dict(enumerate(delta.logprobs, len(self.tokens)))
            self.tokens += delta.tokens

    async def learn(self, backend: Backend) -> Known:
        """All that is known now; nothing where the engine cannot say it."""
        state = (len(self.tokens), self.begins, self.shown)
        if self._known is None or self._known_for != state:
            try:
                self._known = await self._learn(backend, state[0])
            except EngineError:  # a dead engine, or a tokenizer that has no offsets: then nobody knows
                return NOTHING
            self._known_for = state
        return self._known

    async def _learn(self, backend: Backend, count: int) -> Known:
        if self._layout is None:
            self._layout = await backend.layout(self.prompt)
        layout, tokens = self._layout, self.tokens[:count]
        if len(layout.ids) != self.prompt_tokens:  # its template tells the time, perhaps
            return NOTHING
        texts = await backend.texts(tokens, layout.ids if isinstance(self.prompt, str) else ())
        read = self._of_text(layout) if isinstance(self.prompt, str) else self._of_messages(layout)
        return Known(np.array([*layout.ids, *tokens], np.int64), (*read, *self._of_reply(texts)))

    def _of_messages(self, layout: PromptLayout) -> list[TokenSpan]:
        ids = [id for id, _ in self.parts]
        return [NOWHERE if n < 0 or ids[n] < 0 else TokenSpan(ids[n], *span) for n, *span in layout.places]

    def _of_text(self, layout: PromptLayout) -> list[TokenSpan]:
        """The prompt is the messages' texts, one after the other."""
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
