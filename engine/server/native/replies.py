"""Replies that survive a disconnect: they run without a reader for a while, and can be read again."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from engine.api.errors import UnknownRequest
from engine.api.events import Delta
from engine.api.params import SamplingParams
from engine.host.prompts import Prompt
from engine.server.config import ServerConfig
from engine.server.generation import Generation
from engine.server.urgency import Urgency
from engine.server.waiters import Waiters

NewRun = Callable[..., Generation]


@dataclass(eq=False)
class KeptReply:
    """One reply with all its deltas."""

    id: str
    owner: bytes
    run: Generation
    prompt: str | list[int]  # the text or tokens its text continues from; empty for messages
    params: SamplingParams  # the present ones
    grace: float | None  # seconds without a reader until it is aborted; None: never
    tag: str = ""  # the client's name for it
    reply_prefix: Sequence[int] = ()  # tokens of the reply before its deltas
    parent: "KeptReply | None" = None  # the forked reply, until `reply_prefix` is complete
    begun_at: float = field(default_factory=monotonic)
    first_at: float | None = None
    ended_at: float | None = None
    read_to_end: bool = False  # a client has read it to the end
    deltas: list[Delta] = field(default_factory=list)
    readers: int = 0
    _waiters: Waiters = field(default_factory=Waiters)
    timer: asyncio.TimerHandle | None = None
    pump: "asyncio.Task[None] | None" = None

    @property
    def finished(self) -> bool:
        return bool(self.deltas) and self.deltas[-1].last

    @property
    def unread(self) -> bool:
        """Whether it is kept until a client has read it to the end."""
        return self.grace is None and not self.read_to_end

    @property
    def request(self) -> int:
        return self.run.requests[0]

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt, without `reply_prefix`."""
        if self.run.parent is None:
            return self.run.usage.prompt
        return (
            self.run.usage.prompt - len(self.reply_prefix)
            if self.parent is None
            else self.parent.prompt_tokens
        )

    def look_back(self) -> Sequence[int]:
        """Return `reply_prefix`. A fork takes it from its parent's deltas, some of which may arrive later."""
        if self.parent is not None:
            count = self.run.usage.prompt - self.parent.prompt_tokens
            tokens = [
                *self.parent.look_back(),
                *(token for each in self.parent.deltas if not each.choice for token in each.tokens),
            ]
            self.reply_prefix = tokens[:count]
            if len(tokens) >= count or self.parent.finished:
                self.parent = None
        return self.reply_prefix

    def add(self, deltas: list[Delta]) -> None:
        *older, newest = *self.deltas[-1:], *deltas
        self.deltas[-1:] = [*map(_without_tail, older), newest]  # only the newest tail is valid
        self.look_back()
        if self.first_at is None:
            self.first_at = monotonic()
        if self.finished:
            self.ended_at = monotonic()
        self._waiters.wake()

    async def after(self, count: int, timeout: float) -> list[Delta]:
        """Return the deltas after the first `count`. Wait up to `timeout` seconds if there are none."""
        if len(self.deltas) <= count and not self.finished:
            await self._waiters.wait(timeout)
        return self.deltas[count:]


