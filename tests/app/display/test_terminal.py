"""The program on a real terminal, with real (small) models."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from minichat.chats.model import Message
from minichat.chats.store import Store
from minichat.shell.paths import locate
from tests.waiting import becomes

ENDED = "the program ended with"

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")


class Tmux:
    """One terminal with its own tmux server."""

    def __init__(
        self,
        root: Path,
        home: Path,
        *words: str,
        size: tuple[int, int] = (100, 30),
        environment: str = "",
        before: str = "",
    ) -> None:
        self.home, self._socket = home, home / f"tmux{len(list(home.glob('tmux*')))}"
        given = environment
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("TMUX", "SSH", "XDG"))},
            "HOME": str(home),
            "LC_ALL": "C.UTF-8",
            "COLUMNS": "80",  # as if exported by a shell: the terminal's own size must win
            "LINES": "24",
        }
        program = " ".join(["env -u COLORTERM -u NO_COLOR", given, sys.executable, "-m minichat", *words])
        # If the tests are killed, the tmux server is left behind, so it ends itself after a while.
        lapse = f"(sleep 150; tmux -S {self._socket} kill-server) &"
        script = f"{lapse} echo before; {before} {program}; echo {ENDED} $?; stty -a; sleep 60"
        columns, lines = size
        subprocess.run(
            [
                "tmux",
                "-S",
                self._socket,
                "-f",
                "/dev/null",
                "new-session",
                "-d",
                "-x",
                str(columns),
                "-y",
                str(lines),
                script,
            ],
            cwd=root,
            env=environment,
            check=True,
        )

    def __call__(self, *words: str) -> str:
        return subprocess.run(
            ["tmux", "-S", self._socket, *words], capture_output=True, text=True, check=False
        ).stdout

    def type(self, *keys: str) -> None:
        self("send-keys", *keys)

    def screen(self) -> str:
        return self("capture-pane", "-p")

    def until(self, holds: Callable[[str], object]) -> str:
        screen = ""

        def shown() -> object:
            nonlocal screen
            screen = self.screen()
            return holds(screen)

        assert becomes(shown, 0.1), f"timed out; the screen shows:\n{screen}"
        return screen

    def program(self) -> int:
        """The pid of minichat itself."""
        shell = self("display-message", "-p", "#{pane_pid}").strip()
        return int(
            subprocess.run(
                ["pgrep", "-x", "-P", shell, Path(sys.executable).name],
                capture_output=True,
                text=True,
                check=True,
            ).stdout
        )

    def messages(self) -> list[Message]:
        store = Store(locate({"HOME": str(self.home)}).chats)
        messages = [message for chat in store.open_chats() for message in chat.messages]
        store.close()
        return messages


@pytest.fixture
def terminal(root: Path, tmp_path: Path) -> Iterator[Callable[..., Tmux]]:
    opened: list[Tmux] = []

    def start(*words: str, **more: Any) -> Tmux:
        opened.append(Tmux(root, tmp_path, *words, **more))
        return opened[-1]

    yield start
    for each in opened:
        each("kill-server")


def gone(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    return False


def left_clean(screen: str) -> None:
    """Check that the earlier output is restored, and that the terminal echoes lines as before."""
    assert "before" in screen
    assert " echo " in screen.replace(";", " ") and " icanon" in screen


def test_a_chat_with_the_built_in_model(terminal: Callable[..., Tmux], tmp_path: Path) -> None:
    """It draws on the terminal wherever stderr goes, and nothing else goes there. Piped input is attached to
    its first question, and keys come from the terminal.
    """
    (tmp_path / "piped.txt").write_text("Anna has a key.\n")
    files = ["<", str(tmp_path / "piped.txt"), "2>", str(tmp_path / "errors")]
    tmux = terminal("'who has the key?'", "--temperature 0", *files)
    tmux.until(lambda screen: "who has the key? @stdin" in screen and "ready" in screen)
    tmux.until(lambda screen: " waited " in screen)
    tmux.type("What is the KV cache?")
    tmux.until(lambda screen: "What is the KV cache?" in screen)
    tmux.type("Enter")
    tmux.until(lambda screen: "keys and values" in screen and screen.count(" waited ") == 2)
    tmux("resize-window", "-x", "40", "-y", "12")
    small = tmux.until(lambda screen: "keys and values" in screen and len(screen.splitlines()) == 12)
    assert all(len(line) <= 40 for line in small.splitlines())
    tmux("resize-window", "-x", "100", "-y", "30")
    tmux.until(lambda screen: len(screen.splitlines()) == 30 and "Enter send" in screen)
    tmux.type("C-c", "C-c")
    left_clean(tmux.until(lambda screen: f"{ENDED} 0" in screen and "speed" in screen))
    question, *_, answer = tmux.messages()
    assert question.whole.endswith("stdin:\n```\nAnna has a key.\n```")
    assert answer.state == "done"
    assert (tmp_path / "errors").read_bytes() == b""


@pytest.mark.soak
def test_enter_sends_even_before_the_first_frame(terminal: Callable[..., Tmux]) -> None:
    tmux = terminal("--temperature", "0")
    tmux.type("Hello", "Enter")  # the terminal is in line mode until the program takes it over
    tmux.until(lambda screen: " waited " in screen)
    tmux.type("C-q")
    tmux.until(lambda screen: f"{ENDED} 0" in screen)
    assert [message.text for message in tmux.messages()][:1] == ["Hello"]


@pytest.fixture
def endless(tmp_path: Path) -> None:
    """Replies that run until the context is full: seconds, even on a fast machine."""
    config = locate({"HOME": str(tmp_path)}).settings
    config.parent.mkdir(parents=True)
    config.write_text("[sampling]\nignore_eos = true\n")


def begin(terminal: Callable[..., Tmux], **how: str) -> Tmux:
    """A terminal on which a reply is streaming and has been saved once."""
    tmux = terminal(**how)
    tmux.until(lambda screen: "ready" in screen)
    tmux.type("Tell me a story.", "Enter")
    tmux.until(lambda _: any(message.text for message in tmux.messages()[1:]))
    return tmux


@pytest.mark.usefixtures("endless")
@pytest.mark.parametrize("number", [pytest.param(signal.SIGTERM, marks=pytest.mark.soak), signal.SIGKILL])
def test_a_partial_reply_is_restored(terminal: Callable[..., Tmux], number: signal.Signals) -> None:
    tmux = begin(terminal)
    process = tmux.program()
    os.kill(process, number)
    screen = tmux.until(lambda screen: ENDED in screen)
    assert gone(process)
    assert f"{ENDED} {128 + number}" in screen
    question, answer = tmux.messages()
    assert (question.text, answer.state) == ("Tell me a story.", "stopped")
    assert answer.text
    if number == signal.SIGTERM:
        left_clean(screen + tmux.until(lambda screen: "speed" in screen))
        return
    again = terminal("--model", "/nowhere", before="trap : HUP;")
    words = answer.text.split()[-1]
    again.until(lambda screen: words in screen and "no engine" in screen)
    process = again.program()
    again("kill-session")  # whose signal only the shell gets, which goes on
    assert becomes(lambda: gone(process)), "the program outlived its terminal"


@pytest.mark.usefixtures("endless")
def test_several_interrupts_leave_the_terminal_as_it_was(terminal: Callable[..., Tmux]) -> None:
    tmux = begin(terminal)
    process = tmux.program()
    with suppress(ProcessLookupError):
        for _ in range(10):
            os.kill(process, signal.SIGINT)
            time.sleep(0.02)
    left_clean(tmux.until(lambda screen: f"{ENDED} {128 + signal.SIGINT}" in screen and "speed" in screen))
    assert tmux.messages()[-1].state == "stopped"


@pytest.mark.soak  # the test before ends a terminal, too
@pytest.mark.usefixtures("endless")
@pytest.mark.parametrize("before", ["", "trap : HUP;"])
def test_the_program_ends_with_its_terminal(terminal: Callable[..., Tmux], before: str) -> None:
    """Also if the signal goes to a parent process such as `make`, which waits for the program to end."""
    tmux = begin(terminal, before=before)
    process = tmux.program()
    tmux("kill-session")
    assert becomes(lambda: gone(process)), "the program outlived its terminal"
    assert (tmux.messages()[-1].state, tmux.messages()[-1].error) == ("stopped", "")


@pytest.mark.soak
@pytest.mark.usefixtures("endless")
def test_four_chats_stream_while_the_terminal_changes_and_control_c_ends_it(
    terminal: Callable[..., Tmux],
) -> None:
    tmux = terminal(size=(300, 90))
    tmux.until(lambda screen: "ready" in screen)
    for number in range(4):
        if number:
            tmux.type("C-n")
            tmux.until(lambda screen, tabs=number + 1: f" {tabs}  {'ABCD'[tabs - 1]} " in screen)
        tmux.type("Tell me a story.", "Enter")
    tmux.until(lambda screen: screen.splitlines()[0].count("●") == 4)
    tmux.until(lambda screen: screen.count("tok/s") >= 4)
    titles = [f" {letter}  Tell me a story." for letter in "ABCD"]
    wide = tmux.until(lambda screen: all(title in screen.splitlines()[1] for title in titles))
    assert "KV map" in wide
    for columns, lines in ((40, 12), (120, 40), (300, 90)):
        tmux("resize-window", "-x", str(columns), "-y", str(lines))
        screen = tmux.until(lambda screen, lines=lines: len(screen.splitlines()) == lines and "KV" in screen)
        assert all(len(line) <= columns for line in screen.splitlines())
    tmux.type("C-c", "C-c")
    left_clean(tmux.until(lambda screen: f"{ENDED} 0" in screen and "speed" in screen))
    answers = [message for message in tmux.messages() if message.role == "assistant"]
    assert len(answers) == 4
    assert all(answer.text and answer.state in ("stopped", "done") for answer in answers)


# All kinds of terminals, without a model for a quick start.

FORMS = {
    "16 colors": r"\x1b\[[0-9;]*?(3|4|9|10)[0-7]",
    "256 colors": r"\x1b\[[0-9;]*?[34]8;5;",
    "true color": r"\x1b\[[0-9;]*?[34]8;2;",
}


@pytest.mark.soak
@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        pytest.param("TERM=screen", "16 colors", marks=pytest.mark.soak),
        pytest.param("TERM=xterm-16color", "16 colors", marks=pytest.mark.soak),
        pytest.param("TERM=screen-256color", "256 colors", marks=pytest.mark.soak),
        ("TERM=xterm-256color COLORTERM=truecolor", "true color"),
        ("TERM=xterm-256color COLORTERM=truecolor NO_COLOR=1", None),
    ],
)
def test_it_uses_the_available_colors(
    terminal: Callable[..., Tmux], environment: str, expected: str | None
) -> None:
    tmux = terminal("--model", "/nowhere", size=(120, 40), environment=environment)
    tmux.until(lambda screen: "no engine" in screen and "KV map" in screen)
    drawn = tmux("capture-pane", "-p", "-e")
    rich = [name for name in ("true color", "256 colors") if re.search(FORMS[name], drawn)]
    if expected in FORMS:
        assert re.search(FORMS[expected], drawn)
        assert rich == [expected] * (expected != "16 colors")
    else:
        grays = re.findall(r"[34]8;2;(\d+);(\d+);(\d+)", drawn)
        assert all(red == green == blue for red, green, blue in grays)
        assert not re.search(r"\x1b\[[0-9;]*?(3|4|9|10)[0-7][;m]", drawn)
    tmux.type("C-q")
    tmux.until(lambda screen: f"{ENDED} 0" in screen)


@pytest.mark.parametrize("words", [(), pytest.param(("--ascii",), marks=pytest.mark.soak)])
def test_it_fits_any_size(terminal: Callable[..., Tmux], words: tuple[str, ...]) -> None:
    tmux = terminal("--model", "/nowhere", *words, size=(300, 90))
    for columns, lines in ((300, 90), (40, 12)):
        tmux("resize-window", "-x", str(columns), "-y", str(lines))
        screen = tmux.until(
            lambda screen, wide=columns > 40: (
                "Alt+O chooses another model" in screen
                and ("KV map" in screen) == wide
                and (not wide or screen.isascii() == ("--ascii" in words))  # frames follow their text
            )
        )
        assert len(screen.splitlines()) == lines
        assert max(map(len, screen.splitlines())) <= columns
        assert "--ascii" not in words or screen.isascii()
        tmux.type("F1")
        tmux.until(lambda screen: "Esc close" in screen)
        tmux.type("Escape")
    tmux.type("C-q")
    tmux.until(lambda screen: "noflsh" in screen)  # all that fits on the small screen
