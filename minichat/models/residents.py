"""This user's engines that run without a screen, found by name.

An engine holds a file lock for its lifetime, however it ends. Process ids are not trusted, and files left by
a killed engine are never mistaken for a running one.
"""

import asyncio
import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from engine.api.errors import BadInput, EngineError
from minichat.clients.protocol import Progress
from minichat.shell.paths import Paths, files_in, private_folder

USUAL = "main"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
_LONGEST_SOCKET = 100  # bytes of a path: the limit is 108, on some systems 104
_LOOK_EVERY = 0.1  # seconds
_LOOKS = 30  # checks for the end of a process before the next signal
_LOG_BYTES = 2**20  # a longer log is truncated


@dataclass(frozen=True, slots=True)
class Record:
    """The state of an engine, in a file that only it writes."""

    pid: int
    model: str
    started: float  # seconds since the epoch
    # or ready; failed: about to end; dead: the server still answers; damaged: the file cannot be read
    state: str = "loading"
    done: int = 0  # bytes loaded
    total: int = 0
    error: str = ""
    misused: bool = False  # the error is in its command line options
    words: Sequence[str] | None = None  # its options; None if an older minichat started it
    configured: Sequence[str] = ()  # the names of those from config.toml

    def write(self, file: Path) -> None:
        """Write the record atomically."""
        fresh = file.with_suffix(".fresh")
        fresh.touch(mode=0o600)
        fresh.write_text(json.dumps(asdict(self)), encoding="utf-8")
        fresh.replace(file)

    @property
    def dry_run(self) -> bool:
        return "--dry-run" in (self.words or ())

    def changed(self, **changes: Any) -> "Record":
        return replace(self, **changes)

    @classmethod
    def read(cls, file: Path) -> "Record | None":
        """None: it has none yet. It is written atomically, so one that cannot be read is damaged."""
        try:
            return cls(**json.loads(file.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError):
            return cls(0, "", time.time(), "damaged")


@dataclass(frozen=True, slots=True)
class Resident:
    """One engine, running or not."""

    folder: Path
    name: str = USUAL

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            allowed = "1 to 40 letters, digits, '.', '_' or '-'"
            raise BadInput(f"an engine name must consist of {allowed}, not {self.name!r}")

    @property
    def up(self) -> str:
        """The command that starts it."""
        return self.command("up")

    def command(self, verb: str) -> str:
        """A command line for this engine."""
        return f"minichat {verb}" + (f" --name {self.name}" if self.name != USUAL else "")

    @property
    def goes_on(self) -> str:
        """That it runs without a screen, and how to open and stop it."""
        record = self.record
        how = " as a dry run" if record is not None and record.dry_run else ""
        ways = f"open it: {self.command('attach')}; stop it: {self.command('down')}"
        return f"{self.name} is running{how}; {ways}"

    @property
    def lock(self) -> Path:
        return self.folder / f"{self.name}.lock"

    @property
    def file(self) -> Path:
        return self.folder / f"{self.name}.json"

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    @property
    def socket(self) -> Path:
        """In the engine's folder, unless that path is too long for a socket."""
        near = self.folder / f"{self.name}.sock"
        if len(os.fsencode(near)) <= _LONGEST_SOCKET:
            return near
        digest = sha256(os.fsencode(near)).hexdigest()[:16]
        return Path(tempfile.gettempdir()) / f"minichat-{os.getuid()}" / f"{digest}.sock"

    @property
    def record(self) -> Record | None:
        record = Record.read(self.file)
        return record.changed(pid=self._launched()) if record and record.state == "damaged" else record

    def _launched(self) -> int:
        """The process that holds the lock, as its launcher noted there; 0 if it is not known."""
        try:
            return int(self.lock.read_text(encoding="ascii"))
        except (OSError, ValueError):
            return 0

    def check_record(self) -> None:
        """Raise EngineError if it runs with a damaged record: nothing that waits for it would end."""
        record = self.record
        if record is None or record.state != "damaged" or not self.running():
            return
        way = f"stop it: {self.command('down')}"
        if not record.pid:
            way = f"end the process that has {self.lock} open"
        raise EngineError(
            f"{self.file} is damaged, so nothing is known of the running engine {self.name}; {way}"
        )

    def running(self) -> bool:
        try:
            lock = os.open(self.lock, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise _unusable(self.folder, error) from None
        try:
            return not _locked(lock, fcntl.LOCK_SH)
        finally:
            os.close(lock)

    def absent(self) -> str:
        """That it does not run, and what to do: open another one that does, or start it."""
        sentence = f"no engine named {self.name} is running"
        match [each for each in residents(self.folder) if each.running() and not each.died()]:
            case []:
                return f"{sentence}; start it with: {self.up}"
            case [other]:
                return f"{sentence}, but {other.name} is; open it with: {other.command('attach')}"
            case others:
                names = ", ".join(each.name for each in others)
                return f"{sentence}, but these are: {names}; open one with: minichat attach --name NAME"

    def died(self) -> str:
        """The error of an engine whose server still runs; empty while it is healthy."""
        record = self.record
        if record is None or record.state != "dead" or not self.running():
            return ""
        return f"the engine {self.name} has died: {record.error}"

    def launch(self, words: Sequence[str], configured: Sequence[str] = ()) -> bool:
        """Start the engine, detached from this terminal; False if another process has just started it."""
        try:
            for folder in (self.folder, self.socket.parent):
                _own(private_folder(folder))
            lock = os.open(self.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _unusable(self.folder, error) from None
        try:
            if not _locked(lock, fcntl.LOCK_EX):
                return False
            self.file.unlink(missing_ok=True)
            os.ftruncate(lock, 0)
            self._spawn(lock, words, configured)
        finally:
            os.close(lock)
        return True

    def _spawn(self, lock: int, words: Sequence[str], configured: Sequence[str]) -> None:
        """Start the child, which inherits the lock and holds it for its lifetime."""
        from engine.host.launching import child_environment

        with suppress(FileNotFoundError):
            if self.log.stat().st_size > _LOG_BYTES:
                self.log.unlink()
        program = [sys.executable, "-P", "-m", "minichat.commands.resident"]
        with open(self.log, "ab", opener=lambda path, flags: os.open(path, flags, 0o600)) as out:
            process = subprocess.Popen(
                [*program, str(self.folder), self.name, ",".join(configured), *words],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                pass_fds=[lock],
                cwd="/",
                env=child_environment(),
                start_new_session=True,  # it must survive Ctrl+C and the end of the terminal
            )
        os.write(lock, str(process.pid).encode("ascii"))

    def tell(self, number: signal.Signals) -> bool:
        """Send a signal; False if it is not running."""
        record = self.record
        if record is None or not record.pid or not self.running():
            return False
        with suppress(ProcessLookupError):
            os.kill(record.pid, number)
        return True

    def sweep(self) -> None:
        """Remove the files of an engine that has ended, except its log."""
        try:
            lock = os.open(self.lock, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            if _locked(lock, fcntl.LOCK_EX):  # no engine can start in the meantime
                for file in (self.file, self.socket):  # the lock file stays, because others may have it open
                    file.unlink(missing_ok=True)
        finally:
            os.close(lock)


@dataclass(eq=False)
class Waiting:
    """Starts the engine if it is not running, and waits for it."""

    resident: Resident
    words: Sequence[str] | None  # of `serve`; None: do not start it
    configured: Sequence[str] = ()  # the names of those from config.toml

    @property
    def starts(self) -> bool:
        return self.words is not None

    @property
    def replacement(self) -> str:
        return self.resident.up

    async def ensure(self, progress: Progress) -> None:
        resident, ours, seen = self.resident, False, False
        while True:
            if died := resident.died():
                await self._stop_dead_server(died)
            if not resident.running():
                if seen and resident.record is None:  # `down` has removed it
                    raise EngineError(self.gone(told=True))
                if ours:
                    raise _why_ended(resident)
                if self.words is None:
                    raise EngineError(resident.absent())
                ours = resident.launch(self.words, self.configured)
            resident.check_record()
            record = resident.record
            seen = seen or (ours and record is not None)
            if record is not None and record.state == "ready":
                return
            if record is not None and record.total:
                progress(record.done, record.total)
            await asyncio.sleep(_LOOK_EVERY)

    async def _stop_dead_server(self, died: str) -> None:
        """Stop the server of a dead engine, so that a replacement can start."""
        if self.words is None:
            raise EngineError(f"{died}; replace it with: {self.resident.up}")
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):  # the second signal skips the drain
            self.resident.tell(number)
            for _ in range(_LOOKS):
                if not self.resident.running():
                    return
                await asyncio.sleep(_LOOK_EVERY)
        raise EngineError(f"{died}, and its server cannot be stopped")

    def gone(self, *, told: bool) -> str:
        """Why the engine has ended; empty while it runs. `told`: its server has said that it ends."""
        resident = self.resident
        if resident.running():
            return ""
        again = f"start it again: {resident.up}"
        if told:
            return f"the engine {resident.name} was stopped; {again}"
        return f"the engine {resident.name} has ended; {again}; its log: {resident.log}"


def residents(folder: Path) -> list[Resident]:
    """All engines that have files here."""
    names = [file.stem for file in files_in(folder, "*.lock")]
    return [Resident(folder, name) for name in names if _NAME.fullmatch(name)]


def home_of(paths: Paths) -> Path:
    """The engines' folder of this machine: the state may be on a disk shared by several machines."""
    return paths.engines / (re.sub(r"[^A-Za-z0-9.-]", "_", socket.gethostname()) or "here")


def _locked(lock: int, kind: int) -> bool:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise EngineError(
            f"cannot lock files: {error.strerror}; set XDG_STATE_HOME to another folder"
        ) from None
    return True


def _own(folder: Path) -> None:
    if folder.stat().st_uid != os.getuid():
        raise EngineError(f"{folder} belongs to another user; set XDG_STATE_HOME to another folder")


def _unusable(folder: Path, error: OSError) -> EngineError:
    return EngineError(f"cannot use {folder}: {error.strerror}; set XDG_STATE_HOME to another folder")


def _why_ended(resident: Resident) -> EngineError:
    record = resident.record
    if record is None or not record.error:
        try:
            with tempfile.TemporaryFile(dir=resident.folder) as file:
                file.write(bytes(4096))
        except OSError as error:
            return _unusable(resident.folder, error)
        return EngineError(f"the engine failed to start; see {resident.log}")
    return BadInput(record.error) if record.misused else EngineError(record.error)