class ReplyStore:
    """The kept replies by id. Each belongs to the key that created it."""

    def __init__(self, new_run: NewRun, config: ServerConfig) -> None:
        self._new_run, self._config = new_run, config
        self._kept: dict[str, KeptReply] = {}
        self._tagged: dict[tuple[bytes, str], asyncio.Task[KeptReply]] = {}

    async def begin(
        self,
        key: bytes,
        prompt: Prompt,
        params: SamplingParams,
        *,
        urgency: Urgency,
        grace: float | None,
        keep: bool,
        tag: str = "",
        reply_prefix: Sequence[int] = (),
        parent: KeptReply | None = None,
        adapter: str = "",
    ) -> KeptReply:
        """Start a reply, or return the one this key already started with the tag.

        So a client that lost the response can send the request again.
        """

        async def start() -> KeptReply:
            begun_at = monotonic()
            source = None if parent is None else parent.request
            more = {"reply_prefix": reply_prefix, "parent": source, "adapter": adapter}
            run = self._new_run(key, [prompt], params, urgency=urgency, **more)
            await run.start()
            timeout = None if keep else self._config.grace if grace is None else grace
            id = secrets.token_hex(8)
            run.prompts = ()  # free the messages, which may be megabytes
            reply = KeptReply(
                id, key, run, _plain(prompt), params, timeout, tag, reply_prefix, parent, begun_at=begun_at
            )
            reply.pump = asyncio.get_running_loop().create_task(self._pump(reply))
            self._kept[reply.id] = reply
            self._watch(reply)
            return reply

        return await (self._once((key, tag), start()) if tag else start())

    async def _once(self, name: tuple[bytes, str], start: Coroutine[None, None, KeptReply]) -> KeptReply:
        task = self._tagged.get(name)
        if task is not None:
            start.close()
        else:
            task = self._tagged[name] = asyncio.get_running_loop().create_task(start)
            task.add_done_callback(lambda done: self._untag(name) if _failed(done) else None)
        return await asyncio.shield(task)

    def _untag(self, name: tuple[bytes, str]) -> None:
        self._tagged.pop(name, None)

    def find(self, id: str, key: bytes) -> KeptReply:
        reply = self._kept.get(id)
        if reply is None or reply.owner != key:
            raise UnknownRequest(f"there is no reply {id[:40]!r}; it may have expired")
        return reply

    def of(self, key: bytes, tag: str = "") -> list[KeptReply]:
        """Return the replies of a key; with a tag, only the reply with that tag."""
        return [reply for reply in self._kept.values() if reply.owner == key and tag in ("", reply.tag)]

    async def read(self, reply: KeptReply, count: int) -> AsyncIterator[tuple[int, list[Delta]]]:
        """Yield the deltas after the first `count`, each time with the new count. Empty: a keep-alive."""
        reply.readers += 1
        self._watch(reply)
        try:
            while True:
                deltas = await reply.after(count, self._config.pulse)
                count += len(deltas)
                yield count, deltas
                if reply.finished and count >= len(reply.deltas):
                    reply.read_to_end = True
                    return
        finally:
            reply.readers -= 1
            self._watch(reply)

    def updated(self, request: int, changes: Mapping[str, Any]) -> None:
        """Note that the engine has changed a request's parameters. Forks start with the present ones."""
        for reply in self._kept.values():
            if reply.request == request:
                reply.params = reply.params.changed(**changes)

    def forget(self, reply: KeptReply) -> None:
        """Delete a reply, and abort it if it is running."""
        if reply.timer is not None:
            reply.timer.cancel()
        self._kept.pop(reply.id, None)
        self._untag((reply.owner, reply.tag))
        if not reply.finished:
            reply.run.engine.abort([reply.request])

    async def ended(self, within: float) -> None:
        """Wait until no reply is running, or for `within` seconds."""
        if running := {reply.pump for reply in self._kept.values() if reply.pump and not reply.pump.done()}:
            await asyncio.wait(running, timeout=within)

    def close(self) -> None:
        for reply in list(self._kept.values()):
            self.forget(reply)
            if reply.pump is not None:
                reply.pump.cancel()

    async def _pump(self, reply: KeptReply) -> None:
        try:
            async for batch in reply.run:
                for _, deltas in batch:
                    reply.add(deltas)
        finally:
            reply.run.close()
            self._watch(reply)
            self._make_room()

    def _make_room(self) -> None:
        """Delete the oldest finished replies beyond the limits."""
        ended = [each for each in self._kept.values() if each.finished and not each.readers]
        deltas = sum(len(each.deltas) for each in ended)
        for count, old in enumerate(ended):
            if len(ended) - count <= self._config.kept and deltas <= self._config.kept_deltas:
                return
            deltas -= len(old.deltas)
            self.forget(old)

    def _watch(self, reply: KeptReply) -> None:
        """Set the timer that deletes or aborts a reply without readers. Called when that state changes."""
        if reply.timer is not None:
            reply.timer.cancel()
            reply.timer = None
        if reply.readers or reply.id not in self._kept:
            return
        loop = asyncio.get_running_loop()
        if reply.finished and not reply.unread:
            reply.timer = loop.call_later(self._config.kept_seconds, self.forget, reply)
        elif reply.grace is not None:
            reply.timer = loop.call_later(reply.grace, reply.run.engine.abort, [reply.request])


def _plain(prompt: Prompt) -> str | list[int]:
    if isinstance(prompt, str):
        return prompt
    return [each for each in prompt if isinstance(each, int)] if isinstance(prompt, list) else []


def _without_tail(delta: Delta) -> Delta:
    return delta._replace(tail="") if delta.tail else delta


def _failed(task: "asyncio.Task[KeptReply]") -> bool:
    return task.cancelled() or task.exception() is not None
