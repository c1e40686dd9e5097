"""A chat and what was said in it. Messages are frozen: a changed one is a new one with the same id."""

import re
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, Literal

from engine.api.params import SamplingParams

Role = Literal["system", "user", "assistant"]
State = Literal["done", "streaming", "stopped", "failed"]

ROLES: tuple[Role, ...] = ("system", "user", "assistant")
STATES: tuple[State, ...] = ("done", "streaming", "stopped", "failed")
_FORK = re.compile(r"\(fork(?: (\d{1,9}))?\)$")


@dataclass(frozen=True, slots=True)
class ReplyStats:
    """What one reply cost."""

    tokens: int
    seconds: float
    ttft: float  # seconds to the first token
    prompt_tokens: int
    strategy: str
    left_out: int = 0  # messages at the chat's beginning that the model did not read
    blocks: int = 0  # of the cache, that it held as it ended; 0: not known

    @property
    def rate(self) -> float:
        """Tokens a second after the first one."""
        streaming = self.seconds - self.ttft
        return (self.tokens - 1) / streaming if self.tokens > 1 and streaming > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Attachment:
    """A text that goes to the model with a message. Kept as it was then: a file may change, or go."""

    name: str  # as the message has it, behind an @
    text: str

    @property
    def fenced(self) -> str:
        """Between two fences that are longer than any in it."""
        runs = [len(run) for run in re.findall("`{3,}", self.text)]
        fence = "`" * (max(runs, default=2) + 1)
        end = "" if self.text.endswith("\n") else "\n"
        return f"{self.name}:\n{fence}{PurePath(self.name).suffix[1:]}\n{self.text}{end}{fence}"


@dataclass(frozen=True, slots=True)
class Message:
    """One row of the store. `id` is the row's; it never changes and is larger for a later message."""

    id: int
    role: Role
    text: str
    reasoning: str = ""
    at: float = 0.0  # seconds since the epoch
    state: State = "done"
    error: str = ""  # why it failed
    stats: ReplyStats | None = None
    params: dict[str, Any] | None = None  # the sampling parameters that were not the default
    attachments: tuple[Attachment, ...] = ()
    refused: bool = False  # too long for the engine that runs now, which would refuse it again; never stored

    @property
    def retriable(self) -> bool:
        """Whether it failed, and another try may end better."""
        return self.state == "failed" and not self.refused

    @property
    def whole(self) -> str:
        """What the model reads: the text, and then what is attached to it."""
        return "\n\n".join([self.text, *(each.fenced for each in self.attachments)])


@dataclass(slots=True)
class Chat:
    """One chat as a screen holds it: its newest messages, and how many lie before them in the store."""

    id: int
    letter: str
    title: str
    system: str = ""
    params: SamplingParams = field(default_factory=SamplingParams)
    messages: list[Message] = field(default_factory=list)
    draft: str = ""
    earlier: int = 0  # messages in the store before messages[0]
    created_at: float = 0.0
    closed_at: float | None = None


@dataclass(frozen=True, slots=True)
class ChatLine:
    """One chat in a list of them all, without its messages."""

    id: int
    letter: str
    title: str
    messages: int
    spoken_at: float  # when its last message was written, or it was made
    closed_at: float | None


def title_from(text: str, width: int = 40) -> str:
    """A title for a chat that begins with this prompt: its first line, cut between words."""
    line = next((line for line in map(str.strip, text.splitlines()) if line), "")
    line = " ".join(line.split())
    if len(line) <= width:
        return line
    head, _, _ = line[: width - 1].rpartition(" ")
    return f"{head or line[: width - 1]}…"


def fork_title(title: str) -> str:
    """A fork's title; that of a fork of it is counted, not longer."""
    if not (fork := _FORK.search(title)):
        return f"{title} (fork)".lstrip()
    return f"{title[: fork.start()]}(fork {int(fork[1] or 1) + 1})"
