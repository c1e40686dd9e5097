"""An engine on this machine: on a thread of this process, or in its own process."""

import asyncio
import gc
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from engine.api.commands import Command, SetSwitch
from engine.api.config import EngineConfig
from engine.api.errors import EngineDead
from engine.api.events import Delta, Event, Quantized, Recached, Switched
from engine.api.layout import PromptLayout
from engine.api.params import SamplingParams
from engine.api.places import DiskRoom
from engine.api.snapshot import Snapshot
from engine.host.handover import Handover, call_on
from engine.kv.tiers.disk_index import delete_chat
from engine.text.reasoning import OPEN
from minichat.clients.bridge import gathered, in_thread
from minichat.clients.protocol import Pace, Progress, Prompt
from minichat.shell.interpreter import loading, open_torch
from minichat.shell.paths import private_folder

if TYPE_CHECKING:
    from engine.host.client import EngineClient
    from engine.host.stream import Stream

T = TypeVar("T")
_UPDATE_EVERY = 0.1  # seconds between two progress updates
_CLOSE_WITHIN = 2.0  # seconds; a longer step is abandoned


@dataclass(frozen=True, slots=True)
class LocalReply:
    """A reply from the engine thread."""

    stream: "Stream"

    @property
    def id(self) -> int:
        return self.stream.id

    @property
    def prompt_tokens(self) -> int:
        return self.stream.prompt_tokens

    def batches(self, pace: Pace) -> AsyncIterator[list[Delta]]:
        return gathered(self.stream, pace)


def on_thread(config: EngineConfig, progress: Progress) -> "EngineClient":
    """Run the engine on a thread, importing torch into this process."""
    open_torch()
    from engine.early import import_torch
    from engine.host.thread import EngineThread
    from engine.start import start

    return EngineThread(start(config, progress, found=lambda folder: import_torch()))


def in_process(log_file: Path) -> "Launch":
    """Run the engine in a child process, which has its own interpreter and logs to the file."""

    def launch(config: EngineConfig, progress: Progress) -> "EngineClient":
        from engine.host.process import EngineProcess

        private_folder(log_file.parent)
        return EngineProcess(config, log_file, progress=progress)

    return launch


Launch = Callable[[EngineConfig, Progress], "EngineClient"]


