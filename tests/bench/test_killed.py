"""What a benchmark leaves if it is killed: no process of its own."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from minichat.bench.load.http import tied
from minichat.bench.peers.process import PeerProcess
from tests.waiting import becomes

ROOT = Path(__file__).parents[2]
FAKE = str(Path(__file__).parent / "fake_engine")


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"  # of no parent


def holding_a_server() -> None:
    """The process of the test below."""
    with tied("serve", "--no-key", "--port", "0", "--dry-run") as server:
        print(server.pid, flush=True)
        signal.pause()


def holding_an_engine(folder: str) -> None:
    job = {"folder": "here", "device": "cpu", "threads": 1, "fails": "hang", "pids": f"{folder}/pids"}
    with open(f"{folder}/log", "w") as log, PeerProcess(FAKE, job, log) as engine:
        engine.ready()
        engine.generate([[1]], [2])


def killed(code: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, text=True, stdout=subprocess.PIPE)


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_the_server_of_a_killed_benchmark_ends() -> None:
    child = killed("from tests.bench.test_killed import holding_a_server as run; run()")
    assert child.stdout is not None
    server = int(child.stdout.readline())
    child.kill()
    child.wait()
    assert becomes(lambda: gone(server))


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_the_engine_of_a_killed_benchmark_ends_with_its_own_processes(tmp_path: Path) -> None:
    """While it hangs in a round; vLLM and SGLang have processes of their own."""
    child = killed(f"from tests.bench.test_killed import holding_an_engine as run; run({str(tmp_path)!r})")
    pids = tmp_path / "pids"
    assert becomes(lambda: pids.exists() and pids.read_text().endswith("\n"))
    child.kill()
    child.wait()
    for each in map(int, pids.read_text().split()):
        assert becomes(lambda each=each: gone(each))
