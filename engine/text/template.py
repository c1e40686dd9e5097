"""Chat templates, rendered in a helper process that can be killed at any time."""

import json
import signal
import socket
import subprocess
import sys
import threading
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from engine.api.errors import TemplateError

WORKER = Path(__file__).with_name("template_worker.py")
START_SECONDS = 60.0  # for a busy machine; importing jinja2 takes a tenth of a second
WALL_SECONDS = 10  # seconds of wall time allowed per second of the CPU time limit


class TemplateRenderer:
    """Renders templates one at a time, from any thread. The helper process starts on first use."""

    def __init__(self, *, seconds: float = 2.0, megabytes: int = 512) -> None:
        self.seconds = seconds  # of CPU time, so that a valid template does not fail on a busy machine
        self.megabytes = megabytes
        self._lock = threading.Lock()
        self._worker: _Worker | None = None

    def render(self, template: str, values: dict[str, Any]) -> str:
        """Return the rendered text. `values` may hold only JSON types."""
        request = {"template": template, "values": values, "seconds": self.seconds}
        with self._lock:
            answer = self._ask(json.dumps(request).encode())
        if "error" in answer:
            raise TemplateError(f"the chat template {answer['error']}", field="messages")
        return answer["text"]

    def close(self) -> None:
        with self._lock:
            self._drop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, request: bytes) -> dict[str, str]:
        if self._worker is None or not self._worker.alive():
            self._drop()
            self._worker = _Worker.start(self.megabytes)
        try:
            return self._worker.ask(request, self.seconds * WALL_SECONDS)
        except OSError as error:
            code = self._drop()
            late = code == -signal.SIGPROF or isinstance(error, TimeoutError)
            reason = (
                f"took more than {self.seconds:g} s" if late else f"crashed its helper process (code {code})"
            )
            raise TemplateError(f"the chat template {reason}; nothing was sent to the model") from None

    def _drop(self) -> int:
        worker, self._worker = self._worker, None
        return worker.stop() if worker else 0


@dataclass(eq=False)
class _Worker:
    """The helper process, and the socket that is its stdin and stdout."""

    process: subprocess.Popen[bytes]
    socket: socket.socket

    def __post_init__(self) -> None:
        self._finalizer = weakref.finalize(self, _end, self.process, self.socket)

    @classmethod
    def start(cls, megabytes: int) -> Self:
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-P", str(WORKER), str(megabytes)],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.DEVNULL,
                process_group=0,  # it must not receive the terminal's Ctrl+C
            )
        worker = cls(process, ours)
        try:
            worker._receive(START_SECONDS)
        except OSError:
            code = worker.stop()
            raise TemplateError(
                f"the helper process for chat templates did not start (exit code {code}); to see why, run: "
                f"{sys.executable} {WORKER} {megabytes}"
            ) from None
        return worker

    def alive(self) -> bool:
        return self.process.poll() is None

    def ask(self, request: bytes, timeout: float) -> dict[str, str]:
        self.socket.settimeout(timeout)
        self.socket.sendall(len(request).to_bytes(8, "big") + request)
        return self._receive(timeout)

    def stop(self) -> int:
        """Stop the process and return its exit code, which is SIGKILL's if it was still running."""
        self._finalizer()
        return self.process.returncode

    def _receive(self, timeout: float) -> dict[str, str]:
        self.socket.settimeout(timeout)
        answer: dict[str, str] = json.loads(self._exactly(int.from_bytes(self._exactly(8), "big")))
        return answer

    def _exactly(self, length: int) -> bytes:
        frame = bytearray()
        while len(frame) < length:
            if not (part := self.socket.recv(min(length - len(frame), 1 << 20))):
                raise ConnectionError("the helper process has ended")
            frame += part
        return bytes(frame)


def _end(process: subprocess.Popen[bytes], connection: socket.socket) -> None:
    connection.close()
    process.kill()
    process.wait()
