"""Where standard output goes nowhere."""

import subprocess
import sys
from pathlib import Path

import pytest


def said(shell: str) -> tuple[int, str]:
    """How `minichat locate` ends with its output sent there, and what it says of it."""
    words = f'"{sys.executable}" -m minichat locate {shell}'
    ended = subprocess.run(["sh", "-c", words], capture_output=True, text=True, timeout=60, check=False)
    return ended.returncode, ended.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_onto_a_full_disk() -> None:
    assert said(">/dev/full") == (1, "minichat: cannot write: No space left on device\n")


def test_into_a_pipe_that_nobody_reads() -> None:
    code, words = said("| true")
    assert (code, words) == (0, "")


def test_closed() -> None:
    assert said(">&-") == (0, "")
