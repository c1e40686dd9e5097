"""Copying through a real tmux and a real GNU screen: what reaches the outer terminal."""

import asyncio
import base64
import io
import os
import re
import shutil
import subprocess
import sys
import termios
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from minichat.shell import clipboard
from minichat.shell.terminal import Terminal

COPY = """
import asyncio, sys
from pathlib import Path
from minichat.shell import clipboard
from minichat.shell.terminal import Terminal

def write(text):
    sys.stdout.write(text)
    sys.stdout.flush()

print(asyncio.run(clipboard.send("g" * int(sys.argv[1]), Path(sys.argv[2]), write, Terminal.found())))
print("COPIED")
input()
"""
TIMEOUT = 60.0  # seconds; generous, for a loaded machine
SENT = re.compile(rb"\x1b\]52;[^;]*;([A-Za-z0-9+/=]+)(?:\a|\x1b\\)")
tmux = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
screen = pytest.mark.skipif(shutil.which("screen") is None, reason="GNU screen is not installed")


def terminal_around(argv: Sequence[str], environment: dict[str, str]) -> bytes:
    """Everything that a program writes to its terminal while it copies and then ends."""
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (24, 400))  # wide enough that no line wraps
    program = subprocess.Popen(
        argv, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True
    )
    os.close(theirs)
    os.set_blocking(ours, False)
    received, latest = b"", time.monotonic() + TIMEOUT
    answered = False
    while program.poll() is None:
        assert time.monotonic() < latest, received
        try:
            received += os.read(ours, 65_536)
        except BlockingIOError:
            time.sleep(0.01)
        except OSError:  # the other end is closed
            break
        if b"COPIED" in received and not answered:
            answered = True
            os.write(ours, b"\r")
    program.wait(TIMEOUT)
    os.close(ours)
    return received


def copied(received: bytes) -> list[str]:
    return [base64.b64decode(found).decode() for found in SENT.findall(received)]


class Inside:
    """A multiplexer for one test, with the program that copies inside it."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.folder = folder
        (folder / "sends.py").write_text(COPY)
        (folder / "sockets").mkdir(mode=0o700)
        kept = {name: value for name, value in os.environ.items() if name not in ("TMUX", "STY")}
        more = {"TERM": "xterm-256color", "LANG": "C.UTF-8", "PYTHONPATH": str(root)}
        self.environment = kept | more | {"SCREENDIR": str(folder / "sockets")}

    def program(self, length: int, *prefix: str) -> list[str]:
        script, kept = self.folder / "sends.py", self.folder / "kept"
        return [*prefix, sys.executable, str(script), str(length), str(kept)]

    def of_tmux(self, length: int, *prefix: str, options: Sequence[str] = ()) -> bytes:
        server = ["tmux", "-S", str(self.folder / "socket"), "-f", "/dev/null"]
        return terminal_around(
            [*server, *options, "new-session", *self.program(length, *prefix)], self.environment
        )

    def of_screen(self, length: int, *prefix: str) -> bytes:
        return terminal_around(
            ["screen", "-c", "/dev/null", *self.program(length, *prefix)], self.environment
        )


@pytest.fixture
def inside(root: Path, tmp_path: Path) -> Inside:
    return Inside(root, tmp_path)


@tmux
@pytest.mark.parametrize("length", [5, 56_000])
def test_through_tmux(inside: Inside, length: int) -> None:
    assert copied(inside.of_tmux(length)) == ["g" * length]


@tmux
def test_a_text_that_is_too_long_stays_in_tmux(inside: Inside) -> None:
    received = inside.of_tmux(80_000)
    assert b"Too long for the clipboard (80,000" in received
    assert (inside.folder / "kept").read_text() == "g" * 80_000


OVER_SSH = ("env", "-u", "TMUX", "-u", "STY")  # as over SSH


@tmux
def test_the_outer_tmux_over_ssh_must_allow_it(inside: Inside) -> None:
    afar = (*OVER_SSH, "TERM=tmux-256color")
    allowed = ("set-option", "-g", "set-clipboard", "on", ";")
    received = inside.of_tmux(5_000, *afar)
    assert copied(received) == []
    assert b"set -g set-clipboard on" in received
    assert copied(inside.of_tmux(5_000, *afar, options=allowed)) == ["g" * 5_000]


@screen
@pytest.mark.parametrize("length", [5, 56_000])
def test_through_gnu_screen(inside: Inside, length: int) -> None:
    assert copied(inside.of_screen(length)) == ["g" * length]


@screen
@pytest.mark.parametrize("length", [450, 5_000])
def test_the_outer_gnu_screen_over_ssh_gets_no_text(inside: Inside, length: int) -> None:
    received = inside.of_screen(length, *OVER_SSH, "TERM=screen-256color")
    assert copied(received) == []
    assert base64.b64encode(b"g" * 60) not in received, "the text itself is not on the screen"
    assert (b"GNU screen is not supported" in received) is (length == 450)
    assert (b"Too long for the clipboard" in received) is (length == 5_000)


def test_a_console_has_no_clipboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "linux")
    file, written = tmp_path / "clipboard", list[str]()
    notice = asyncio.run(clipboard.send("good", file, written.append, Terminal.found()))
    assert notice == f"The Linux console has no clipboard. Copied to {file}"
    assert (file.read_text(), written) == ("good", [])


def test_a_file_that_cannot_be_written_does_not_keep_text_from_the_clipboard(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    file, written, here = tmp_path / "taken" / "clipboard", [], Terminal(ssh=False, tmux=False, unicode=True)
    for text, start in (("good", "Sent to the clipboard"), ("g" * 60_000, "Too long for the clipboard")):
        notice = asyncio.run(clipboard.send(text, file, written.append, here))
        assert notice.startswith(start) and notice.endswith(f"; cannot write {file}: File exists")
    assert copied("".join(written).encode()) == ["good"]


@pytest.mark.parametrize(
    ("environment", "outside"),
    [
        ({"TERM": "xterm"}, ""),
        ({"TERM": "tmux-256color"}, "tmux"),
        ({"TERM": "screen.xterm-256color"}, "screen"),
        ({"TERM": "screen", "TMUX": "/tmp/x"}, ""),
        ({"TERM": "screen", "STY": "1.x"}, ""),
    ],
)
def test_the_multiplexer_around_ssh_is_recognized_by_term(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], outside: str
) -> None:
    for name in ("TERM", "TMUX", "STY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert Terminal.found().outside == outside


@pytest.mark.parametrize(
    ("term", "encoding", "drawn"),
    [("xterm", "utf-8", True), ("xterm", "ascii", False), ("linux", "utf-8", False)],
)
def test_a_console_without_the_characters_gets_ascii(
    monkeypatch: pytest.MonkeyPatch, term: str, encoding: str, drawn: bool
) -> None:
    """The fonts of the Linux console have no braille and few of the other marks."""
    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding))
    assert Terminal.found().unicode is drawn


@pytest.mark.parametrize(
    ("term", "mono"), [("vt100", True), ("xterm", False), ("linux", False), ("", False), ("unlisted", False)]
)
def test_a_terminal_without_colors_is_recognized(root: Path, term: str, mono: bool) -> None:
    """There, marks must not depend on colors, as with NO_COLOR."""
    code = "from minichat.shell.terminal import Terminal; print(Terminal.found().mono)"
    environment = os.environ | {"TERM": term}
    found = subprocess.run([sys.executable, "-c", code], cwd=root, env=environment, capture_output=True)
    assert found.stdout == f"{mono}\n".encode(), found.stderr
