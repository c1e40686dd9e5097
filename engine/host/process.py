"""The engine in a process of its own, so that neither its steps nor its end are this process's."""

import itertools
import os
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
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
from engine.host.base import Host, Sink
from engine.host.frames import FrameSocket
from engine.text.bare import BareTokenizer
from engine.text.chat import ChatFormat
from engine.text.tokenizer import Tokenizer

T = TypeVar("T")
Progress = Callable[[int, int], None]  # bytes done, bytes in all

_ENDS_WITHIN = 5.0  # seconds from the end of the socket to that of the process
_LOG_BYTES = 2**20  # a log that is longer begins anew


@dataclass(frozen=True, slots=True)
class _Question:
    """One that the child has not answered yet. `read`: makes the answer of its JSON."""

    answer: Future[Any]
    read: Callable[[Any], Any]


@dataclass(slots=True)
class _Request:
    """One whose deltas come."""

    sink: Sink
    id: int | None = None  # once the engine has taken it


class EngineProcess(Host):
    """Starts an engine in a child process, and speaks to it. Prompts are tokenized here.

    Whatever else the child has to say goes to `log_file`: nothing of it touches this process's terminal.
    """

    def __init__(self, config: EngineConfig, log_file: Path, *, progress: Progress | None = None) -> None:
        self._log_file, self._progress = log_file, progress
        self._bus = Bus()
        self._numbers = itertools.count()
        self._gate = threading.Lock()  # over what follows
        self._error = ""  # why the process is gone
        self._last: Snapshot | None = None  # there is one when this has been made
        self._closing = False
        self._asked: dict[int, _Question] = {}
        self._requests: dict[int, _Request] = {}  # by the number of the command that began them
        self._process, self._frames = _spawn(log_file)
        self._outgoing: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._reader = threading.Thread(target=self._read, name="engine-reader", daemon=True)
        self._writer = threading.Thread(target=self._write, name="engine-writer", daemon=True)
        self._reader.start()
        self._writer.start()
        try:
            start = partial(wire.config_to_json, config)
            ready = self._ask("start", start, lambda answer: answer).result()
            self._last = wire.decode_snapshot(ready["snapshot"])
            folder, vocab = ready["tokenizer"], ready["vocab"]
            stand_in = cast(Tokenizer, BareTokenizer(vocab))
            self._chat = ChatFormat(Tokenizer.load(Path(folder)) if folder else stand_in)
        except BaseException:
            self._leave()
            raise

    # From any thread

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, command: Command[T], sink: Sink | None = None) -> Future[T]:
        read = partial(decode_result, type(command))
        return self._ask("command", partial(encode_command, command), read, sink)

    def snapshot(self) -> Snapshot:
        """Of a process that is gone: the last one, with nothing running, and why."""
        if threading.current_thread() is self._reader:
            raise RuntimeError(
                "a handler of events can only hand them on: the answer would come to its own thread"
            )
        try:
            self._last = super().snapshot()
        except EngineDead:
            if self._closing:
                raise
        assert self._last is not None
        return self._last.ended(self._error) if self._error else self._last

    def subscribe(self, handler: Handler) -> Callable[[], None]:
        """The handler runs on the thread that reads: it must only hand the event on."""
        return self._bus.subscribe(handler)

    def close(self) -> None:
        """Ends what runs, and the process."""
        self._leave()
        self._chat.close()

    def _leave(self) -> None:
        self._closing = True
        self._frames.end()
        self._outgoing.put(None)
        self._writer.join()
        self._reader.join()

    def _ask(
        self, what: str, write: Callable[[], Any], read: Callable[[Any], T], sink: Sink | None = None
    ) -> Future[T]:
        """The answer comes at most one step later, or with the end of the process."""
        question = _Question(Future(), read)
        question.answer.set_running_or_notify_cancel()  # a reader who leaves cannot cancel it
        with self._gate:
            error, number = self._error, next(self._numbers)
            if not error:
                self._asked[number] = question
                if sink is not None:
                    self._requests[number] = _Request(sink)
        if error:
            question.answer.set_exception(EngineDead(error))
        else:
            self._outgoing.put(partial(self._send, number, what, write))
        return question.answer

    # On the thread that writes: the socket may be full

    def _write(self) -> None:
        while (send := self._outgoing.get()) is not None:
            send()

    def _send(self, number: int, what: str, write: Callable[[], Any]) -> None:
        try:
            self._frames.send({"ask": number, what: write()})
        except OSError:
            pass  # the process is gone: the reader has the reason
        except EngineError as error:
            self._refuse(number, error)
        except (TypeError, ValueError) as error:  # no JSON can be made of it
            self._refuse(number, BadInput(f"it cannot be sent to the engine's process: {error}"))

    def _refuse(self, number: int, error: EngineError) -> None:
        with self._gate:
            question = self._asked.pop(number, None)
            self._requests.pop(number, None)
        if question is not None:
            question.answer.set_exception(error)

    # On the thread that reads

    def _read(self) -> None:
        try:
            for frame in self._frames:
                self._take(frame)
        except Exception as error:
            log.exception("the engine's process said what cannot be read")
            self._process.kill()
            self._end(f"the engine's process said what cannot be read: {type(error).__name__}: {error}")
        else:
            self._end(self._reason())
        finally:
            self._frames.close()

    def _take(self, frame: dict[str, Any]) -> None:
        if "progress" in frame and self._progress:
            self._progress(*frame["progress"])
        for answer in frame.get("answers", ()):
            number = answer["to"]
            if "error" in answer:
                self._refuse(number, wire.decode_error(answer["error"]))
            else:
                question = self._asked.pop(number)
                result = question.read(answer["is"])
                if number in self._requests:
                    self._requests[number].id = result.id
                question.answer.set_result(result)
        for event in frame.get("events", ()):  # before the deltas: who reads those knows how it was let in
            self._bus.emit(wire.decode_event(event))
        for number, written in frame.get("deltas", ()):
            delta = wire.decode_delta(written)
            request = self._requests.pop(number) if delta.last else self._requests[number]
            request.sink(delta)

    def _reason(self) -> str:
        """Why nothing comes any more, and where to read on."""
        try:
            code = self._process.wait(_ENDS_WITHIN)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            code = None
        if self._closing:
            return "the engine was closed"
        return f"the engine's process {_ending(code)}; its log is {self._log_file}"

    def _end(self, reason: str) -> None:
        """Everybody who waits learns why."""
        with self._gate:
            self._error = reason
            asked, self._asked = self._asked, {}
            requests, self._requests = self._requests, {}
        for request in requests.values():
            if request.id is not None:
                request.sink(Delta(request.id, finish=Finish.FAILED, error=reason))
        for question in asked.values():
            question.answer.set_exception(EngineDead(reason))
        self._bus.emit(Died(self._last.step if self._last else 0, time.monotonic(), reason))


def _spawn(file: Path) -> tuple[subprocess.Popen[bytes], FrameSocket]:
    ours, theirs = socket.socketpair()
    with theirs, file.open("wb" if _long(file) else "ab") as out:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "engine.host.child", str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            pass_fds=[theirs.fileno()],
            env=child_environment(),
            start_new_session=True,  # neither a Ctrl+C nor the end of the terminal is meant for it
        )
    return process, FrameSocket(ours)


def child_environment() -> dict[str, str]:
    """A child of a bare checkout finds the engine where its parent did."""
    root = str(Path(__file__).resolve().parents[2])
    if root in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        return dict(os.environ)
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))}


def _long(file: Path) -> bool:
    with suppress(FileNotFoundError):
        return file.stat().st_size > _LOG_BYTES
    return False


def _ending(code: int | None) -> str:
    """How a process ended, by its exit code; None where it had to be ended."""
    if code is None:
        return "said no more, and was ended"
    if code >= 0:
        return f"ended with exit code {code}"
    name = next((each.name for each in signal.Signals if each == -code), f"signal {-code}")
    return f"was ended by {name}" + (" (perhaps because memory ran out)" if code == -signal.SIGKILL else "")
