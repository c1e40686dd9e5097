"""The tokens of a reply: their positions, and the alternatives at each."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from engine.api.errors import EngineError
from engine.api.events import TokenLogprob
from engine.api.layout import TokenSpan
from engine.api.params import SamplingParams
from minichat.chats.model import Message
from minichat.session.conversation import Conversation
from minichat.session.divergence import MOST
from minichat.session.traces import Trace
from minichat.session.turns import prompt_of


class TokensUnknown(Exception):
    """The tokens of a reply are unknown. Holds the reason."""


@dataclass(eq=False)
class Walk:
    """Queries the engine for alternatives only where none were requested before."""

    chat: Conversation
    trace: Trace
    messages: tuple[Message, ...]  # of the chat up to the reply
    places: tuple[TokenSpan, ...]  # of each token, in the reply's text
    at: int = 0
    _probes: dict[int, asyncio.Task[None]] = field(default_factory=dict)  # in flight, by position

    @property
    def message(self) -> Message:
        return self.messages[-1]

    def place(self) -> tuple[int, int] | None:
        """The characters of the current token; None if they are not visible."""
        place = self.places[self.at] if self.at < len(self.places) else None
        return None if place is None or place.message < 0 else (place.start, place.end)

    def share(self, at: int) -> float | None:
        """The probability of a token; if it was not among the likeliest, the smallest known value."""
        entry = self.trace.logprobs.get(at)
        return None if entry is None else math.exp(entry.logprob)

    async def look(self, at: int) -> TokenLogprob:
        """The likeliest tokens at a position. If unknown, the engine samples one more token there.

        A canceled look still owns its request, and the next look at the position waits for the same one.
        """
        if at not in self.trace.logprobs:
            if at not in self._probes:
                self._probes[at] = probe = asyncio.create_task(self._probe(at), name="probe")
                probe.add_done_callback(partial(self._probed, at))
            await asyncio.shield(self._probes[at])
        return self.trace.logprobs[at]

    def _probed(self, at: int, probe: asyncio.Task[None]) -> None:
        """Let the next look try again. If this one was canceled, nothing waits for an engine's refusal."""
        del self._probes[at]
        error = None if probe.cancelled() else probe.exception()
        if error is not None and not isinstance(error, EngineError):
            raise error

    async def _probe(self, at: int) -> None:
        """Record the likeliest tokens before the task ends: a look may come before its callbacks."""
        services = self.chat.services
        params = SamplingParams(temperature=0.0, max_tokens=at + 1, logprobs=MOST, ignore_eos=True)
        prefix = self.trace.tokens[:at]
        key = self.chat.chat.key
        reply = await services.backend.submit(
            self.trace.prompt, params, reply_prefix=prefix, chat=key, adapter=self.trace.adapter
        )
        services.took(self.chat, reply.id, "probe")
        found = [one async for batch in reply.batches(_at_once) for delta in batch for one in delta.logprobs]
        if not found:
            raise EngineError("the engine returned no alternatives here")
        self.trace.logprobs[at] = _as_if_sampled(self.trace.tokens[at], found[0])

    async def spell(self, at: int) -> None:
        """Load the texts of the candidates, which a remote engine returns asynchronously."""
        await self.chat.services.backend.texts([token for token, _ in self.trace.logprobs[at].top])

    async def text(self, tokens: Sequence[int]) -> str:
        """The text of these tokens within the reply."""
        prompt, backend = self.trace.prompt, self.chat.services.backend
        after = (await backend.layout(prompt)).ids if isinstance(prompt, str) else ()
        return "".join(await backend.texts(tokens, after))


async def _at_once() -> None:
    """Do not wait for the screen to draw."""


def _as_if_sampled(token: int, drawn: TokenLogprob) -> TokenLogprob:
    """The same position as if this token had been sampled. Rank 0: not among the likeliest."""
    ids = [each for each, _ in drawn.top]
    rank = ids.index(token) + 1 if token in ids else 0
    return TokenLogprob(token, drawn.top[rank - 1][1], rank, drawn.top)


async def start_walk(chat: Conversation, message_id: int) -> Walk:
    """Start at the first token of a finished reply. Raises TokensUnknown."""
    backend = chat.services.backend
    index = next((at for at, each in enumerate(chat.chat.messages) if each.id == message_id), -1)
    if index < 0 or chat.chat.messages[index].role != "assistant":
        raise TokensUnknown("There is no reply to step through")
    if chat.streaming and index == len(chat.chat.messages) - 1:
        raise TokensUnknown("The reply is still running. Stop it first")
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
    """Tokenize a reply again if the engine no longer has it."""
    backend, reply = chat.services.backend, messages[-1]
    if reply.reasoning or not reply.text:
        if not reply.reasoning and reply.stats and not reply.stats.tokens:
            raise TokensUnknown("This reply has no tokens" + ("" if reply.refused else ". Regenerate it"))
        raise TokensUnknown("The tokens of this reply are no longer available. Regenerate it")
    so_far = replace(chat.chat, messages=list(messages))
    left_out = reply.stats.left_out if reply.stats else 0
    prompt, parts = prompt_of(so_far, chat.services.store, template=backend.has_template, left_out=left_out)
    before = await backend.layout(prompt)
    if isinstance(prompt, str):
        layout = await backend.layout(prompt + reply.text)
        begin, mine = len(prompt), 0
    else:
        layout = await backend.layout([*prompt, {"role": "assistant", "content": reply.text}])
        begin, mine = 0, len(prompt)
    own = [at for at, place in enumerate(layout.places) if place.message == mine and place.start >= begin]
    if not own:
        raise TokensUnknown("This model cannot map the reply's text to its tokens")
    places = [layout.places[at] for at in own]
    spans = [TokenSpan(reply.id, place.start - begin, place.end - begin) for place in places]
    tokens = [layout.ids[at] for at in own]
    end = layout.ids[own[-1] + 1 : own[-1] + 2]
    if reply.stats and reply.stats.tokens == len(tokens) + len(end):  # it counts the token that ended it
        tokens, spans = [*tokens, *end], [*spans, *(TokenSpan(-1) for _ in end)]
    label = reply.stats.strategy if reply.stats else ""
    adapter = label.rpartition(" adapter ")[2] if " adapter " in label else ""
    shown = len(reply.text)
    trace = Trace(-1, prompt, parts, len(before.ids), reply.id, tokens, shown=shown, adapter=adapter)
    return trace, tuple(spans)
