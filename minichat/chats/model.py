"""Chats and messages. Messages are frozen: a changed one is a copy with the same id."""

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import count
from pathlib import PurePath
from typing import Any, Literal

from engine.api.errors import FULL
from engine.api.params import SamplingParams

Role = Literal["system", "user", "assistant"]
State = Literal["done", "streaming", "stopped", "failed"]

ROLES: tuple[Role, ...] = ("system", "user", "assistant")
_AT_MOST = "max tokens ("  # begins the error of a reply that reached its limit
STATES: tuple[State, ...] = ("done", "streaming", "stopped", "failed")
TOO_LONG = "prompt"
UNTITLED = "new chat"  # shown as the title of a chat without one
_FORK = re.compile(r"\(fork(?: (\d{1,9}))?\)$")


@dataclass(frozen=True, slots=True)
class ReplyStats:
    """The cost of a reply."""

    tokens: int
    seconds: float
    ttft: float  # seconds to the first token
    prompt_tokens: int
    strategy: str
    left_out: int = 0  # messages at the chat's start that the model did not read
    blocks: int = 0  # KV blocks it held at its end; 0: unknown
    loaded: int = 0  # prompt tokens whose keys and values a tier had, so that they were not computed
    tier: str = ""  # with `loaded`: the tier
    saved: float = 0.0  # with `loaded`: seconds, at least, that computing them would have taken longer
    copied: int = 0  # of the tokens, those of the reply that it was forked from
    decoding: float = 0.0  # seconds from its first token to its last, as the engine says; 0: unknown

    @property
    def rate(self) -> float:
        """Its own tokens per second after the first one."""
        own, streaming = self.tokens - self.copied, self.decoding or self.seconds - self.ttft
        return (own - 1) / streaming if own > 1 and streaming > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Attachment:
    """A text sent with a message. Stored as a copy, because the file may change or be deleted."""

    name: str  # as mentioned in the message after an @
    text: str

    @property
    def fenced(self) -> str:
        """The text in a fence longer than any inside it."""
        runs = [len(run) for run in re.findall("`{3,}", self.text)]
        fence = "`" * (max(runs, default=2) + 1)
        end = "" if self.text.endswith("\n") else "\n"
        return f"{self.name}:\n{fence}{PurePath(self.name).suffix[1:]}\n{self.text}{end}{fence}"


@dataclass(frozen=True, slots=True)
class Message:
    """One row of the store. `id` is its row id; it never changes and increases with time."""

    id: int
    role: Role
    text: str
    reasoning: str = ""
    at: float = 0.0  # seconds since the epoch
    state: State = "done"
    error: str = ""  # why it failed
    stats: ReplyStats | None = None
    params: dict[str, Any] | None = None  # sampling parameters at its start that differ from the default
    attachments: tuple[Attachment, ...] = ()
    interrupted: bool = False  # minichat quit while it was streaming
    refused: str = ""  # what the engine refused and would refuse again: TOO_LONG or a field; not stored

    @property
    def complete(self) -> bool:
        """Whether it ended by itself or at a limit, so that nothing cut it off."""
        limited = self.error.startswith(_AT_MOST) or self.error in FULL.values()
        return self.state == "done" or (self.state == "stopped" and limited)

    @property
    def retriable(self) -> bool:
        """Whether it failed and a retry may succeed."""
        return self.state == "failed" and not self.refused

    @property
    def whole(self) -> str:
        """What the model reads: the text, then the attachments."""
        return "\n\n".join([self.text, *(each.fenced for each in self.attachments)])


def at_most(tokens: int) -> str:
    """The error of a reply that reached this limit."""
    return f"{_AT_MOST}{tokens}) reached"


@dataclass(frozen=True, slots=True)
class Edit:
    """What a sent message is replaced by, as far as it is typed."""

    message: int
    text: str


@dataclass(slots=True)
class Chat:
    """One chat as loaded: its newest messages, and the number of older ones in the store."""

    id: int
    letter: str
    title: str
    system: str = ""
    params: SamplingParams = field(default_factory=SamplingParams)
    own_params: SamplingParams | None = None  # the newest that no preset had
    adapter: str = ""  # the LoRA adapter of its next reply
    messages: list[Message] = field(default_factory=list)
    draft: str = ""
    edit: Edit | None = None  # as stored
    typed_system: str | None = None  # a system prompt that was typed and not accepted
    earlier: int = 0  # messages in the store before messages[0]
    created_at: float = 0.0
    closed_at: float | None = None

    @property
    def key(self) -> str:
        return chat_key(self.id, self.created_at)


@dataclass(frozen=True, slots=True)
class ChatLine:
    """One chat in a list, without its messages."""

    id: int
    letter: str
    title: str
    messages: int
    spoken_at: float  # time of its last message, or of its creation
    closed_at: float | None


def chat_key(id: int, created_at: float) -> str:
    """The name of a chat outside the store, for example for its blocks on disk."""
    return f"{id} {created_at!r}"


def title_from(text: str, width: int = 40) -> str:
    """A title from the first line of the first message, cut between words."""
    line = next((line for line in map(str.strip, text.splitlines()) if line), "")
    line = " ".join(line.split())
    if len(line) <= width:
        return line
    head, _, _ = line[: width - 1].rpartition(" ")
    return f"{head or line[: width - 1]}…"


def own_title(title: str, first: str) -> bool:
    """Whether the user chose the title. If not, it is empty, or from the first message (and of a fork)."""
    return title.removesuffix(fork_mark(title)).rstrip() != (title_from(first) if first else "")


def fork_mark(title: str) -> str:
    """The end of a title that tells which fork the chat is: "(fork 2)"; empty if it is none."""
    fork = _FORK.search(title)
    return title[fork.start() :] if fork else ""


def fork_title(title: str, taken: Collection[str]) -> str:
    """The title of a fork, with a number if that of a first fork is taken, or for a fork of a fork."""
    fork = _FORK.search(title)
    first = int(fork[1] or 1) + 1 if fork else 1
    begin = title[: fork.start()] if fork else f"{title} ".lstrip()
    names = (f"{begin}(fork {number})" if number > 1 else f"{begin}(fork)" for number in count(first))
    return next(name for name in names if name not in taken)