class LocalBackend:
    """Launches the engine from a thread, and prepares prompts in threads."""

    def __init__(
        self,
        config: EngineConfig,
        launch: Launch = on_thread,
        disk: DiskRoom | None = None,
        forms: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`disk`: where this or an earlier engine keeps blocks of chats. `forms`: as of `_converted`."""
        self._launch, self._disk, self._given = launch, disk, config
        # The forms that weights and cache were converted to, by model.
        self._converted: dict[str, dict[str, str]] = {config.model: dict(forms)}
        self._config = self.config_of(config.model)
        self._switched = dict[str, bool]()  # techniques that were switched on or off
        self._engine: EngineClient | None = None
        self._handlers: list[Handover[Event]] = []
        self._unsubscribe: Callable[[], None] = lambda: None
        self._loading = self._opens_thinking = False
        self._trouble = "the engine is not loaded"

    @property
    def elsewhere(self) -> str:
        return ""

    @property
    def starts(self) -> bool:
        return True

    @property
    def replacement(self) -> str:
        return ""

    @property
    def has_template(self) -> bool:
        return self._host.has_template

    @property
    def opens_thinking(self) -> bool:
        return self._opens_thinking

    async def load(self, progress: Progress) -> Snapshot:
        loop, reported = asyncio.get_running_loop(), 0.0

        def tell(done: int, total: int) -> None:
            nonlocal reported
            if (now := time.monotonic()) - reported >= _UPDATE_EVERY or done >= total:
                reported = now
                call_on(loop, progress, done, total)

        def start_engine() -> Snapshot:
            try:
                with loading():
                    self._engine = self._launch(self._config, tell)
                forms = self._converted.setdefault(self._config.model, {})
                self._unsubscribe = self._engine.subscribe(partial(self._hear, forms))
                reasons = any(OPEN in each for each in self._engine.templates.values())
                self._opens_thinking = reasons and self._engine.opens_thinking()
                self._switch_again(self._engine)
            finally:
                self._loading = False
            return self._engine.snapshot()

        self._loading = True
        try:
            return await in_thread(start_engine)
        except Exception as error:
            self._trouble = f"the engine failed to load: {str(error) or type(error).__name__}"
            raise

    async def switch(self, model: str, progress: Progress) -> Snapshot:
        await in_thread(self._close_engine)
        self._config = self.config_of(model)
        return await self.load(progress)

    def config_of(self, model: str) -> EngineConfig:
        """The configuration to load a model with: in the form that it was last converted to."""
        forms: dict[str, Any] = self._converted.get(model, {})
        if model != self._given.model:  # adapters and random weights are for that one only
            forms = forms | {"adapters": (), "dummy_weights": False}
        return replace(self._given, model=model, **forms)

    def _switch_again(self, engine: "EngineClient") -> None:
        """Switch a new engine's techniques as those of the last one."""
        for name, on, _ in engine.snapshot().switches if self._switched else ():
            if self._switched.get(name, on) != on:
                engine.send(SetSwitch(name, not on)).result()

    def _close_engine(self) -> None:
        """Close the engine and free its memory, before the next one measures free memory."""
        host, self._engine = self._engine, None
        if host is None:
            return
        self._trouble = "another model is loading"
        self._unsubscribe()  # its end is expected
        host.close()
        del host
        gc.unfreeze()  # the engine is in reference cycles, and frozen ones would never be collected
        gc.collect()
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            torch.cuda.empty_cache()

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
    ) -> LocalReply:
        stream = await in_thread(
            lambda: self._host.submit(
                prompt, params, deadline=deadline, reply_prefix=reply_prefix, chat=chat, adapter=adapter
            )
        )
        await asyncio.wrap_future(stream.accepted)
        return LocalReply(stream)

    async def resume(self, tag: str) -> None:
        """None: the engine belongs to this screen, so no reply outlives it."""

    async def send(self, command: Command[T]) -> T:
        return await asyncio.wrap_future(self._host.send(command))

    async def fork(self, id: int, params: SamplingParams, *, tag: str = "", chat: str = "") -> LocalReply:
        stream = self._host.fork(id, params, chat)
        await asyncio.wrap_future(stream.accepted)
        return LocalReply(stream)

    async def forget_chat(self, chat: str) -> bool:
        if (disk := self._disk) is not None:
            await in_thread(lambda: delete_chat(disk, chat))
        return disk is not None

    async def count(self, prompt: Prompt) -> int:
        return await in_thread(lambda: self._host.count(prompt))

    async def layout(self, prompt: Prompt) -> PromptLayout:
        return await in_thread(lambda: self._host.layout(prompt))

    async def texts(self, tokens: Sequence[int], after: Sequence[int] = ()) -> list[str]:
        return await in_thread(lambda: self._host.texts(tokens, after))

    async def snapshot(self) -> Snapshot:
        return await in_thread(self._host.snapshot)

    def subscribe(self, handler: Callable[[Sequence[Event]], None]) -> None:
        self._handlers.append(Handover(handler))

    def _hear(self, forms: dict[str, str], event: Event) -> None:
        """Pass on an event. Runs on the engine's thread, perhaps while there is a new subscriber."""
        _note_form(event, forms)
        if isinstance(event, Switched):
            self._switched[event.name] = event.on
        for handler in self._handlers:
            handler(event)

    def words(self, tokens: Sequence[int]) -> list[str]:
        pieces = self._engine.pieces(tokens) if self._engine else []
        return [piece.decode(errors="replace") for piece in pieces]

    def close(self) -> bool:
        if self._engine is None:
            return not self._loading
        closing = threading.Thread(target=self._engine.close, name="minichat-close", daemon=True)
        closing.start()
        closing.join(_CLOSE_WITHIN)
        return not closing.is_alive()

    @property
    def _host(self) -> "EngineClient":
        if self._engine is None:
            raise EngineDead(self._trouble)
        return self._engine


def _note_form(event: Event, forms: dict[str, str]) -> None:
    """Note the form that weights or cache have now."""
    match event:
        case Quantized(scheme=scheme, error=""):
            forms["quantization"] = scheme
        case Recached(scheme=scheme):
            forms["kv_scheme"] = scheme
