"""All that a screen, a server or a test may do to an engine."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypedDict, Unpack

from engine.events import Handler
from engine.host.prompts import Conversation, Prompt
from engine.host.stream import Stream
from engine.layout import Layout
from engine.params import SamplingParams
from engine.snapshot import Snapshot, Speeds


class Order(TypedDict, total=False):
    """What a request may say beside its prompt and parameters."""

    priority: int  # smaller runs first
    deadline: float | None  # seconds from now to its first token
    salt: bytes  # separates prefix caches of different owners
    said: Sequence[int]  # tokens with which the reply begins already; what comes is behind them


class EngineHost(Protocol):
    """From any thread. What is asked takes effect between two steps."""

    @property
    def has_template(self) -> bool: ...

    @property
    def templates(self) -> Mapping[str, str]:
        """The sources of the model's chat templates, by their names."""
        ...

    def text(self, conversation: Conversation) -> str:
        """What the template makes of it, to be looked at."""
        ...

    def pieces(self, tokens: Sequence[int]) -> list[bytes]:
        """What each token stands for inside a text."""
        ...

    def submit(self, prompt: Prompt, params: SamplingParams, **order: Unpack[Order]) -> Stream:
        """A new request."""
        ...

    def fork(self, id: int, params: SamplingParams | None = None) -> Stream: ...

    def update(self, id: int, **changes: Any) -> None: ...

    def abort(self, *ids: int) -> None:
        """All of them between the same two steps."""
        ...

    def preempt(self, id: int) -> None: ...

    def layout(self, prompt: str | Sequence[Mapping[str, Any]]) -> Layout:
        """Which characters of a prompt's text or messages its tokens stand for."""
        ...

    def texts(self, tokens: Sequence[int], after: Sequence[int] = ()) -> list[str]:
        """What each token adds to a reply's text. `after`: the tokens that it goes on from."""
        ...

    def set_switch(self, name: str, on: bool) -> None: ...

    def set_quantization(self, scheme: str) -> None:
        """Begins to keep the weights in another scheme; events and snapshots tell how it goes on."""
        ...

    def cancel_quantization(self) -> None:
        """Goes back to the scheme before, where a change is under way."""
        ...

    def set_kv_scheme(self, scheme: str) -> None:
        """Another form of the cache, while no request is alive; raises why it cannot be."""
        ...

    def warm(self) -> None:
        """Does now, beside the steps, what the first one to need it would wait for."""
        ...

    def snapshot(self) -> Snapshot: ...

    def speeds(self) -> Speeds: ...

    def subscribe(self, handler: Handler) -> Callable[[], None]: ...

    def close(self) -> None: ...
