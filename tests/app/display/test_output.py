"""What is sent to a terminal that may be slow, and what is left on it."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from minichat.shell.output import Output, TerminalDriver
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
    link = Link(100, 0.005)
    yield link
    link.close()


@pytest.fixture
def fast() -> Iterator[Link]:
    link = Link(1 << 16, 0)
    yield link
    link.close()


def test_quitting_drops_what_a_slow_terminal_has_not_taken(slow: Link) -> None:
    """25 frames take 25 s on this link."""
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

    def on_mount(self):
        self.app_resume_signal.subscribe(self.screen, lambda _: self.screen.refresh())


Full(TerminalDriver).run()
"""


class Terminal:
    """A tmux server whose one window runs `FULL`."""

    def __init__(self, root: Path, folder: Path) -> None:
        self._root, self._socket, self._pid = root, folder / "socket", folder / "pid"
        (folder / "full.py").write_text(FULL)
        run = f"env -u COLUMNS -u LINES PYTHONPATH={root} {sys.executable} {folder / 'full.py'}"
        run = f"sh -c 'echo $$ >{self._pid}; exec {run}'"
        self("new-session", "-d", "-x", "80", "-y", "24", f"echo before; {run}; echo ended; sleep 60")

    def __call__(self, *words: str) -> str:
        command = ["tmux", "-S", str(self._socket), "-f", "/dev/null", *words]
        return subprocess.run(command, check=True, capture_output=True, text=True, cwd=self._root).stdout

    @property
    def program(self) -> int:
        return int(self._pid.read_text())

    @property
    def screen(self) -> str:
        return self("capture-pane", "-p")

    def until(self, text: str) -> None:
        assert becomes(lambda: text in self.screen, 0.05), self.screen

    def print(self, text: str) -> None:
        """As another program on the same terminal."""
        Path(self("display-message", "-p", "#{pane_tty}").strip()).write_text(text)

    def quit(self) -> None:
        """Check that the program leaves no text."""
        self("send-keys", "q")
        self.until("ended")
        assert self.screen.split() == ["before", "ended"]


@pytest.fixture
def terminal(root: Path, tmp_path: Path) -> Iterator[Terminal]:
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed")
    terminal = Terminal(root, tmp_path)
    yield terminal
    terminal("kill-server")


def test_no_text_is_left_on_a_terminal_that_was_larger(terminal: Terminal) -> None:
    """tmux 3.3a keeps text of the larger window on the screen that it restores."""
    for columns, lines in ((80, 24), (200, 60), (120, 40)):
        terminal("resize-window", "-x", str(columns), "-y", str(lines))
        terminal.until(f"\nrow{lines - 1} ")
    terminal.quit()


@pytest.mark.soak
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are not listed here")
def test_a_program_that_continues_after_sigstop_draws_everything(terminal: Terminal) -> None:
    """It cannot notice SIGSTOP, so the shell's text stands on its screen."""
    terminal.until("\nrow23 ")
    tasks = Path(f"/proc/{terminal.program}/task")
    before = len(list(tasks.iterdir()))
    for _ in range(2):
        os.kill(terminal.program, signal.SIGSTOP)
        terminal.print("\x1b[5;1H[1]+  Stopped\x1b[K")
        terminal.until("Stopped")
        os.kill(terminal.program, signal.SIGCONT)
        terminal.until("\nrow4 ")
        assert becomes(lambda: len(list(tasks.iterdir())) == before), "one thread reads keys, one writes"
    terminal.quit()


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> tuple[TerminalDriver, list[object]]:
    """A driver, and what it does."""
    done: list[object] = []
    driver = TerminalDriver.__new__(TerminalDriver)
    driver._auto_restart, driver._must_signal_resume, driver.fileno = True, False, 0
    driver._writer_thread = Output(sys.stdout)
    for name in ("suspend", "resume"):
        monkeypatch.setattr(driver, f"{name}_application_mode", partial(done.append, name))
    monkeypatch.setattr(os, "kill", lambda *words: done.append(words))
    return driver, done


@pytest.mark.parametrize("caught", [True, False], ids=["SIGTSTP", "SIGSTOP"])
def test_each_stop_is_followed_by_one_start(
    stopped: tuple[TerminalDriver, list[object]], monkeypatch: pytest.MonkeyPatch, caught: bool
) -> None:
    """Otherwise a second thread would read keys."""
    driver, done = stopped
    monkeypatch.setattr(os, "tcgetpgrp", lambda _: os.getpgrp())
    if caught:
        driver._sigtstp_application()
    driver._sigcont_application()
    stop = [(os.getpid(), signal.SIGSTOP)] if caught else []
    assert done == ["suspend", *stop, "resume"] and driver._must_signal_resume


def test_a_signal_during_a_start_is_handled_after_it(
    stopped: tuple[TerminalDriver, list[object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """tmux sends one of its own to a program that was stopped."""
    driver, done = stopped
    monkeypatch.setattr(os, "tcgetpgrp", lambda _: os.getpgrp())

    def resume() -> None:
        done.append("resume")
        if done.count("resume") == 1:
            driver._sigcont_application()
        driver._must_signal_resume = False
        done.append("resumed")

    monkeypatch.setattr(driver, "resume_application_mode", resume)
    driver._sigcont_application()
    assert done == ["suspend", "resume", "resumed"] * 2


def test_a_program_that_continues_in_the_background_stops_again(
    stopped: tuple[TerminalDriver, list[object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Setting the terminal's modes would stop it half way."""
    driver, done = stopped
    monkeypatch.setattr(os, "tcgetpgrp", lambda _: os.getpgrp() + 1)
    driver._sigcont_application()
    assert done == [(os.getpid(), signal.SIGSTOP)]
