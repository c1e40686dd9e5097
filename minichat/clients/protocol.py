"""What the screen needs of an engine, local or remote. All methods run on the screen's event loop."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from engine.api.commands import Command
from engine.api.events import Delta, Event
from engine.api.layout import PromptLayout
from engine.api.params import SamplingParams
from engine.api.snapshot import Snapshot

T = TypeVar("T")

# Text to complete, or messages for the model's chat template.
Prompt = str | Sequence[Mapping[str, str]]
Progress = Callable[[int, int], None]  # bytes done, total bytes
Pace = Callable[[], Awaitable[None]]  # returns when the reader may draw again


class Reply(Protocol):
    """A streaming reply with one reader."""

    @property
    def id(self) -> int: ...

    @property
    def prompt_tokens(self) -> int: ...

    def batches(self, pace: Pace) -> AsyncIterator[list[Delta]]:
        """Yield the deltas since the last batch; the last delta of the last batch has a finish reason."""
        ...


@dataclass(frozen=True, slots=True)
class Past:
    """A reply started by an earlier screen, including its unread part."""

    reply: Reply
    age: float  # seconds since it started
    first: float | None  # seconds from the start to its first token
    lasted: float | None  # seconds from the start to its end; None while it runs
    copied: int = 0  # tokens of the reply that it was forked from


@dataclass(frozen=True, slots=True)
class LinkLost(Event):
    """The connection to a remote engine is lost. Requests wait for it."""

    why: str
    ended: bool = False  # requests do not wait: it may never be back
    answers: bool = False  # it still runs, but this program cannot use it
    stopped: bool = False  # the user is stopping the engine; its running replies may end


@dataclass(frozen=True, slots=True)
class LinkBack(Event):
    """The connection is restored. `restarted`: to a new engine that has none of the earlier requests."""

    seconds: float
    restarted: bool


class Backend(Protocol):
    """The engine as the screen uses it. No method blocks the loop."""

    @property
    def elsewhere(self) -> str:
        """The address of an engine that outlives the screen with its replies; otherwise empty."""
        ...

    @property
    def starts(self) -> bool:
        """Whether `switch` starts an engine that has ended, or only looks for one that runs."""
        ...

    @property
    def replacement(self) -> str:
        """The command that replaces an engine that has ended, if `switch` does not; otherwise empty."""
        ...

    @property
    def has_template(self) -> bool:
        """Whether it accepts messages, or text only."""
        ...

    @property
    def opens_thinking(self) -> bool:
        """Whether the template ends the prompt with <think>, so that a reply starts inside its reasoning."""
        ...

    async def load(self, progress: Progress) -> Snapshot:
        """Make the engine ready; raise if the model or the machine does not allow it."""
        ...

    async def switch(self, model: str, progress: Progress) -> Snapshot:
        """Replace the model. The old one is unloaded first; if this raises, no model is loaded."""
        ...

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
    ) -> Reply:
        """Start a reply. `tag` is a unique name to find it with `resume`.

        `reply_prefix`: tokens the reply already starts with; the deltas continue after them.
        `deadline`: seconds until the first token is due. `chat`: whose blocks an engine's disk keeps.
        `adapter`: the name of a loaded LoRA adapter.
        """
        ...

    async def resume(self, tag: str) -> Past | None:
        """Find a reply by its tag and read it from the start; None if the engine no longer has it.

        If it continues another reply, the preceding part comes first.
        """
        ...

    async def send(self, command: Command[T]) -> T:
        """Send a command of engine/api/commands.py and return its result; raises if it is refused."""
        ...

    async def fork(self, id: int, params: SamplingParams, *, tag: str = "", chat: str = "") -> Reply:
        """Continue from a running reply, sharing its blocks; `prompt_tokens` counts all tokens before it."""
        ...

    async def forget_chat(self, chat: str) -> bool:
        """Delete the cache blocks on disk that belong to this chat alone. False: there is no disk here."""
        ...

    async def count(self, prompt: Prompt) -> int:
        """The number of tokens of a prompt."""
        ...

    async def layout(self, prompt: Prompt) -> PromptLayout:
        """The characters of the prompt's text or messages that each token covers."""
        ...

    async def texts(self, tokens: Sequence[int], after: Sequence[int] = ()) -> list[str]:
        """What each token adds to a reply's text. `after`: the tokens before them."""
        ...

    async def snapshot(self) -> Snapshot: ...

    def subscribe(self, handler: Callable[[Sequence[Event]], None]) -> None:
        """Call the handler with batches of events, in order."""
        ...

    def words(self, tokens: Sequence[int]) -> list[str]:
        """The text of each token alone."""
        ...

    def close(self) -> bool:
        """Close after the loop has ended. Return False if a thread did not end in time."""
        ...
