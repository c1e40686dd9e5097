"""The engine's thread: commands in, deltas and snapshots out."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, TypeVar, Unpack

from engine.core import Engine
from engine.errors import EngineDead, EngineError
from engine.events import Handler, log
from engine.host.prompts import Prompt, prompt_ids
from engine.host.protocol import Order
from engine.host.stream import Stream
from engine.host.words import Words
from engine.params import Grammar, SamplingParams
from engine.snapshot import Snapshot, Speeds
from engine.text.chat import Chat

T = TypeVar("T")
_Command = Callable[[], None]


class EngineThread(Words):
    """Owns an engine and steps it. Callers wait for the answer to a command, at most one step."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._chat = Chat(engine.tokenizer)
        self._commands: SimpleQueue[_Command | None] = SimpleQueue()
        self._closing = False
        self._gate = threading.Lock()  # no command slips in behind the closing one
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    # From any thread

    def submit(self, prompt: Prompt, params: SamplingParams, **order: Unpack[Order]) -> Stream:
        """A new request. Templates, tokenizing and grammars are worked on here, on the caller's thread."""
        ids, continues = prompt_ids(prompt, self._chat)
        self.check_grammar(params.grammar)
        stream = Stream(len(ids))

        def begin() -> None:
            stream.id = self._engine.submit(ids, params, stream.put, continues=continues, **order)

        self._ask(begin)
        return stream

    def fork(self, id: int, params: SamplingParams | None = None) -> Stream:
        self.check_grammar(params and params.grammar)
        stream = Stream(0)

        def begin() -> None:
            stream.id = self._engine.fork(id, stream.put, params)
            stream.prompt_tokens = self._engine.length(stream.id)

        self._ask(begin)
        return stream

    def update(self, id: int, **changes: Any) -> None:
        self.check_grammar(changes.get("grammar"))
        self._ask(lambda: self._engine.update(id, **changes))

    def check_grammar(self, grammar: object) -> None:
        """What is none is left for the engine to refuse."""
        if isinstance(grammar, Grammar):
            self._engine.check_grammar(grammar)

    def abort(self, *ids: int) -> None:
        """All of them between the same two steps."""

        def end() -> None:
            for id in ids:
                self._engine.abort(id)

        self._ask(end)

    def preempt(self, id: int) -> None:
        self._ask(lambda: self._engine.preempt(id))

    def set_switch(self, name: str, on: bool) -> None:
        self._ask(lambda: self._engine.set_switch(name, on))

    def set_quantization(self, scheme: str) -> None:
        self._ask(lambda: self._engine.set_quantization(scheme))

    def cancel_quantization(self) -> None:
        self._ask(self._engine.cancel_quantization)

    def set_kv_scheme(self, scheme: str) -> None:
        self._ask(lambda: self._engine.set_kv_scheme(scheme))

    def warm(self) -> None:
        if self._engine.grammars is not None:
            self._engine.grammars.warm()

    def snapshot(self) -> Snapshot:
        return self._ask(self._engine.snapshot)

    def speeds(self) -> Speeds:
        """Measured when first asked, here, on the caller's thread: steps go on beside it."""
        return self._engine.runner.speeds()

    def subscribe(self, handler: Handler) -> Callable[[], None]:
        """The handler runs on the engine's thread: it must only hand the event on."""
        return self._engine.bus.subscribe(handler)

    def close(self) -> None:
        """Ends what runs, and the thread."""
        with self._gate:
            self._closing = True
            self._commands.put(None)
        self._thread.join()

    def _ask(self, command: Callable[[], T]) -> T:
        """Has the engine's thread run it between two steps, and waits for what it returns or raises."""
        if threading.current_thread() is self._thread:
            return command()
        return self.later(command).result()

    def later(self, command: Callable[[], T]) -> Future[T]:
        """The same for whoever does not wait."""
        answer: Future[T] = Future()

        def run() -> None:
            try:
                answer.set_result(command())
            except BaseException as error:
                answer.set_exception(error)
                if not isinstance(error, EngineError):
                    raise  # a defect, which may have left things half changed: the engine ends

        with self._gate:
            if self._closing:
                raise EngineDead("the engine has been closed")
            self._commands.put(run)
        return answer

    # On the engine's thread

    def _run(self) -> None:
        engine = self._engine
        while not self._closing:
            try:
                self._obey(wait=not engine.busy)
                if not engine.error and not engine.step() and engine.busy:
                    self._obey(wait=True, timeout=engine.pause())
            except Exception as error:
                log.exception("the engine has stopped")
                engine.die(f"{type(error).__name__}: {error}")
        if not engine.error:
            engine.die("the engine was closed")
        self._obey(wait=False)
        self._chat.close()

    def _obey(self, *, wait: bool, timeout: float | None = None) -> None:
        """Runs the commands that have come; with `wait`, not before there is one."""
        try:
            command = self._commands.get(wait, timeout)
            while True:
                if command is not None:
                    command()
                command = self._commands.get(False)
        except Empty:
            return
