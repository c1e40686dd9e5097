"""What screens, servers and tests use of an engine, wherever it runs."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

from engine.api.commands import Command, Fork, GetSnapshot, StreamingCommand, Submit
from engine.api.errors import EngineError
from engine.api.events import Delta, Handler
from engine.api.params import SamplingParams
from engine.api.snapshot import Snapshot
from engine.host.chat_text import ChatText
from engine.host.prompts import Prompt, prompt_ids
from engine.host.stream import Stream, refused
from engine.host.too_long import refuse_too_long

T = TypeVar("T")
Sink = Callable[[Delta], None]


class EngineClient(ChatText, ABC):
    """Sends commands to an engine, from any thread. They take effect between two steps.

    A subclass sends, subscribes and closes. The other methods are commands that are used often; only
    `snapshot` may also have an answer without the engine, such as the last one of an engine that has died.
    """

    @abstractmethod
    def send(self, command: Command[T], sink: Sink | None = None) -> Future[T]:
        """Send a command without waiting. The future holds the engine's result or raises its error.

        `sink` receives the deltas if the command starts a request.
        """

    @abstractmethod
    def subscribe(self, handler: Handler) -> Callable[[], None]:
        """Call `handler` with every event, on a thread of the client. It must not block."""

    @abstractmethod
    def close(self) -> None:
        """End all requests, and the engine."""

    def submit(
        self,
        prompt: Prompt,
        params: SamplingParams,
        *,
        priority: int = 0,
        deadline: float | None = None,
        salt: bytes = b"",
        reply_prefix: Sequence[int] = (),
        chat: str = "",
        adapter: str = "",
        wake: Sink | None = None,
    ) -> Stream:
        """Start a request without waiting for the engine. Errors arrive over the stream.

        The template and the tokenizer run on the caller's thread. `wake`: as of `Stream`.
        """
        try:
            refuse_too_long(prompt, self._chat, self.snapshot)
            ids, continues = prompt_ids(prompt, self._chat)
        except EngineError as error:
            return refused(error)
        tokens, prefix = tuple(ids), tuple(reply_prefix)
        order = (priority, deadline, salt, prefix, continues, chat, adapter)
        stream = self.start(Submit(tokens, params, *order), wake)
        stream.prompt = tokens
        return stream

    def fork(
        self,
        id: int,
        params: SamplingParams | None = None,
        chat: str | None = None,
        wake: Sink | None = None,
    ) -> Stream:
        """Start a request that continues from a running one."""
        return self.start(Fork(id, params, chat), wake)

    def start(self, command: StreamingCommand, wake: Sink | None = None) -> Stream:
        stream = Stream(wake)
        stream.bind(self.send(command, stream.put))
        return stream

    def snapshot(self) -> Snapshot:
        """Return a snapshot. Waits for the current step to end."""
        return self.send(GetSnapshot()).result()
