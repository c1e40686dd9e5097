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
from base64 import b64encode
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, Unpack, cast

from engine import wire
from engine.codec import codec
from engine.config import EngineConfig
from engine.errors import BadInput, EngineDead
from engine.events import Bus, Delta, Died, Handler, log
from engine.host.frames import Frames
from engine.host.prompts import Prompt, prompt_ids
from engine.host.protocol import Order
from engine.host.stream import Stream
from engine.host.words import Words
from engine.params import SamplingParams
from engine.request import Finish
from engine.snapshot import Snapshot, Speeds
from engine.text.bare import BareTokenizer
from engine.text.chat import Chat
from engine.text.tokenizer import Tokenizer

Progress = Callable[[int, int], None]  # bytes done, bytes in all

_ENDS_WITHIN = 5.0  # seconds from the end of the socket to that of the process
_LOG_BYTES = 2**20  # a log that is longer begins anew


class EngineProcess(Words):
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
        self._answers: dict[int, Future[Any]] = {}
        self._streams: dict[int, Stream] = {}  # by the number of the question that began them
        self._process, self._frames = _spawn(log_file)
        self._reader = threading.Thread(target=self._read, name="engine-reader", daemon=True)
        self._reader.start()
        try:
            ready = self._ask("start", config=wire.config_to_json(config))
            self._last = wire.decode_snapshot(ready["snapshot"])
            folder, vocab = ready["tokenizer"], ready["vocab"]
            stand_in = cast(Tokenizer, BareTokenizer(vocab))
            self._chat = Chat(Tokenizer.load(Path(folder)) if folder else stand_in)
        except BaseException:
            self._leave()
            raise

    # From any thread

    @property
    def pid(self) -> int:
        return self._process.pid

    def submit(self, prompt: Prompt, params: SamplingParams, **order: Unpack[Order]) -> Stream:
        ids, continues = prompt_ids(prompt, self._chat)
        stream = Stream(len(ids))
        stream.id = self._ask(
            "submit",
            stream,
            prompt=ids,
            continues=continues,
            params=wire.params_to_json(params),
            salt=b64encode(order.pop("salt", b"")).decode(),
            said=list(order.pop("said", ())),
            **order,
        )
        return stream

    def fork(self, id: int, params: SamplingParams | None = None) -> Stream:
        stream = Stream(0)
        changed = None if params is None else wire.params_to_json(params)
        stream.id, stream.prompt_tokens = self._ask("fork", stream, id=id, params=changed)
        return stream

    def update(self, id: int, **changes: Any) -> None:
        self._ask("update", id=id, changes=wire.changes_to_json(changes))

    def abort(self, *ids: int) -> None:
        self._ask("abort", ids=ids)

    def preempt(self, id: int) -> None:
        self._ask("preempt", id=id)

    def set_switch(self, name: str, on: bool) -> None:
        self._ask("set_switch", name=name, on=on)

    def set_quantization(self, scheme: str) -> None:
        self._ask("set_quantization", scheme=scheme)

    def cancel_quantization(self) -> None:
        self._ask("cancel_quantization")

    def set_kv_scheme(self, scheme: str) -> None:
        self._ask("set_kv_scheme", scheme=scheme)

    def warm(self) -> None:
        self._ask("warm")

    def snapshot(self) -> Snapshot:
        """Of a process that is gone: the last one, with nothing running, and why."""
        try:
            self._last = wire.decode_snapshot(self._ask("snapshot"))
        except EngineDead:
            if self._closing:
                raise
        assert self._last is not None
        return self._last.ended(self._error) if self._error else self._last

    def speeds(self) -> Speeds:
        return codec(Speeds).read(self._ask("speeds"))

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
        self._reader.join()

    def _ask(self, what: str, stream: Stream | None = None, **values: Any) -> Any:
        """Waits for the answer, which comes at most one step later, or with the end of the process."""
        if threading.current_thread() is self._reader:
            raise RuntimeError(
                "a handler of events can only hand them on: the answer would come to its own thread"
            )
        answer: Future[Any] = Future()
        with self._gate:
            if self._error:
                raise EngineDead(self._error)
            number = next(self._numbers)
            self._answers[number] = answer
            if stream is not None:
                self._streams[number] = stream
        try:
            self._frames.send({"ask": number, "what": what, "with": values})
        except OSError:
            pass  # the process is gone: the reader has the reason
        except (TypeError, ValueError) as error:  # no JSON can be made of it
            del self._answers[number]
            self._streams.pop(number, None)
            raise BadInput(f"{what}: {error}") from None
        return answer.result()

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
            waiting = self._answers.pop(answer["to"])
            if "error" in answer:
                self._streams.pop(answer["to"], None)
                waiting.set_exception(wire.decode_error(answer["error"]))
            else:
                waiting.set_result(answer["is"])
        for event in frame.get("events", ()):  # before the deltas: who reads those knows how it was let in
            self._bus.emit(wire.decode_event(event))
        for number, written in frame.get("deltas", ()):
            delta = wire.decode_delta(written)
            stream = self._streams.pop(number) if delta.last else self._streams[number]
            stream.put(delta)

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
            answers, self._answers = self._answers, {}
            streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.put(Delta(stream.id, finish=Finish.FAILED, error=reason))
        for answer in answers.values():
            answer.set_exception(EngineDead(reason))
        self._bus.emit(Died(self._last.step if self._last else 0, time.monotonic(), reason))


def _spawn(file: Path) -> tuple[subprocess.Popen[bytes], Frames]:
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
    return process, Frames(ours)


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
