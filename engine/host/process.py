"""The engine in a child process, so that its steps do not slow this process and its crash does not end it."""

import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar, cast

from engine.api import wire
from engine.api.commands import Command, decode_result, encode_command
from engine.api.config import EngineConfig
from engine.api.errors import BadInput, EngineDead, EngineError
from engine.api.events import Bus, Delta, Died, Handler, log
from engine.api.request import Finish
from engine.api.snapshot import Snapshot
from engine.host.client import EngineClient, Sink
from engine.host.launching import NOTHING, Ahead, Launch, launch_here
from engine.host.packing import unpacked
from engine.text.bare import BareTokenizer
from engine.text.chat import ChatFormat
from engine.text.tokenizer import Tokenizer

T = TypeVar("T")
Progress = Callable[[int, int], None]  # bytes done, bytes in all

_ENDS_WITHIN = 5.0  # seconds the process has to exit after the socket closes
_CLOSES_WITHIN = 0.5  # likewise, if we closed it: then it exits at once, or hangs


@dataclass(frozen=True, slots=True)
class _Question:
    """A command the child has not answered yet. `read` decodes the answer's JSON."""

    answer: Future[Any]
    read: Callable[[Any], Any]


@dataclass(slots=True)
class _Request:
    """A request whose deltas are arriving."""

    command: Command[Any]
    sink: Sink
    id: int | None = None  # set once the engine has accepted it


