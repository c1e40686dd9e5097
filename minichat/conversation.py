"""One chat as it lives: what is sent, the reply that is on its way, and what becomes of it."""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from engine.errors import EngineDead, EngineError, UnknownRequest
from engine.events import Delta, TokenLogprob
from engine.params import FIELDS, SamplingParams
from engine.request import Finish
from minichat.backends.protocol import Backend, Prompt, Reply
from minichat.chats.errors import StoreError
from minichat.chats.letters import colour_index
from minichat.chats.model import Chat, Message, ReplyStats, State, title_from
from minichat.chats.store import Store
from minichat.decoding import changed_from_default, strategy
from minichat.pacer import Pacer
from minichat.reasoning import ReplyText

log = logging.getLogger("minichat.app")

_FAREWELL = 1.0  # seconds that a reply may take to end
_SAVE_EVERY = 1.0  # seconds of streaming that a crash may cost
_LIKELY = 10  # tokens whose likelihood the decoding drawer shows
_THOUGHT_SHOWN = 160  # characters of reasoning that are seen as they come
_STATES: dict[Finish, State] = {
    Finish.STOP: "done",
    Finish.LENGTH: "done",
    Finish.ABORTED: "stopped",
    Finish.FAILED: "failed",
}


class View(Protocol):
    """Who draws a conversation."""

    def show_messages(self) -> None: ...

    def add_message(self, message: Message) -> None: ...

    def add_text(self, text: str, tail: str) -> None: ...

    def settle_message(self, message: Message) -> None: ...


@dataclass(slots=True)
class Run:
    """A reply on its way."""

    message: Message
    began: float
    parts: ReplyText = field(default_factory=ReplyText)
    reply: Reply | None = None
    first: float | None = None
    tokens: int = 0
    saved: float = 0.0
    stopping: bool = False
    task: asyncio.Task[None] | None = None

    def stats(self, now: float, params: SamplingParams) -> ReplyStats:
        return ReplyStats(
            tokens=self.tokens,
            seconds=now - self.began,
            ttft=(self.first or now) - self.began,
            prompt_tokens=self.reply.prompt_tokens if self.reply else 0,
            strategy=strategy(params),
        )


@dataclass(frozen=True, slots=True)
class Desk:
    """What all conversations share."""

    store: Store
    backend: Backend
    pacer: Pacer
    ready: asyncio.Event  # the engine is there, or never will be
    took: Callable[["Conversation", int], None]  # a request of the engine belongs to a conversation now
    changed: Callable[["Conversation"], None]  # it began, ended, or has another name
    complain: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic


