"""A disk that holds its calls: no step waits for it, and no chat for longer than computing takes."""

import platform
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiers.held_disk import CALLS, serve

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in CALLS, reason="needs Linux's seccomp"
)
def test_a_disk_that_does_not_answer(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    args = [sys.executable, "-m", "tests.tiers.slow_disk", str(tmp_path), str(theirs.fileno())]
    with (
        ours,
        theirs,
        subprocess.Popen(
            args,
            cwd=ROOT,
            pass_fds=[theirs.fileno()],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as child,
    ):
        theirs.close()
        serve(ours, tmp_path)
        out, problem = child.communicate(timeout=60)
    if "no seccomp notifications here" in problem:
        pytest.skip("this system has no seccomp notifications")
    assert child.returncode == 0, problem
    assert out.splitlines() == [
        "others go on",
        "5 blocks from disk: slower than computing them again",
        f"{tmp_path}: 8 blocks wait to be written, so no more are taken",
        "stores again",
        "ended",
    ]
