"""Replies that continue from the tokens of another one and share its blocks."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from engine.api.errors import UnknownRequest
from engine.api.params import SamplingParams
from engine.api.request import Finish
from minichat.chats.model import Message
from minichat.clients.protocol import Backend, Reply
from minichat.session.resuming import tag_of
from minichat.session.run import HasEnded
from minichat.session.traces import Trace

if TYPE_CHECKING:
    from minichat.session.conversation import Conversation
    from minichat.session.run import RunningReply
    from minichat.session.walk import Walk

_LOOK_EVERY = 0.01  # seconds


def join(child: "Conversation", other: "Conversation") -> None:
    """Fork a running reply: the chat's copy continues from the current position of the other's reply."""
    source, theirs = other.run, tuple(other.chat.messages)
    if source is None:
        return

    async def begin(run: "RunningReply", params: SamplingParams) -> Reply:
        if not await source.has_begun():
            raise HasEnded(source.finish or Finish.FAILED, other.chat.messages[-1].error)
        run.adapter = source.adapter  # the chat may have another one by now
        run.stays = bool(child.services.backend.elsewhere)
        chat, tag = child.chat.key, tag_of(run.message)
        try:
            reply, count, before = await branch(child.services.backend, source, params, tag, chat)
        except UnknownRequest:
            await _end(source)
            child.set_prefix(run, source.tokens, "".join(text for _, text in source.pieces))
            raise HasEnded(source.finish or Finish.FAILED, other.chat.messages[-1].error) from None
        if source.trace is not None:
            child.trace(run, copied_trace(source.trace, reply.id, count, theirs, child.chat.messages))
        child.set_prefix(run, count, before)
        return reply

    child.go_on(begin)


def go_on_with(child: "Conversation", walk: "Walk", token: int) -> None:
    """The chat's copy continues with another token at the walk's position in its last reply."""
    trace, at, theirs = walk.trace, walk.at, walk.messages
    prefix = (*trace.tokens[:at], token)

    async def begin(run: "RunningReply", params: SamplingParams) -> Reply:
        backend = child.services.backend
        child.set_prefix(run, len(prefix), await walk.text(prefix))
        run.adapter = trace.adapter
        run.stays = bool(backend.elsewhere)
        reply = await backend.submit(
            trace.prompt,
            params,
            tag=tag_of(run.message),
            reply_prefix=prefix,
            chat=child.chat.key,
            adapter=trace.adapter,
        )
        copy = copied_trace(trace, reply.id, at, theirs, child.chat.messages)
        copy.tokens.append(token)
        copy.logprobs = {place: each for place, each in trace.logprobs.items() if place < at}
        child.trace(run, copy)
        return reply

    child.go_on(begin)


def take(child: "Conversation", sample: Message) -> None:
    """A sample takes the place of the chat's last reply, which becomes an earlier version."""
    last = child.newest
    [reply] = child.services.store.add_turn(child.chat.id, last, (replace(sample, id=0),), instead_of=last)
    child.versions.begin(last)
    child.chat.messages.append(reply)
    child.reading.full = False
    child.show_messages()


async def branch(
    backend: Backend, source: "RunningReply", params: SamplingParams, tag: str, chat: str
) -> tuple[Reply, int, str]:
    """Fork the reply. Return it with the number and text of the tokens before it.

    The engine is ahead of the displayed text, so wait for the missing tokens.
    """
    assert source.reply is not None and source.trace is not None
    reply = await backend.fork(source.reply.id, params, tag=tag, chat=chat)
    count = reply.prompt_tokens - source.trace.prompt_tokens
    while len(source.trace.tokens) < count and source.task is not None and not source.task.done():
        await asyncio.sleep(_LOOK_EVERY)
    return reply, count, await _text_before(backend, source, count)


async def _end(source: "RunningReply") -> None:
    """Wait until the screen has received all of a reply that the engine has ended."""
    if source.task is not None:
        await asyncio.wait({source.task})


async def _text_before(backend: Backend, source: "RunningReply", count: int) -> str:
    text, tokens = "", 0
    for size, piece in source.pieces:
        if tokens >= count:
            break
        text, tokens = text + piece, tokens + size
    if tokens == count or source.trace is None:
        return text
    # Several tokens arrived as one text piece; the tokenizer finds the end of the last one.
    prompt = source.trace.prompt
    after = (await backend.layout(prompt)).ids if isinstance(prompt, str) else ()
    texts = await backend.texts(source.trace.tokens[:count], after)
    return text[: sum(map(len, texts))]


def copied_trace(
    trace: Trace, request: int, count: int, theirs: Sequence[Message], own: Sequence[Message]
) -> Trace:
    """The other request's trace up to the fork, mapped to this chat's copied messages."""
    copies = {old.id: new.id for old, new in zip(reversed(theirs), reversed(own), strict=False)}
    parts = tuple((copies.get(id, -1), length) for id, length in trace.parts)
    tokens = trace.tokens[:count]
    return Trace(request, trace.prompt, parts, trace.prompt_tokens, own[-1].id, tokens, adapter=trace.adapter)
