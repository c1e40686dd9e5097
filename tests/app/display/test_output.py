"""What is sent to a terminal that may be slow, and what is left on it."""

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from minichat.shell.output import Output
from tests.waiting import LIMIT, becomes

FRAME = "x" * 20_000
RESTORE = "\x1b[?1049l"


class Link:
    """A pseudo terminal of which the reader takes `at_once` bytes, then pauses."""

    def __init__(self, at_once: int, pause: float) -> None:
        self.ours, theirs = os.openpty()
        self.file = os.fdopen(theirs, "w")
        self.arrived = b""
        self._at_once, self._pause = at_once, pause
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.output = Output(self.file)
        self.output.start()

    def _read(self) -> None:
        while not self.arrived.endswith(RESTORE.encode()):
            self.arrived += os.read(self.ours, self._at_once)
            time.sleep(self._pause)

    def close(self) -> None:
        self._reader.join(5)
        assert not self._reader.is_alive()
        self.file.close()
        os.close(self.ours)


@pytest.fixture
def slow() -> Iterator[Link]:
    link = Link(100, 0.01)
    yield link
    link.close()


@pytest.fixture
def fast() -> Iterator[Link]:
    link = Link(1 << 16, 0)
    yield link
    link.close()


def test_quitting_drops_what_a_slow_terminal_has_not_taken(slow: Link) -> None:
    """25 frames take 50 s on this link."""
    for _ in range(25):
        slow.output.write(FRAME)
    began = time.monotonic()
    slow.output.drop()
    slow.output.write(RESTORE)
    slow.output.stop()
    assert time.monotonic() - began < 20
    assert becomes(lambda: slow.arrived.endswith(b"\x18\x1b\\" + RESTORE.encode()))
    assert len(slow.arrived) < 5 * len(FRAME)


def test_a_terminal_that_keeps_up_gets_everything(fast: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_PATIENCE", "_SLOW"):  # on a loaded machine, its reader may pause
        monkeypatch.setattr(f"minichat.shell.output.{name}", LIMIT)
    for _ in range(5):
        fast.output.write(FRAME)
    fast.output.drop()
    fast.output.write(RESTORE)
    fast.output.stop()
    assert becomes(lambda: fast.arrived == 5 * FRAME.encode() + RESTORE.encode())


def test_output_is_behind_until_the_terminal_has_taken_it(slow: Link, fast: Link) -> None:
    for _ in range(25):
        slow.output.write(FRAME)
    fast.output.write(FRAME)
    assert becomes(lambda: not fast.output.behind)
    assert slow.output.behind
    for link in slow, fast:
        link.output.drop()
        link.output.write(RESTORE)
        link.output.stop()


FULL = """
from textual.app import App
from textual.widgets import Static
from minichat.shell.output import TerminalDriver


class Full(App):
    BINDINGS = [("q", "quit")]

    def compose(self):
        yield Static("\\n".join(f"row{line} " * 10 for line in range(60)))


Full(TerminalDriver).run()
"""


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_no_text_is_left_on_a_terminal_that_was_larger(root: Path, tmp_path: Path) -> None:
    """tmux 3.3a keeps text of the larger window on the screen that it restores."""

    def tmux(*words: str) -> str:
        command = ["tmux", "-S", str(tmp_path / "socket"), "-f", "/dev/null", *words]
        return subprocess.run(command, check=True, capture_output=True, text=True, cwd=root).stdout

    def shows(text: str) -> bool:
        return text in tmux("capture-pane", "-p")

    (tmp_path / "full.py").write_text(FULL)
    run = f"env -u COLUMNS -u LINES PYTHONPATH={root} {sys.executable} {tmp_path / 'full.py'}"
    tmux("new-session", "-d", "-x", "80", "-y", "24", f"echo before; {run}; echo ended; sleep 60")
    try:
        for columns, lines in ((80, 24), (200, 60), (120, 40)):
            tmux("resize-window", "-x", str(columns), "-y", str(lines))
            assert becomes(partial(shows, f"\nrow{lines - 1} "), 0.05)
        tmux("send-keys", "q")
        assert becomes(partial(shows, "ended"), 0.05)
        assert tmux("capture-pane", "-p").split() == ["before", "ended"]
    finally:
        tmux("kill-server")
