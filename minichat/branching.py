"""A fork of a reply that still runs: the engine goes on with it twice, on the same blocks."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine.params import SamplingParams
from minichat.backends.protocol import Backend, Reply
from minichat.chats.model import Message
from minichat.traces import Trace

if TYPE_CHECKING:
    from minichat.run import Run

_LOOK_EVERY = 0.01  # seconds


async def branch(backend: Backend, source: "Run", params: SamplingParams) -> tuple[Reply, int, str]:
    """The new reply, and what of the other one comes before it: how many tokens, and their text.

    The engine is ahead of what has been drawn: the rest of it is waited for.
    """
    assert source.reply is not None and source.trace is not None
    reply = await backend.fork(source.reply.id, params)
    count = reply.prompt_tokens - source.reply.prompt_tokens
    while len(source.trace.tokens) < count and source.task is not None and not source.task.done():
        await asyncio.sleep(_LOOK_EVERY)
    return reply, count, await _text_before(backend, source, count)


async def _text_before(backend: Backend, source: "Run", count: int) -> str:
    text, tokens = "", 0
    for size, piece in source.pieces:
        if tokens >= count:
            break
        text, tokens = text + piece, tokens + size
    if tokens == count or source.trace is None:
        return text
    # Several tokens came as one piece: the tokenizer knows where the last one of ours ended.
    prompt = source.trace.prompt
    after = (await backend.layout(prompt)).ids if isinstance(prompt, str) else ()
    ends = await backend.text_ends(source.trace.tokens[:count], after)
    return text[: ends[-1]] if ends else ""


def retraced(
    trace: Trace, request: int, count: int, theirs: Sequence[Message], own: Sequence[Message]
) -> Trace:
    """What the other request has read and written up to the fork, as this chat's: its messages are copies."""
    copies = {old.id: new.id for old, new in zip(reversed(theirs), reversed(own), strict=False)}
    parts = tuple((copies.get(id, -1), length) for id, length in trace.parts)
    return Trace(request, trace.prompt, parts, trace.prompt_tokens, own[-1].id, trace.tokens[:count])
