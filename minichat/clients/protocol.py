"""What the screen needs of an engine, wherever that runs. All of it on the screen's own event loop."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from engine.api.commands import Command
from engine.api.events import Delta, Event
from engine.api.layout import PromptLayout
from engine.api.params import SamplingParams
from engine.api.snapshot import Snapshot

T = TypeVar("T")

# Text, which is completed; or messages, which go through the model's chat template.
Prompt = str | Sequence[Mapping[str, str]]
Progress = Callable[[int, int], None]  # bytes done, bytes in all
Turn = Callable[[], Awaitable[None]]  # returns when the reader may draw again


class Reply(Protocol):
    """One reply on its way, for one reader."""

    @property
    def id(self) -> int: ...

    @property
    def prompt_tokens(self) -> int: ...

    def batches(self, turn: Turn) -> AsyncIterator[list[Delta]]:
        """What has come since the last turn; the last delta of the last batch has a finish."""
        ...


@dataclass(frozen=True, slots=True)
class Past:
    """A reply that was begun by a screen which is gone, and what this one has not seen of it."""

    reply: Reply
    age: float  # seconds since it was begun
    first: float | None  # seconds from then to its first token
    lasted: float | None  # seconds from then to its end; None while it runs


@dataclass(frozen=True, slots=True)
class LinkLost(Event):
    """The line to an engine elsewhere is cut. What is asked meanwhile waits for it."""

    why: str
    ended: bool = False  # it will not come back by itself


@dataclass(frozen=True, slots=True)
class LinkBack(Event):
    """And it is mended. `anew`: another engine answers there, to whom all before is unknown."""

    seconds: float
    anew: bool


class Backend(Protocol):
    """Nothing here blocks the loop, whatever the engine is doing."""

    @property
    def elsewhere(self) -> str:
        """Where the engine lives if it outlives the screen, and its replies with it; else nothing."""
        ...

    @property
    def has_template(self) -> bool:
        """Whether messages can be sent, or only text."""
        ...

    async def load(self, progress: Progress) -> Snapshot:
        """Makes the engine ready; raises what is wrong with the model or the machine."""
        ...

    async def switch(self, model: str, progress: Progress) -> Snapshot:
        """The same with another model. The old one goes first; where this raises, there is none."""
        ...

    async def submit(
        self, prompt: Prompt, params: SamplingParams, *, tag: str = "", said: Sequence[int] = ()
    ) -> Reply:
        """A new reply. `tag`: its name for `resume`, which no other reply has.

        `said`: tokens with which it begins already; what comes is behind them.
        """
        ...

    async def resume(self, tag: str) -> Past | None:
        """A reply by its tag, from its first word on; None where nobody knows it any more.

        Of one that goes on from another, what stands before comes first, as if it had said that itself.
        """
        ...

    async def send(self, command: Command[T]) -> T:
        """What the engine answers to one of engine/api/commands.py; raises what it refuses."""
        ...

    async def fork(self, id: int, params: SamplingParams, *, tag: str = "") -> Reply:
        """A reply that goes on from a running one, sharing its blocks; `prompt_tokens` is all before it."""
        ...

    async def count(self, prompt: Prompt) -> int:
        """How many tokens a prompt has."""
        ...

    async def layout(self, prompt: Prompt) -> PromptLayout:
        """Which characters of the prompt's text or messages its tokens stand for."""
        ...

    async def texts(self, tokens: Sequence[int], after: Sequence[int] = ()) -> list[str]:
        """What each token adds to a reply's text. `after`: the tokens that it goes on from."""
        ...

    async def snapshot(self) -> Snapshot: ...

    def subscribe(self, handler: Callable[[Sequence[Event]], None]) -> None:
        """Events in order, several at a time."""
        ...

    def words(self, tokens: Sequence[int]) -> list[str]:
        """Each token as text of its own."""
        ...

    def close(self) -> bool:
        """Ends what runs, once the loop is over. False where that takes too long: threads are left behind."""
        ...