class Conversation:
    """Everything a person does to one chat goes through here; the view only draws."""

    def __init__(self, chat: Chat, desk: Desk) -> None:
        self.chat, self.desk = chat, desk
        self.view: View | None = None
        self.run: Run | None = None
        self.editing: int | None = None  # the message that the next send replaces
        self.likely: TokenLogprob | None = None  # the newest token's rivals
        self.unread = False
        self.watching = False  # somebody looks at the likeliest tokens
        self._asked: set[asyncio.Task[None]] = set()

    @property
    def streaming(self) -> bool:
        return self.run is not None

    @property
    def colour(self) -> int:
        return colour_index(self.chat.letter)

    # What a person does

    def send(self, text: str) -> None:
        """A message of the person's, and the reply to it. While one is edited, it takes that one's place."""
        if self.streaming:
            return
        if self.editing is not None:
            self._cut(self.editing)
            self.editing = None
        if not self.chat.messages and not self.chat.earlier:
            self.rename(title_from(text))
        self._append(self.desk.store.append(self.chat.id, "user", text))
        self._answer()

    def retry(self, message_id: int | None = None) -> bool:
        """The newest reply, or the given one with all after it, is drawn again."""
        replies = [message for message in self.chat.messages if message.role == "assistant"]
        wanted = [message for message in replies if message_id in (None, message.id)]
        if self.streaming or not wanted:
            return False
        self._cut(wanted[-1].id)
        self._answer()
        return True

    def edit(self, message_id: int | None = None) -> str | None:
        """The text of the message that the next send replaces: the person's newest, or the given one."""
        own = [message for message in self.chat.messages if message.role == "user"]
        wanted = [message for message in own if message_id in (None, message.id)]
        if self.streaming or not wanted:
            return None
        self.editing = wanted[-1].id
        return wanted[-1].text

    def stop(self) -> bool:
        """Ends the reply that runs; what has come stays."""
        if self.run is None or self.run.stopping:
            return False
        self.run.stopping = True
        if self.run.reply is not None:
            self._ask(self.desk.backend.abort(self.run.reply.id))
        elif self.run.task is not None and not self.desk.ready.is_set():
            self.run.task.cancel()
        return True

    def tune(self, params: SamplingParams) -> None:
        """Other decoding, from the next token on."""
        before, self.chat.params = self.chat.params, params
        self.desk.store.change_chat(self.chat.id, params=params)
        changes = {name: value for name, value in _differences(before, params).items() if name != "logprobs"}
        if changes and self.run is not None and self.run.reply is not None:
            self._ask(self.desk.backend.update(self.run.reply.id, **changes))
        self.desk.changed(self)

    def watch(self, on: bool) -> None:
        """Whether the likeliest tokens are asked for."""
        if on == self.watching:
            return
        self.watching, self.likely = on, None
        if self.run is not None and self.run.reply is not None:
            self._ask(self.desk.backend.update(self.run.reply.id, logprobs=_LIKELY if on else None))

    def rename(self, title: str) -> None:
        self.chat.title = title
        self.desk.store.rename(self.chat.id, title)
        self.desk.changed(self)

    def instruct(self, system: str) -> None:
        """Another system prompt, from the next reply on."""
        self.chat.system = system
        self.desk.store.change_chat(self.chat.id, system=system)
        self.desk.changed(self)

    def read_older(self, count: int) -> list[Message]:
        """Messages before those that are here, from the store."""
        chat = self.chat
        older = self.desk.store.older(chat.id, chat.messages[0].id, count) if chat.earlier else []
        chat.messages[:0], chat.earlier = older, chat.earlier - len(older)
        return older

    def keep(self) -> None:
        """What has come, into the store, from whatever thread: the program ends this moment."""
        if (run := self.run) is not None:
            with suppress(StoreError):
                self.desk.store.update(replace(self._written(run), state="stopped"))

    async def put_away(self) -> None:
        """The end of the program, or of this chat: what has come is saved, and the engine is told."""
        if self.run is None or self.run.task is None:
            return
        task = self.run.task
        self.stop()
        await asyncio.wait({task}, timeout=_FAREWELL)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    # The reply

    def _answer(self) -> None:
        message = self.desk.store.append(
            self.chat.id, "assistant", "", state="streaming", params=changed_from_default(self.chat.params)
        )
        self._append(message)
        now = self.desk.clock()
        self.run = Run(message, now, saved=now)
        self.run.task = asyncio.create_task(self._follow(self.run), name=f"reply-{self.chat.letter}")
        self.desk.changed(self)

    async def _follow(self, run: Run) -> None:
        """From the first word to the last, and whatever goes wrong between."""
        finish, error = Finish.ABORTED, ""
        try:
            await self.desk.ready.wait()
            asked = self.chat.params
            reply = await self.desk.backend.submit(self._prompt(), self._watched(asked))
            run.reply = reply
            self.desk.took(self, reply.id)
            self._catch_up(run, reply, asked)
            async for batch in reply.batches(self.desk.pacer.turn):
                self._take(run, batch)
                finish, error = batch[-1].finish or finish, batch[-1].error
        except EngineError as trouble:
            finish, error = Finish.FAILED, str(trouble)
        except Exception as trouble:  # a fault of the program: the person reads it at the reply, and goes on
            log.exception("a reply failed")
            finish, error = Finish.FAILED, f"{type(trouble).__name__}: {trouble}"
        finally:
            self._settle(run, finish, error)

    def _catch_up(self, run: Run, reply: Reply, asked: SamplingParams) -> None:
        """What the person did while the request was on its way to the engine."""
        if changes := _differences(asked, self.chat.params):
            self._ask(self.desk.backend.update(reply.id, **changes))
        if run.stopping:
            self._ask(self.desk.backend.abort(reply.id))

    def _take(self, run: Run, batch: list[Delta]) -> None:
        now = self.desk.clock()
        fresh = [delta for delta in batch if delta.tokens]
        if fresh and run.first is None:
            run.first = now
        run.tokens += sum(len(delta.tokens) for delta in fresh)
        added = run.parts.push("".join(delta.text for delta in batch))
        if self.watching and (rivals := [one for delta in batch for one in delta.logprobs]):
            self.likely = rivals[-1]
        if self.view is not None:
            tail = run.parts.reasoning[-_THOUGHT_SHOWN:] if run.parts.thinking else ""
            self.view.add_text(added, tail)
        if now - run.saved >= _SAVE_EVERY:
            run.saved = now
            self._save(self._written(run))

    def _settle(self, run: Run, finish: Finish, error: str) -> None:
        added = run.parts.flush()
        if added and self.view is not None:
            self.view.add_text(added, "")
        stats = run.stats(self.desk.clock(), self.chat.params)
        message = replace(self._written(run), state=_STATES[finish], error=error, stats=stats)
        self.run = None
        self._save(message)
        if self.view is not None:
            self.view.settle_message(message)
        self.desk.changed(self)

    def _written(self, run: Run) -> Message:
        return replace(run.message, text=run.parts.text, reasoning=run.parts.reasoning)

    def _save(self, message: Message) -> None:
        """The screen goes on with what it has, whatever becomes of the disk."""
        self.chat.messages[-1] = message
        try:
            self.desk.store.update(message)
        except StoreError as error:
            self.desk.complain(str(error))

    # The chat behind it

    def _prompt(self) -> Prompt:
        """What the model reads: all that was said before the reply that is wanted."""
        newest = self.chat.messages
        earlier = (
            self.desk.store.older(self.chat.id, newest[0].id, self.chat.earlier) if self.chat.earlier else []
        )
        said = [*earlier, *newest[:-1]]
        if not self.desk.backend.has_template:
            return "".join(message.text for message in said)
        opening = [{"role": "system", "content": self.chat.system}] if self.chat.system else []
        turns = [{"role": message.role, "content": message.text} for message in said if message.text]
        return [*opening, *turns]

    def _watched(self, params: SamplingParams) -> SamplingParams:
        return params.changed(logprobs=_LIKELY) if self.watching else params

    def _append(self, message: Message) -> None:
        self.chat.messages.append(message)
        if self.view is not None:
            self.view.add_message(message)

    def _cut(self, message_id: int) -> None:
        """The message and all after it go."""
        self.desk.store.cut(self.chat.id, message_id)
        self.chat.messages = [message for message in self.chat.messages if message.id < message_id]
        if self.view is not None:
            self.view.show_messages()

    def _ask(self, request: Coroutine[Any, Any, None]) -> None:
        """Has the engine told something whose answer nobody waits for. A request that is over needs none."""

        async def ask() -> None:
            with suppress(UnknownRequest, EngineDead):
                await request

        task = asyncio.create_task(ask())
        self._asked.add(task)
        task.add_done_callback(self._asked.discard)


def _differences(before: SamplingParams, after: SamplingParams) -> dict[str, Any]:
    return {name: value for name in FIELDS if (value := getattr(after, name)) != getattr(before, name)}
