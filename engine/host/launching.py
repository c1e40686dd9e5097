"""Starts the process of an engine: what `EngineProcess` talks to."""

import json
import os
import signal
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple, Protocol

from engine.api.config import EngineConfig
from engine.host.frames import FrameSocket
from engine.kv.pinned import bytes_ahead

_LOG_BYTES = 2**20  # a longer log is truncated at startup
# numpy has a thread for each core, for products, of which an engine has none. By default each of them looks
# for work during 2^26 cycles before it sleeps: a second of processor time on 16 cores.
_SLEEPING = {"OPENBLAS_THREAD_TIMEOUT": "18"}


class Ahead(NamedTuple):
    """What the process of an engine does before it has the configuration."""

    device: str = ""  # of an engine with a model, for which it imports torch at once
    pinned: int = 0  # bytes of host memory to pin meanwhile, if it has a GPU
    tp: int = 1  # the processes of other ranks that it starts
    pp: int = 1

    @classmethod
    def of(cls, config: EngineConfig) -> "Ahead":
        ranks = (config.tp, config.pp) if config.meet is None else ()
        return cls(config.device, bytes_ahead(config), *ranks)


NOTHING = Ahead()


class ChildProcess(Protocol):
    """The process of an engine, on this machine or on another one."""

    @property
    def pid(self) -> int: ...

    @property
    def log(self) -> str:
        """Where its log is."""
        ...

    def kill(self) -> None: ...

    def ended(self, within: float) -> str:
        """Wait for its end, or kill it after some seconds. Return how it ended."""
        ...


Launch = Callable[[Path], tuple[ChildProcess, FrameSocket]]  # with its log file


class LocalChild:
    """A process of this machine."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process, self.log = process, str(log)

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        self._process.kill()

    def ended(self, within: float) -> str:
        try:
            return describe_exit(self._process.wait(within))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return describe_exit(None)


def launch_here(log: Path, ahead: Ahead = NOTHING) -> tuple[LocalChild, FrameSocket]:
    """Start it on this machine. A socket pair connects it, which no other process can reach."""
    ours, theirs = socket.socketpair()
    with theirs, open_log(log) as out:
        process = spawn(theirs.fileno(), out, ahead=ahead)
    return LocalChild(process, log), FrameSocket(ours)


def launching_now(log: Path, ahead: Ahead = NOTHING) -> Launch:
    """Start a process now, which the first call of the returned function gets. Later calls start others."""
    first = [launch_here(log, ahead)]
    return lambda log: first.pop() if first else launch_here(log, ahead)


def spawn(
    connection: int,
    out: IO[bytes],
    lifeline: int | None = None,
    ahead: Ahead = NOTHING,
    passed: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start the process. It also ends when the other end of the pipe `lifeline` is closed.

    `passed`: descriptors that it gets, too.
    """
    passed = [connection, *passed] if lifeline is None else [connection, lifeline, *passed]
    given = [str(connection), "" if lifeline is None else str(lifeline), json.dumps(ahead)]
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "engine.host.child", *given],
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=out,
        pass_fds=passed,
        env=child_environment(),
        start_new_session=True,  # it must not receive Ctrl+C or the terminal's hangup
    )


def child_environment() -> dict[str, str]:
    """Return the child's environment. Run from a checkout, the child finds the engine on PYTHONPATH."""
    root, usual = str(Path(__file__).resolve().parents[2]), dict(_SLEEPING | os.environ)
    if root in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        return usual
    return usual | {"PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))}


def let_threads_sleep() -> None:
    """Do the same in this process, before it imports numpy."""
    for name, value in _SLEEPING.items():
        os.environ.setdefault(name, value)


def open_log(file: Path) -> IO[bytes]:
    return file.open("wb" if _long(file) else "ab")


def _long(file: Path) -> bool:
    with suppress(FileNotFoundError):
        return file.stat().st_size > _LOG_BYTES
    return False


def describe_exit(code: int | None) -> str:
    """Describe how a process ended, by its exit code. None: it hung and was killed."""
    if code is None:
        return "stopped responding and was killed"
    if code >= 0:
        return f"ended with exit code {code}"
    name = next((each.name for each in signal.Signals if each == -code), f"signal {-code}")
    return f"was killed by {name}" + (" (possibly out of memory)" if code == -signal.SIGKILL else "")
