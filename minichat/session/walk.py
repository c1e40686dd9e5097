"""Along the tokens of a reply: which they are, where they stand, and what else was likely at each."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from engine.api.errors import EngineError
from engine.api.events import TokenLogprob
from engine.api.layout import TokenSpan
from engine.api.params import SamplingParams
from minichat.chats.model import Message
from minichat.session.conversation import Conversation
from minichat.session.parting import MOST
from minichat.session.traces import Trace
from minichat.session.turns import prompt_of


class NoWay(Exception):
    """The tokens of a reply are not known, and why."""


@dataclass(eq=False)
class Walk:
    """Costs the engine nothing until somebody wants to know what was likely where nobody had asked."""

    chat: Conversation
    trace: Trace
    messages: tuple[Message, ...]  # of the chat up to the reply
    places: tuple[TokenSpan, ...]  # of each token, in the reply's text
    at: int = 0

    @property
    def message(self) -> Message:
        return self.messages[-1]

    def place(self) -> tuple[int, int] | None:
        """The characters of the token where it is; none where they are not seen."""
        place = self.places[self.at] if self.at < len(self.places) else None
        return None if place is None or place.message < 0 else (place.start, place.end)

    def share(self, at: int) -> float | None:
        """How likely the token there was; below all that are known where it is not among them."""
        rivals = self.trace.rivals.get(at)
        return None if rivals is None else math.exp(rivals.logprob)

    async def look(self, at: int) -> TokenLogprob:
        """The likeliest tokens at a place. The engine draws one more there, where nobody had asked."""
        if at not in self.trace.rivals:
            params = SamplingParams(temperature=0.0, max_tokens=at + 1, logprobs=MOST, ignore_eos=True)
            said = self.trace.tokens[:at]
            reply = await self.chat.desk.backend.submit(self.trace.prompt, params, said=said)
            self.chat.desk.took(self.chat, reply.id)
            found = [
                one async for batch in reply.batches(_at_once) for delta in batch for one in delta.logprobs
            ]
            if not found:
                raise EngineError("the engine did not say what is likely here")
            self.trace.rivals[at] = _as_if_drawn(self.trace.tokens[at], found[0])
        return self.trace.rivals[at]

    async def spell(self, at: int) -> None:
        """Has the candidates' texts at hand, which an engine elsewhere tells when it is asked."""
        await self.chat.desk.backend.texts([token for token, _ in self.trace.rivals[at].top])

    async def text(self, tokens: Sequence[int]) -> str:
        """What they are as the reply's text."""
        prompt, backend = self.trace.prompt, self.chat.desk.backend
        after = (await backend.layout(prompt)).ids if isinstance(prompt, str) else ()
        return "".join(await backend.texts(tokens, after))


async def _at_once() -> None:
    """Nothing is drawn in between."""


def _as_if_drawn(token: int, drawn: TokenLogprob) -> TokenLogprob:
    """The same place, if this token had been drawn there. Rank 0: it is none of the likeliest."""
    ids = [each for each, _ in drawn.top]
    rank = ids.index(token) + 1 if token in ids else 0
    return TokenLogprob(token, drawn.top[rank - 1][1], rank, drawn.top)


async def walk_along(chat: Conversation, message_id: int) -> Walk:
    """From the first token of a finished reply on. Raises NoWay."""
    backend = chat.desk.backend
    index = next((at for at, each in enumerate(chat.chat.messages) if each.id == message_id), -1)
    if index < 0 or chat.chat.messages[index].role != "assistant":
        raise NoWay("there is no reply whose tokens could be looked at")
    if chat.streaming and index == len(chat.chat.messages) - 1:
        raise NoWay("the reply still runs: stop it first")
    messages = tuple(chat.chat.messages[: index + 1])
    trace = next((each for each in reversed(chat.traces.values()) if each.reply == message_id), None)
    if trace is None or not trace.tokens:
        trace, places = await _read_again(chat, messages)
    else:
        known = await trace.learn(backend)
        places = known.places[trace.prompt_tokens :]
    return Walk(chat, trace, messages, places)


async def _read_again(
    chat: Conversation, messages: tuple[Message, ...]
) -> tuple[Trace, tuple[TokenSpan, ...]]:
    """The tokens that the text of a reply has, of which the engine knows nothing any more."""
    backend, reply = chat.desk.backend, messages[-1]
    if reply.reasoning or not reply.text:
        if not reply.reasoning and reply.stats and not reply.stats.tokens:
            raise NoWay("this reply ended before its first token: regenerate it")
        raise NoWay("the tokens of this reply are not known any more: regenerate it")
    so_far = replace(chat.chat, messages=list(messages))
    left_out = reply.stats.left_out if reply.stats else 0
    prompt, parts = prompt_of(so_far, chat.desk.store, template=backend.has_template, left_out=left_out)
    before = await backend.layout(prompt)
    if isinstance(prompt, str):
        layout = await backend.layout(prompt + reply.text)
        begin, mine = len(prompt), 0
    else:
        layout = await backend.layout([*prompt, {"role": "assistant", "content": reply.text}])
        begin, mine = 0, len(prompt)
    found = [
        (token, TokenSpan(reply.id, place.start - begin, place.end - begin))
        for token, place in zip(layout.ids, layout.places, strict=True)
        if place.message == mine and place.start >= begin
    ]
    if not found:
        raise NoWay("where this reply's text lies among its tokens cannot be said with this model")
    tokens = [token for token, _ in found]
    trace = Trace(-1, prompt, parts, len(before.ids), reply.id, tokens, shown=len(reply.text))
    return trace, tuple(place for _, place in found)
