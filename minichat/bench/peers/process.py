"""The process of an engine, seen from the benchmark."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from select import select
from typing import IO, Any, Self

from minichat.bench.cases import CaseFailed

_FOLDER = Path(__file__).resolve().parent
_ROOT = _FOLDER.parents[2]


class PeerProcess:
    """Loads the model at once. Raises CaseFailed with the engine's error."""

    limit = 1800.0  # seconds that it may take to load its model, and for one round

    def __init__(self, runner: str, job: dict[str, Any], log: IO[str], python: str = sys.executable) -> None:
        """`log` gets what the engine prints. On one thread of a CPU, processor time is measured."""
        self._clock = "cpu" if job["device"] == "cpu" and job["threads"] == 1 else "wall"
        environment = os.environ | {
            "PYTHONUNBUFFERED": "1"
        }  # what it printed is in the log when it is killed
        if python == sys.executable:  # the tree that runs, whatever is installed
            paths = [str(_ROOT), *filter(None, [environment.get("PYTHONPATH")])]
            environment["PYTHONPATH"] = os.pathsep.join(paths)
        self._process = subprocess.Popen(
            [python, str(_FOLDER / "child.py"), str(_FOLDER / f"{runner}.py")],
            env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
            start_new_session=True,  # so that its own processes end with it
        )  # fmt: skip
        self._send(job)
        self.version: str | None = None

    def ready(self) -> str:
        """Wait until the model is loaded. Return the engine's name and version."""
        if self.version is None:
            self.version = str(self._answer()["version"])
        return self.version

    def generate(self, prompts: Sequence[Sequence[int]], counts: Sequence[int]) -> float:
        """Return the seconds it takes to generate replies of these lengths."""
        self._send([prompts, counts])
        answer = self._answer()
        if answer["lengths"] != list(counts):
            raise CaseFailed(f"its replies have {answer['lengths']} tokens instead of {list(counts)}")
        return float(answer[self._clock])

    def _send(self, value: Any) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(value) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # `_answer` reports why

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        if not select([self._process.stdout], [], [], self.limit)[0]:
            raise CaseFailed(f"no answer within {self.limit:g} s")
        line = self._process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {}
        if "error" in answer:
            raise CaseFailed(answer["error"].partition("\n")[0])
        if not answer:
            raise CaseFailed(f"its process ended with exit code {self._process.wait()}")
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        with suppress(ProcessLookupError):  # none is left
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()
