"""A backend without a model, scripted by its owner. For tests and screenshots."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, TypeVar

from engine.api.commands import (
    Abort,
    CancelQuantization,
    Command,
    MeasureSpeeds,
    Preempt,
    Sender,
    SetKvScheme,
    SetQuantization,
    SetSwitch,
    Update,
    decode_command,
    encode_command,
)
from engine.api.errors import EngineError, UnknownCommand
from engine.api.events import Delta, Event, Switched, TokenLogprob
from engine.api.layout import PromptLayout, TokenSpan
from engine.api.params import SamplingParams
from engine.api.request import Finish
from engine.api.snapshot import Snapshot
from engine.api.speeds import Speeds
from minichat.clients.bridge import gathered
from minichat.clients.protocol import Pace, Past, Progress, Prompt

T = TypeVar("T")


@dataclass(eq=False)
class FakeReply:
    """A scripted reply."""

    id: int
    prompt: Prompt
    params: SamplingParams
    prompt_tokens: int = 7
    reply_prefix: tuple[int, ...] = ()  # its initial tokens
    deadline: float | None = None
    adapter: str = ""
    finished: bool = False
    tokens: int = 0  # tokens produced
    _deltas: asyncio.Queue[Delta] = field(default_factory=asyncio.Queue)

    def send(self, delta: Delta) -> None:
        self._deltas.put_nowait(delta)

    def say(self, text: str, tokens: int = 1, logprobs: Sequence[TokenLogprob] = ()) -> None:
        self.tokens += tokens
        self.send(Delta(self.id, tuple(range(tokens)), text, tuple(logprobs)))

    def end(self, finish: Finish = Finish.STOP, error: str = "", blocks: int = 0) -> None:
        if not self.finished:
            self.finished = True
            self.send(Delta(self.id, finish=finish, error=error, blocks=blocks))

    def batches(self, pace: Pace) -> AsyncIterator[list[Delta]]:
        return gathered(self, pace)

    async def __aiter__(self) -> AsyncIterator[Delta]:
        finish = None
        while not finish:
            delta = await self._deltas.get()
            yield delta
            finish = delta.finish


class FakeBackend:
    """Records every request. `script` may answer automatically; `trouble` is raised when loading."""

    def __init__(
        self,
        snapshots: Sequence[Snapshot],
        *,
        script: Callable[[FakeReply], None] | None = None,
        has_template: bool = True,
        trouble: EngineError | None = None,
        elsewhere: str = "",
        starts: bool = True,
    ) -> None:
        self.replies: list[FakeReply] = []
        self.forgotten: list[str] = []  # keys of deleted chats
        self.updates: list[tuple[int, dict[str, Any]]] = []
        self.refusal: EngineError | None = None  # raised by the next submit
        self.snapshots_taken = 0
        self.closed = False
        self.loaded = asyncio.Event()  # clear it first to simulate a slow start
        self.loaded.set()
        self.progress: Progress | None = None
        self.switched: list[str] = []  # requested models, in order
        self.unloadable: dict[str, EngineError] = {}  # errors by model name
        self.elsewhere, self.starts, self.replacement = elsewhere, starts, ""
        self.opens_thinking = False
        self.tags: dict[str, FakeReply] = {}  # replies by tag
        self.past: dict[str, Past] = {}  # replies of earlier screens
        self.quantized: list[str] = []  # requested schemes, in order; empty: canceled
        self.recached: list[str] = []  # requested KV schemes, in order
        self.unquantizable: dict[str, EngineError] = {}  # errors by scheme name
        self.handlers: dict[type[Command[Any]], Callable[[Any], Any]] = {
            Update: self._update,
            Abort: self._abort,
            Preempt: self._preempt,
            SetSwitch: self._set_switch,
            SetQuantization: self._set_quantization,
            CancelQuantization: lambda command: self.quantized.append(""),
            SetKvScheme: self._set_kv_scheme,
            MeasureSpeeds: lambda command: Speeds(read=10e9, multiply=100e9),
        }
        self._snapshots, self._script, self._trouble = tuple(snapshots), script, trouble
        self._has_template = has_template
        self._numbers = count()
        self._handlers: list[Callable[[Sequence[Event]], None]] = []

    @property
    def has_template(self) -> bool:
        return self._has_template

    async def load(self, progress: Progress) -> Snapshot:
        self.progress = progress
        await self.loaded.wait()
        if self._trouble:
            raise self._trouble
        return self._snapshots[0]

    async def switch(self, model: str, progress: Progress) -> Snapshot:
        self.switched.append(model)
        for reply in self.replies:
            reply.end(Finish.FAILED, "the engine was closed")
        self.progress = progress
        await self.loaded.wait()
        if model in self.unloadable:
            raise self.unloadable[model]
        self._trouble = None
        self._snapshots = tuple(replace(shot, model=model) for shot in self._snapshots)
        return self._snapshots[0]

    async def submit(
        self,
        prompt: Prompt,
        params: SamplingParams,
        *,
        tag: str = "",
        reply_prefix: Sequence[int] = (),
        deadline: float | None = None,
        chat: str = "",
        adapter: str = "",
    ) -> FakeReply:
        if self.refusal:
            refusal, self.refusal = self.refusal, None
            raise refusal
        reply = FakeReply(
            next(self._numbers),
            prompt,
            params,
            reply_prefix=tuple(reply_prefix),
            deadline=deadline,
            adapter=adapter,
        )
        self.replies.append(reply)
        self.tags[tag] = reply
        if self._script:
            self._script(reply)
        return reply

    async def resume(self, tag: str) -> Past | None:
        return self.past.get(tag)

    async def send(self, command: Command[T]) -> T:
        received = decode_command(encode_command(command), Sender.SCREEN)
        if (handler := self.handlers.get(type(received))) is None:
            raise UnknownCommand(f"this engine has no handler for {received.verb}")
        result: T = handler(received)
        return result

    def _update(self, command: Update) -> None:
        reply = self.replies[command.id]
        reply.params = reply.params.changed(**command.changes)
        self.updates.append((command.id, dict(command.changes)))

    def _abort(self, command: Abort) -> None:
        for id in command.ids:
            if id < len(self.replies):  # a snapshot can name others
                self.replies[id].end(Finish.ABORTED)

    def _preempt(self, command: Preempt) -> None:
        self.updates.append((command.id, {"preempted": True}))

    def _set_switch(self, command: SetSwitch) -> None:
        self._snapshots = tuple(
            replace(
                shot,
                switches=tuple(
                    each._replace(on=command.on) if each.name == command.name else each
                    for each in shot.switches
                ),
            )
            for shot in self._snapshots
        )
        self.emit(Switched(0, 0.0, command.name, command.on))

    def _set_quantization(self, command: SetQuantization) -> None:
        """The owner reports progress by events and snapshots."""
        self.quantized.append(command.scheme)
        self._refuse_scheme(command.scheme)

    def _set_kv_scheme(self, command: SetKvScheme) -> None:
        self.recached.append(command.scheme)
        self._refuse_scheme(command.scheme)

    def _refuse_scheme(self, scheme: str) -> None:
        if scheme in self.unquantizable:
            raise self.unquantizable[scheme]

    async def fork(self, id: int, params: SamplingParams, *, tag: str = "", chat: str = "") -> FakeReply:
        parent = self.replies[id]
        before = parent.prompt_tokens + parent.tokens
        reply = FakeReply(next(self._numbers), parent.prompt, params, before)
        self.replies.append(reply)
        return reply

    async def forget_chat(self, chat: str) -> bool:
        self.forgotten.append(chat)
        return True

    async def count(self, prompt: Prompt) -> int:
        return len((await self.layout(prompt)).ids)

    async def layout(self, prompt: Prompt) -> PromptLayout:
        """One token per character of a message, and one before each message."""
        texts = [prompt] if isinstance(prompt, str) else [message["content"] for message in prompt]
        placed = [
            (token, place)
            for number, text in enumerate(texts)
            for token, place in [
                (1, TokenSpan(-1)),
                *((ord(sign), TokenSpan(number, at, at + 1)) for at, sign in enumerate(text)),
            ]
        ]
        return PromptLayout(tuple(token for token, _ in placed), tuple(place for _, place in placed))

    async def texts(self, tokens: Sequence[int], after: Sequence[int] = ()) -> list[str]:
        return [chr(token) if token > 31 else "." for token in tokens]

    async def snapshot(self) -> Snapshot:
        shot = self._snapshots[min(self.snapshots_taken, len(self._snapshots) - 1)]
        self.snapshots_taken += 1
        return shot

    def subscribe(self, handler: Callable[[Sequence[Event]], None]) -> None:
        self._handlers.append(handler)

    def emit(self, *events: Event) -> None:
        for handler in self._handlers:
            handler(events)

    def words(self, tokens: Sequence[int]) -> list[str]:
        return [f" word{token}" for token in tokens]

    def close(self) -> bool:
        self.closed = True
        return True
