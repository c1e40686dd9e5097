"""Commands on their way to the engine's thread, which runs them between two steps."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from engine.commands import Command
from engine.core import Engine
from engine.errors import EngineDead, EngineError, UnknownCommand
from engine.handlers import HANDLERS, Handler
from engine.reply import Sink

T = TypeVar("T")


class Mailbox:
    """Takes from any thread, and never waits. The answer to each command is a future."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._waiting: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._gate = threading.Lock()  # no command slips in behind the closing one
        self.closed = False

    def put(self, command: Command[T], sink: Sink | None = None) -> Future[T]:
        """`sink`: where the deltas go of a command that begins a request."""
        answer: Future[T] = Future()
        answer.set_running_or_notify_cancel()  # a reader who leaves cannot cancel it
        handler = HANDLERS.get(type(command))
        if handler is None:
            answer.set_exception(UnknownCommand(f"this engine has no handler for {command.verb}"))
            return answer
        work = self._work(handler, command, sink)
        if handler.beside:
            self._beside(partial(_settle, answer, work))
        elif before := handler.first and handler.first(self._engine, command):
            self._beside(partial(self._put_after, before, answer, work))
        else:
            self._put(answer, work)
        return answer

    def _work(self, handler: Handler, command: Command[T], sink: Sink | None) -> Callable[[], T]:
        if sink is None:
            return partial(handler.run, self._engine, command)
        return partial(handler.run, self._engine, command, sink)

    def _put(self, answer: Future[T], work: Callable[[], T]) -> None:
        with self._gate:
            closed = self.closed
            if not closed:
                self._waiting.put(partial(_run, answer, work))
        if closed:
            answer.set_exception(EngineDead("the engine has been closed"))

    def _put_after(self, before: Callable[[], object], answer: Future[T], work: Callable[[], T]) -> None:
        try:
            before()
        except Exception as error:  # it belongs to the sender
            answer.set_exception(error)
        else:
            self._put(answer, work)

    def _beside(self, work: Callable[[], object]) -> None:
        threading.Thread(target=work, name="engine-beside", daemon=True).start()

    def close(self) -> None:
        """Nothing more is taken; a `drain` that waits returns."""
        with self._gate:
            self.closed = True
            self._waiting.put(None)

    def drain(self, *, wait: bool = False, timeout: float | None = None) -> None:
        """On the engine's thread: runs what has come; with `wait`, not before there is something."""
        if not wait and self._waiting.empty():
            return
        try:
            run = self._waiting.get(wait, timeout)
            while True:
                if run is not None:
                    run()
                run = self._waiting.get(False)
        except Empty:
            return


def _settle(answer: Future[T], work: Callable[[], T]) -> BaseException | None:
    """Whatever it raises belongs to the sender."""
    try:
        answer.set_result(work())
    except BaseException as error:
        answer.set_exception(error)
        return error
    return None


def _run(answer: Future[Any], work: Callable[[], Any]) -> None:
    """Between two steps a defect may leave things half changed: it goes on, and ends the engine."""
    error = _settle(answer, work)
    if error is not None and not isinstance(error, EngineError):
        raise error
