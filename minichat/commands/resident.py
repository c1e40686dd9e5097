"""The process that `minichat up` starts: `serve` on this user's socket, with its progress in a file.

It is not a command. residents.py starts it and passes on a lock, which it holds until it ends.
"""

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from engine.api.errors import BadInput, EngineError
from minichat.cli import parser
from minichat.commands.serve import ServerCallbacks, check, serve
from minichat.models.residents import Record, Resident

_UPDATE_EVERY = 0.1  # seconds between two progress updates


class RecordWriter:
    """Writes the record that waiting processes read."""

    def __init__(
        self, resident: Resident, model: str, words: Sequence[str] = (), configured: Sequence[str] = ()
    ) -> None:
        self._resident = resident
        record = Record(os.getpid(), model, time.time(), words=tuple(words), configured=tuple(configured))
        self._record = record
        self._written_at = 0.0
        self._write()

    def progress(self, done: int, total: int) -> None:
        if (now := time.monotonic()) - self._written_at >= _UPDATE_EVERY or done >= total:
            self._written_at = now
            self._write(done=done, total=total)

    def ready(self) -> None:
        self._write(state="ready")

    def died(self, error: str) -> None:
        self._write(state="dead", error=error)

    def failed(self, error: EngineError) -> None:
        self._write(state="failed", error=str(error), misused=isinstance(error, BadInput))

    def _write(self, **changes: object) -> None:
        self._record = self._record.changed(**changes)
        self._record.write(self._resident.file)


def run(folder: Path, name: str, configured: Sequence[str], words: list[str]) -> int:
    resident = Resident(folder, name)
    options = parser().parse_args(["serve", "--no-key", "--restart=0", f"--uds={resident.socket}", *words])
    writer = RecordWriter(resident, options.model, words, configured)
    try:
        check(options)
        return serve(options, (), ServerCallbacks(writer.progress, writer.ready, resident.log, writer.died))
    except EngineError as error:
        writer.failed(error)
        print(f"minichat: {error}", file=sys.stderr, flush=True)
        return 2 if isinstance(error, BadInput) else 1


if __name__ == "__main__":
    sys.exit(run(Path(sys.argv[1]), sys.argv[2], sys.argv[3].split(","), sys.argv[4:]))
