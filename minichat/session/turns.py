"""What the model reads: all messages of a chat before the reply, or the newer part of them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from engine.api.errors import ContextBound, RequestTooLong
from engine.api.params import SamplingParams
from minichat.chats.model import TOO_LONG, Chat, Message
from minichat.chats.store import Store
from minichat.clients.protocol import Prompt, Reply
from minichat.plural import plural
from minichat.session.services import ChatServices

_REPLY = 8  # a reply needs at most this fraction of the context
_SOME = 256  # tokens that a reply needs at least, if this is no more than half of that fraction
Parts = tuple[tuple[int, int], ...]  # of the prompt: message id (-1: none) and length


def prompt_of(chat: Chat, store: Store, *, template: bool, left_out: int = 0) -> tuple[Prompt, Parts]:
    """The prompt and its parts. Without a template it is the concatenated texts."""
    history = _history(chat, store)[left_out:]
    if not template:
        return "".join(each.whole for each in history), tuple((each.id, len(each.whole)) for each in history)
    opening = [{"role": "system", "content": chat.system}] if chat.system else []
    history = [message for message in history if message.text]
    turns = [{"role": message.role, "content": message.whole} for message in history]
    own = [(-1, 0) for _ in opening]
    return [*opening, *turns], (*own, *((each.id, len(each.whole)) for each in history))


class Reading:
    """How far back the model reads: from the chat's start until it, or the next reply, outgrows the context.

    Then the older half is left out, and so on. So the start of the prompt stays the same for many turns, and
    stays in the prefix cache.
    """

    def __init__(self, chat: Chat, services: ChatServices[Any]) -> None:
        self._chat, self._services = chat, services
        self.left_out = 0  # messages at the start
        self.context = 0  # tokens of the model's context; 0: unknown
        self.bound: ContextBound = "model"  # what limits them
        self.full = False  # the last reply was cut off because the context is full

    def reset(self) -> bool:
        """Reset for a new engine, which may hold more. Return whether a refused message may be retried."""
        self.left_out, messages = 0, self._chat.messages
        long = any(each.refused == TOO_LONG for each in messages)
        messages[:] = [replace(each, refused="") if each.refused == TOO_LONG else each for each in messages]
        return long

    def prompt(self) -> tuple[Prompt, Parts]:
        template = self._services.backend.has_template
        return prompt_of(self._chat, self._services.store, template=template, left_out=self.left_out)

    async def submit(self, params: SamplingParams, tag: str, adapter: str) -> tuple[Reply, Prompt, Parts]:
        """Submit the request and return the reply and its prompt. Refuse a message that is too long alone."""
        history = _history(self._chat, self._services.store)
        if self.left_out >= len(history):  # messages were deleted
            self.left_out = 0
        before, starts = self.left_out, _starts(history, self.context)
        for start in starts:
            if start > self.left_out and params.max_tokens is None and await self._tight(history):
                self.left_out = start
        if self.full or (params.max_tokens is None and await self._tight(history)):
            self.left_out, self.full = _later(history, self.left_out) or self.left_out, False
        while True:
            prompt, parts = self.prompt()
            try:
                reply = await self._services.backend.submit(
                    prompt,
                    params,
                    tag=tag,
                    deadline=self._services.deadline,
                    chat=self._chat.key,
                    adapter=adapter,
                )
            except RequestTooLong:
                known = [each for each in starts if each > self.left_out]
                if (later := known[0] if known else _later(history, self.left_out)) is None:
                    self.left_out = before
                    raise
                self.left_out = later
            else:
                if self.left_out > before:
                    self._services.report(
                        f"{self._chat.letter.upper()} {_with_reply(params)} is longer than "
                        f"{'the KV cache' if self.bound == 'blocks' else 'the context'}: "
                        f"it no longer sees the first {plural(self.left_out, 'message')}"
                    )
                return reply, prompt, parts

    async def _tight(self, history: Sequence[Message]) -> bool:
        """Whether too little is left for a reply."""
        last = next((each.stats for each in reversed(history) if each.stats is not None), None)
        if last is None or not self.context:
            return False
        most = self.context - _room(last.tokens, self.context)
        at_most = last.prompt_tokens + last.tokens + _at_most(history[-1])
        if last.left_out == self.left_out and at_most <= most:
            return False
        return await self._services.backend.count(self.prompt()[0]) > most


def _history(chat: Chat, store: Store) -> list[Message]:
    newest = chat.messages
    earlier = store.older(chat.id, newest[0].id, chat.earlier) if chat.earlier else []
    return [*earlier, *newest[:-1]]


def _starts(history: Sequence[Message], context: int) -> list[int]:
    """Where the prompt may begin. The last reply's began at the last: its blocks may be kept, after a start
    and for a fork, too. It began at those before until a context smaller than this one was outgrown.
    """
    replies = [(at, each.stats) for at, each in enumerate(history) if each.stats is not None]
    starts = [replies[-1][1].left_out if replies else 0]
    if starts[0] >= len(history):  # messages were deleted
        return [0]
    for at, stats in reversed(replies):
        if stats.left_out < starts[0]:
            room = _room(stats.tokens, context) + _at_most(history[at + 1])
            if stats.prompt_tokens + stats.tokens + room > context:
                break
            starts.insert(0, stats.left_out)
    return starts


def _room(took: int, context: int) -> int:
    """Tokens to leave for a reply after one that took so many."""
    return max(min(took, context // _REPLY), min(_SOME, context // _REPLY // 2))


def _with_reply(params: SamplingParams) -> str:
    """What the request needs beside the chat's messages."""
    if (most := params.max_tokens) is None:
        return "with room for a reply"
    return f"with {plural(most, 'token')} for its reply (max tokens)"


def _at_most(message: Message) -> int:
    """Its tokens at most: one is at least one byte."""
    return len(message.whole.encode(errors="replace"))


def _later(history: Sequence[Message], start: int) -> int | None:
    """The start of the newer half, at a user message; None if there is only one."""
    middle = (start + len(history) + 1) // 2
    return next((at for at in range(middle, len(history)) if history[at].role == "user"), None)