class EngineProcess(EngineClient):
    """Starts an engine in a process of its own and talks to it. Prompts are tokenized in this process.

    The child's stdout and stderr go to `log_file`, never to this process's terminal.
    """

    def __init__(
        self,
        config: EngineConfig,
        log_file: Path,
        *,
        progress: Progress | None = None,
        phase: Callable[[str], None] | None = None,
        dry_rate: float | None = None,
        launch: Launch | None = None,
    ) -> None:
        """`progress` and `phase`: called with how far the start is, and with what it does.

        `dry_rate`: start a dry run with this many tokens per second of each reply, not a model.

        `launch`: starts the process, by default here.
        """
        self._progress, self._phase = progress, phase
        self._bus = Bus()
        self._numbers = itertools.count()
        self._gate = threading.Lock()  # guards the fields below
        self._error = ""  # why the process has ended
        self._last: Snapshot | None = None  # set by the end of __init__
        self._closing = False
        self._loading: Future[Tokenizer] | None = None
        self._lost: list[Command[Any]] = []  # ran when the process ended
        self._pending: dict[int, _Question] = {}
        self._requests: dict[int, _Request] = {}  # by the number of the command that started them
        ahead = Ahead.of(config) if dry_rate is None else NOTHING
        self._process, self._frames = launch(log_file) if launch else launch_here(log_file, ahead)
        self._outgoing: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._reader = threading.Thread(target=self._read, name="engine-reader", daemon=True)
        self._writer = threading.Thread(target=self._write, name="engine-writer", daemon=True)
        self._reader.start()
        self._writer.start()
        try:
            start = {"config": wire.config_to_json(config), "dry_rate": dry_rate}
            ready = self._ask("start", lambda: start, lambda answer: answer).result()
            self._last = wire.decode_snapshot(ready["snapshot"])
            self._chat = ChatFormat(self._tokenizer_of(ready["tokenizer"], ready["vocab"]))
        except BaseException:
            self.stop()
            raise

    def _tokenizer_of(self, folder: str | None, vocab: int) -> Tokenizer:
        if folder is None:
            return cast(Tokenizer, BareTokenizer(vocab))
        return (self._loading or Tokenizer.loading(Path(folder))).result()

    # From any thread

    @property
    def chat(self) -> ChatFormat:
        return self._chat

    @property
    def last(self) -> Snapshot:
        """The last snapshot taken."""
        assert self._last is not None
        return self._last

    @property
    def error(self) -> str:
        """Why the process has ended; empty while it runs."""
        return self._error

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, command: Command[T], sink: Sink | None = None) -> Future[T]:
        read = partial(decode_result, type(command))
        request = None if sink is None else _Request(command, sink)
        return self._ask("command", partial(encode_command, command), read, request)

    def unfinished(self) -> list[Command[Any]]:
        """Return the commands of requests that run, or ran when the process ended."""
        with self._gate:
            return self._lost or [each.command for each in self._requests.values()]

    def snapshot(self) -> Snapshot:
        """Return a snapshot. If the process has ended: the last one, with nothing running and the error."""
        if threading.current_thread() is self._reader:
            raise RuntimeError(
                "an event handler cannot take a snapshot: the answer arrives on the handler's own thread"
            )
        try:
            self._last = super().snapshot()
        except EngineDead:
            if self._closing:
                raise
        return self.last.ended(self._error) if self._error else self.last

    def subscribe(self, handler: Handler) -> Callable[[], None]:
        """Call `handler` with every event, on the reading thread. It must not block."""
        return self._bus.subscribe(handler)

    def close(self) -> None:
        """End all requests and the process."""
        self.stop()
        self._chat.close()

    def stop(self) -> None:
        """End the process. The text functions still work."""
        self._closing = True
        self._frames.end()
        self._outgoing.put(None)
        self._writer.join()
        self._reader.join()

    def _ask(
        self, what: str, write: Callable[[], Any], read: Callable[[Any], T], request: "_Request | None" = None
    ) -> Future[T]:
        """Send a question. The answer arrives after at most one step, or when the process ends."""
        question = _Question(Future(), read)
        question.answer.set_running_or_notify_cancel()  # the caller cannot cancel it
        with self._gate:
            error, number = self._error, next(self._numbers)
            if not error:
                self._pending[number] = question
                if request is not None:
                    self._requests[number] = request
        if error:
            question.answer.set_exception(EngineDead(error))
        else:
            self._outgoing.put(partial(self._send, number, what, write))
        return question.answer

    # On the writing thread, since the socket may be full

    def _write(self) -> None:
        while (send := self._outgoing.get()) is not None:
            send()

    def _send(self, number: int, what: str, write: Callable[[], Any]) -> None:
        try:
            self._frames.send({"ask": number, what: write()})
        except OSError:
            pass  # the process has ended; the reader reports why
        except EngineError as error:
            self._refuse(number, error)
        except (TypeError, ValueError) as error:  # not JSON
            self._refuse(number, BadInput(f"cannot send the command to the engine's process: {error}"))

    def _refuse(self, number: int, error: EngineError) -> None:
        with self._gate:
            question = self._pending.pop(number, None)
            self._requests.pop(number, None)
        if question is not None:
            question.answer.set_exception(error)

    # On the reading thread

    def _read(self) -> None:
        try:
            for frame in self._frames:
                self._take(frame)
        except Exception as error:
            log.exception("invalid message from the engine's process")
            self._process.kill()
            self._end(f"invalid message from the engine's process: {type(error).__name__}: {error}")
        else:
            self._end(self._reason())
        finally:
            self._frames.close()

    def _take(self, frame: dict[str, Any]) -> None:
        if "folder" in frame:  # the child loads its model now
            self._loading = Tokenizer.loading(Path(frame["folder"]))
        if "phase" in frame and self._phase:
            self._phase(frame["phase"])
        if "progress" in frame and self._progress:
            self._progress(*frame["progress"])
        for answer in frame.get("answers", ()):
            number = answer["to"]
            if "error" in answer:
                self._refuse(number, wire.decode_error(answer["error"]))
            else:
                question = self._pending.pop(number)
                result = question.read(answer["is"])
                if number in self._requests:
                    self._requests[number].id = result.id
                question.answer.set_result(result)
        for event in frame.get("events", ()):  # before the deltas, whose readers need the Admitted event
            self._bus.emit(wire.decode_event(event))
        for number, delta in unpacked(frame["deltas"]) if "deltas" in frame else ():
            request = self._requests.pop(number) if delta.last else self._requests[number]
            request.sink(delta)

    def _reason(self) -> str:
        """Return why the connection ended, and where the log is."""
        ending = self._process.ended(_CLOSES_WITHIN if self._closing else _ENDS_WITHIN)
        if self._closing:
            return "the engine was closed"
        return f"the engine's process {ending}; its log is {self._process.log}"

    def _end(self, reason: str) -> None:
        """Fail all requests and questions with the reason."""
        with self._gate:
            self._error = reason
            pending, self._pending = self._pending, {}
            requests, self._requests = self._requests, {}
            self._lost = [each.command for each in requests.values()]
        for request in requests.values():
            if request.id is not None:
                request.sink(Delta(request.id, finish=Finish.FAILED, error=reason))
        for question in pending.values():
            question.answer.set_exception(EngineDead(reason))
        self._bus.emit(Died(self._last.step if self._last else 0, time.monotonic(), reason))
