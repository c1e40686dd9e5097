"""`minichat rank` as a process."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from engine.host.launching import child_environment


@contextmanager
def rank(meet: str, log: Path, device: str = "cpu") -> Iterator[subprocess.Popen[bytes]]:
    """`minichat rank`, with an environment of its own."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "minichat", "rank", meet, "--device", device],
            stdout=out, stderr=out, env=child_environment(),
        )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.wait()
