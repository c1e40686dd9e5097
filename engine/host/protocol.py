"""All that a screen, a server or a test may do to an engine."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from engine.api.commands import Command
from engine.api.events import Handler
from engine.api.layout import PromptLayout
from engine.api.params import SamplingParams
from engine.api.snapshot import Snapshot
from engine.host.prompts import ChatPrompt, Prompt
from engine.host.stream import Stream

T = TypeVar("T")


class EngineClient(Protocol):
    """From any thread. What is sent takes effect between two steps."""

    def send(self, command: Command[T]) -> Future[T]:
        """Never waits; the future has what the engine answers, or raises its refusal."""
        ...

    def submit(
        self,
        prompt: Prompt,
        params: SamplingParams,
        *,
        priority: int = 0,
        deadline: float | None = None,
        salt: bytes = b"",
        reply_prefix: Sequence[int] = (),
    ) -> Stream:
        """A new request. Never waits for the engine: its refusal comes over the stream."""
        ...

    def fork(self, id: int, params: SamplingParams | None = None) -> Stream:
        """The same for a request that goes on from a running one."""
        ...

    def snapshot(self) -> Snapshot:
        """Waits for the end of a step."""
        ...

    def subscribe(self, handler: Handler) -> Callable[[], None]: ...

    def close(self) -> None: ...


class EngineHost(EngineClient, Protocol):
    """The same, with what it knows of the model's text."""

    @property
    def has_template(self) -> bool: ...

    @property
    def templates(self) -> Mapping[str, str]:
        """The sources of the model's chat templates, by their names."""
        ...

    def text(self, conversation: ChatPrompt) -> str:
        """What the template makes of it, to be looked at."""
        ...

    def pieces(self, tokens: Sequence[int]) -> list[bytes]:
        """What each token stands for inside a text."""
        ...

    def count(self, prompt: str | Sequence[Mapping[str, Any]]) -> int:
        """How many tokens a prompt has."""
        ...

    def layout(self, prompt: str | Sequence[Mapping[str, Any]]) -> PromptLayout:
        """Which characters of a prompt's text or messages its tokens stand for."""
        ...

    def texts(self, tokens: Sequence[int], after: Sequence[int] = ()) -> list[str]:
        """What each token adds to a reply's text. `after`: the tokens that it goes on from."""
        ...
