"""All that a screen, a server or a test may do to an engine."""

from collections.abc import Callable
from typing import Any, Protocol

from engine.events import Handler
from engine.host.prompts import Prompt
from engine.host.stream import Stream
from engine.params import SamplingParams
from engine.snapshot import Snapshot


class EngineHost(Protocol):
    """From any thread. What is asked takes effect between two steps."""

    @property
    def has_template(self) -> bool: ...

    def submit(
        self,
        prompt: Prompt,
        params: SamplingParams,
        *,
        priority: int = 0,
        deadline: float | None = None,
        salt: bytes = b"",
    ) -> Stream: ...

    def fork(self, id: int, params: SamplingParams | None = None) -> Stream: ...

    def update(self, id: int, **changes: Any) -> None: ...

    def abort(self, id: int) -> None: ...

    def preempt(self, id: int) -> None: ...

    def snapshot(self) -> Snapshot: ...

    def subscribe(self, handler: Handler) -> Callable[[], None]: ...

    def close(self) -> None: ...
