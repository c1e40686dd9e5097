"""The interface of an engine for screens, servers and tests."""

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
    """Safe from any thread. Commands take effect between two steps."""

    def send(self, command: Command[T]) -> Future[T]:
        """Send a command without waiting. The future holds the engine's result or raises its error."""
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
        """Start a request without waiting for the engine. Errors arrive over the stream."""
        ...

    def fork(self, id: int, params: SamplingParams | None = None) -> Stream:
        """Start a request that continues from a running one."""
        ...

    def snapshot(self) -> Snapshot:
        """Return a snapshot. Waits for the current step to end."""
        ...

    def subscribe(self, handler: Handler) -> Callable[[], None]: ...

    def close(self) -> None: ...


class EngineHost(EngineClient, Protocol):
    """An engine client with the text functions of its model."""

    @property
    def has_template(self) -> bool: ...

    @property
    def templates(self) -> Mapping[str, str]:
        """The sources of the model's chat templates, by name."""
        ...

    def text(self, conversation: ChatPrompt) -> str:
        """Return the rendered conversation, for display."""
        ...

    def pieces(self, tokens: Sequence[int]) -> list[bytes]:
        """Return the bytes of each token inside a text."""
        ...

    def count(self, prompt: Prompt) -> int:
        """Return the number of tokens in a prompt."""
        ...

    def layout(self, prompt: str | Sequence[Mapping[str, Any]]) -> PromptLayout:
        """Return the characters of a prompt's text or messages that each token covers."""
        ...

    def texts(self, tokens: Sequence[int], after: Sequence[int] = ()) -> list[str]:
        """Return the text that each token adds to a reply. `after`: the tokens before it."""
        ...
