"""The engine in this process, on its own thread."""

import asyncio
import gc
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from engine.config import EngineConfig
from engine.errors import EngineDead
from engine.events import Delta, Event
from engine.params import SamplingParams
from engine.snapshot import Snapshot
from minichat.backends.bridge import Handover, gathered, in_thread
from minichat.backends.protocol import Progress, Prompt, Turn

if TYPE_CHECKING:
    from engine.host.stream import Stream
    from engine.host.thread import EngineThread
    from engine.text.tokenizer import Tokenizer

_TELL_EVERY = 0.1  # seconds between two words about loading
_CLOSE_WITHIN = 2.0  # seconds; a step that takes longer is left behind


@dataclass(frozen=True, slots=True)
class LocalReply:
    """One reply of the engine's thread."""

    stream: "Stream"

    @property
    def id(self) -> int:
        return self.stream.id

    @property
    def prompt_tokens(self) -> int:
        return self.stream.prompt_tokens

    def batches(self, turn: Turn) -> AsyncIterator[list[Delta]]:
        return gathered(self.stream, turn)


class LocalBackend:
    """Loads the engine in a thread, torch included, and asks it from threads: an answer may take a step."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._engine: EngineThread | None = None
        self._tokenizer: Tokenizer | None = None
        self._handlers: list[Handover] = []
        self._loading = False
        self._trouble = "the engine has not been loaded"

    @property
    def has_template(self) -> bool:
        return self._host.has_template

    async def load(self, progress: Progress) -> Snapshot:
        loop, told = asyncio.get_running_loop(), 0.0

        def tell(done: int, total: int) -> None:
            nonlocal told
            if (now := time.monotonic()) - told >= _TELL_EVERY or done >= total:
                told = now
                loop.call_soon_threadsafe(progress, done, total)

        def start_engine() -> Snapshot:
            from engine.host.thread import EngineThread
            from engine.start import start

            try:
                engine = start(self._config, tell)
                for handler in self._handlers:
                    engine.bus.subscribe(handler)
                self._tokenizer = engine.tokenizer
                self._engine = EngineThread(engine)
                gc.freeze()  # or each collection walks all of torch, and keys wait for it
            finally:
                self._loading = False
            return self._engine.snapshot()

        self._loading = True
        try:
            return await in_thread(start_engine)
        except Exception as error:
            self._trouble = f"there is no engine: {str(error) or type(error).__name__}"
            raise

    async def submit(self, prompt: Prompt, params: SamplingParams) -> LocalReply:
        return LocalReply(await in_thread(lambda: self._host.submit(prompt, params)))

    async def update(self, id: int, **changes: Any) -> None:
        await in_thread(lambda: self._host.update(id, **changes))

    async def abort(self, id: int) -> None:
        await in_thread(lambda: self._host.abort(id))

    async def preempt(self, id: int) -> None:
        await in_thread(lambda: self._host.preempt(id))

    async def snapshot(self) -> Snapshot:
        return await in_thread(self._host.snapshot)

    def subscribe(self, handler: Callable[[Sequence[Event]], None]) -> None:
        handover = Handover(handler)
        self._handlers.append(handover)
        if self._engine is not None:
            self._engine.subscribe(handover)

    def words(self, tokens: Sequence[int]) -> list[str]:
        return (
            [self._tokenizer.piece(token).decode(errors="replace") for token in tokens]
            if self._tokenizer
            else []
        )

    def close(self) -> bool:
        if self._engine is None:
            return not self._loading
        closing = threading.Thread(target=self._engine.close, name="minichat-close", daemon=True)
        closing.start()
        closing.join(_CLOSE_WITHIN)
        return not closing.is_alive()

    @property
    def _host(self) -> "EngineThread":
        if self._engine is None:
            raise EngineDead(self._trouble)
        return self._engine
