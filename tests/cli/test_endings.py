"""Real processes, ended as users end them: by a closed pipe or Ctrl+C."""

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.cli.conftest import Run

SECONDS = 60  # a loaded machine may take a while to import torch


INTERRUPTED = """
class Signal:
    def find_spec(self, name, *rest):
        if name == "minichat.cli":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Signal())"""
SCRIPT = "from minichat.__main__ import main; sys.exit(main())"  # as the console script does


def start(root: Path, words: Sequence[object] = (), program: str = "") -> subprocess.Popen[bytes]:
    module = ["-c", program] if program else ["-m", "minichat"]
    return subprocess.Popen(
        [sys.executable, *module, *map(str, words)],
        cwd=root,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # A shell's background jobs, such as these tests, ignore SIGINT, so it is restored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def endless(model: Path) -> list[object]:
    options = ["--raw", "--blocks", 6000, "--max-tokens", 90_000, "--temperature", 0]
    return ["generate", "--model", model, *options, "the"]


def test_a_reader_that_closes_the_pipe_early_is_no_error(root: Path, long_model: Path) -> None:
    with start(root, endless(long_model)) as process:
        assert process.stdout is not None
        assert len(process.stdout.read(5)) == 5
        process.stdout.close()
        assert process.wait(SECONDS) == 1
        assert process.stderr is not None
        assert process.stderr.read() == b""


def test_control_c_ends_a_reply(root: Path, long_model: Path) -> None:
    with start(root, endless(long_model)) as process:
        assert process.stdout is not None
        process.stdout.read(5)
        process.send_signal(signal.SIGINT)
        _, output = process.communicate(timeout=SECONDS)
        assert (process.returncode, output) == (130, b"")


@pytest.mark.parametrize("way", ["runpy.run_module('minichat', run_name='__main__')", SCRIPT])
def test_control_c_during_the_first_imports(root: Path, way: str) -> None:
    """The command line's own module is imported when the signal arrives."""
    program = f"import os, runpy, signal, sys\n{INTERRUPTED}\nsys.argv = ['minichat', 'ps']\n{way}"
    with start(root, program=program) as process:
        output = process.communicate(timeout=SECONDS)
        assert (process.returncode, output) == (130, (b"", b""))


def test_a_short_answer_into_a_closed_pipe(root: Path) -> None:
    with start(root, ["locate"]) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(SECONDS) == 1
        assert process.stderr is not None
        assert process.stderr.read() == b""


def test_control_c_while_a_command_is_imported(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("minichat.cli.import_module", interrupted)
    assert run("doctor") == (130, "", "")


def test_control_c_while_a_class_is_created(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.11 wraps it."""

    def interrupted(name: str) -> None:
        raise RuntimeError("Error calling __set_name__") from KeyboardInterrupt()

    monkeypatch.setattr("minichat.cli.import_module", interrupted)
    assert run("doctor") == (130, "", "")


@pytest.mark.parametrize("command", ["chat", "generate", "fetch", "locate", "doctor"])
def test_help_of_a_command_loads_nothing_heavy(root: Path, command: str) -> None:
    """In a fresh interpreter, so that everything loaded was loaded by this command."""
    code = (
        "import sys\n"
        "from minichat.cli import main\n"
        "try:\n"
        f"    main([{command!r}, '--help'])\n"
        "except SystemExit as end:\n"
        "    heavy = {'torch', 'transformers', 'textual', 'numpy', 'tokenizers'} & set(sys.modules)\n"
        "    sys.exit(f'{end.code} {sorted(heavy)}')\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    assert ran.stderr == "0 []\n"
    assert f"usage: minichat {command}" in ran.stdout
