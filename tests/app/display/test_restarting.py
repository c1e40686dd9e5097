"""Keys that are typed while the program restarts are for the new screen."""

import os
import shutil
import sys
import termios
from collections.abc import Callable

import pytest

from minichat.shell import again
from tests.app.display.test_terminal import ENDED, Tmux, terminal

__all__ = ["terminal"]


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_they_are_not_echoed_and_control_q_quits(terminal: Callable[..., Tmux]) -> None:
    tmux = terminal()
    tmux.until(lambda screen: "ready" in screen)
    tmux.type("F5")
    tmux.until(lambda screen: "restarting ..." in screen)
    tmux.type("t", "y", "p", "e", "d")
    tmux.until(lambda screen: "│ typed " in screen and "ready" in screen)
    tmux.type("F5")
    tmux.until(lambda screen: "restarting ..." in screen)
    tmux.type("x", "C-q")
    screen = tmux.until(lambda screen: f"{ENDED} 0" in screen and "speed" in screen)
    said, _, modes = screen.partition(ENDED)
    assert "x" not in said and "typed" not in said, "nothing was echoed"
    assert "-echo " not in modes and "-icanon" not in modes


def test_the_modes_of_the_terminal_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = os.openpty()
    with os.fdopen(theirs, "r") as keys:
        monkeypatch.setattr(sys, "stdin", keys)
        monkeypatch.setenv("MINICHAT_TERMINAL", "")
        before = termios.tcgetattr(theirs)
        again.hold_keys()
        held = termios.tcgetattr(theirs)
        assert not held[3] & (termios.ECHO | termios.ICANON) and held[3] & termios.ISIG
        assert not held[0] & termios.IXON
        again._before.clear()
        again.adopt()  # as the new program does
        assert again.modes_before() == before
        assert "MINICHAT_TERMINAL" not in os.environ
        assert again.modes_before() is None, "from now on the screen puts them back"
        termios.tcsetattr(theirs, termios.TCSANOW, before)
        again.hold_keys()
        again.put_back()
        assert termios.tcgetattr(theirs) == before
    os.close(ours)
