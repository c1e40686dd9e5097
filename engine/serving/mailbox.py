"""Queues commands for the engine's thread, which runs them between steps."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from engine.api.commands import Command
from engine.api.errors import EngineDead, EngineError, UnknownCommand, place
from engine.serving.engine import Engine
from engine.serving.handlers import HANDLERS, Handler
from engine.serving.reply import Sink

T = TypeVar("T")
_HELPERS = 8  # threads for work concurrent with the steps
_CLOSED = "the engine has been closed"


class Mailbox:
    """Accepts commands from any thread without waiting. The answer to each is a future."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._waiting: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._helpers = ThreadPoolExecutor(_HELPERS, "engine-helper")
        self._gate = threading.Lock()  # no command may be queued after the mailbox is closed
        self.closed = False

    def put(
        self,
        command: Command[T],
        sink: Sink | None = None,
        told: Callable[[Future[T]], None] | None = None,
    ) -> Future[T]:
        """Queue a command. `sink` receives the deltas of a command that starts a request.

        `told`: called with the answer before any event or delta that follows from it.
        """
        answer: Future[T] = Future()
        if told is not None:
            answer.add_done_callback(told)
        answer.set_running_or_notify_cancel()  # a reader that leaves cannot cancel it
        handler = HANDLERS.get(type(command))
        if handler is None:
            answer.set_exception(UnknownCommand(f"this engine has no handler for {command.verb}"))
            return answer
        work = self._work(handler, command, sink)
        if handler.concurrent:
            taken = self._take(self._helpers.submit, partial(_settle, answer, work))
        elif before := handler.first and handler.first(self._engine, command):
            taken = self._take(self._helpers.submit, partial(self._put_after, before, answer, work))
        else:
            taken = self._take(self._waiting.put, partial(_run, answer, work))
        if not taken:
            answer.set_exception(EngineDead(_CLOSED))
        return answer

    def _work(self, handler: Handler, command: Command[T], sink: Sink | None) -> Callable[[], T]:
        if sink is None:
            return partial(handler.run, self._engine, command)
        return partial(handler.run, self._engine, command, sink)

    def _take(self, put: Callable[[Callable[[], None]], object], work: Callable[[], None]) -> bool:
        with self._gate:
            if not self.closed:
                put(work)
            return not self.closed

    def _put_after(self, before: Callable[[], object], answer: Future[T], work: Callable[[], T]) -> None:
        try:
            before()
        except Exception as error:  # the sender gets it
            answer.set_exception(error)
        else:
            if not self._take(self._waiting.put, partial(_run, answer, work)):
                answer.set_exception(EngineDead(_CLOSED))

    def close(self) -> None:
        """Stop accepting commands. A waiting `drain` returns."""
        with self._gate:
            self.closed = True
            self._waiting.put(None)
            self._helpers.shutdown(wait=False)  # work that has started still gets an answer

    def wake(self) -> None:
        """End a waiting `drain`, from any thread."""
        self._waiting.put(None)

    def drain(self, *, wait: bool = False, timeout: float | None = None) -> None:
        """Run the queued commands, on the engine's thread. `wait`: block until there is at least one."""
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


def _settle(answer: Future[Any], work: Callable[[], Any]) -> None:
    """Resolve the future. The sender gets any exception."""
    try:
        answer.set_result(work())
    except BaseException as error:
        answer.set_exception(error)


def _run(answer: Future[Any], work: Callable[[], Any]) -> None:
    """Run a command and re-raise a defect: state may be half changed, so it must end the engine."""
    try:
        answer.set_result(work())
    except EngineError as error:
        answer.set_exception(error)
    except BaseException as error:
        reason = f"{type(error).__name__}: {error} ({place(error)})"
        answer.set_exception(EngineDead(f"the engine has stopped: {reason}"))
        raise
