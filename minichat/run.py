"""A reply on its way, and who draws it."""

import asyncio
from dataclasses import dataclass, field
from typing import Protocol

from engine.params import SamplingParams
from minichat.backends.protocol import Past, Reply
from minichat.chats.model import Message, ReplyStats
from minichat.decoding import strategy
from minichat.reasoning import ReplyText
from minichat.traces import Trace


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
    reason: str = ""  # why it was stopped, if not by a person
    stays: bool = False  # the engine goes on with it when the screen is gone
    left: bool = False  # the screen is going
    stale: bool = False  # what stands there is an older screen's, and comes again whole
    lasted: float | None = None  # seconds, of one that ended while no screen was there
    task: asyncio.Task[None] | None = None
    trace: Trace | None = None
    pieces: list[tuple[int, str]] = field(default_factory=list)  # tokens and text, as they came

    def go_on(self, past: Past, now: float) -> None:
        """With what a screen that is gone has begun."""
        self.stays = self.stale = True
        self.began, self.lasted = now - past.age, past.lasted
        self.first = None if past.first is None else self.began + past.first

    def stats(self, now: float, params: SamplingParams) -> ReplyStats:
        return ReplyStats(
            tokens=self.tokens,
            seconds=now - self.began if self.lasted is None else self.lasted,
            ttft=(self.first or now) - self.began,
            prompt_tokens=self.reply.prompt_tokens if self.reply else 0,
            strategy=strategy(params),
        )
