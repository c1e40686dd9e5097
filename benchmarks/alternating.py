"""Two trees of this project, alternating: each runs in its own process while the other is idle.

A machine that gets slower or faster changes both, so the ratios of neighboring rounds mean something.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from minichat.bench.harness import Bench, ratio_unit

HERE = Path(__file__).resolve().parents[1]


class Tree:
    """A process that runs `program` in a tree: it answers each line of JSON with a line of JSON.

    The program calls `emit(value)` once when it is ready, which is `started`, and then for each line of
    `sys.stdin`; what it prints goes to the standard error.
    """

    def __init__(self, root: Path, program: str) -> None:
        preamble = (
            "import json, sys\n"
            "out, sys.stdout = sys.stdout, sys.stderr\n"
            "def emit(value): print(json.dumps(value), file=out, flush=True)\n"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-c", preamble + program],
            cwd=root, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        self.started = self._read()

    def ask(self, question: Any) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        if not (line := self._process.stdout.readline()):
            raise SystemExit(f"the process of a tree ended with exit code {self._process.wait()}")
        return json.loads(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()


def root_of(other: str) -> Path:
    if not (Path(other) / "benchmarks").is_dir():
        raise SystemExit(f"--other {other!r} is not the root of a tree of this project")
    return Path(other)


def alternate(
    bench: Bench, trees: Mapping[str, Tree], questions: Mapping[str, tuple[Any, str]], prefix: str = ""
) -> None:
    """Ask both trees each question, alternating. `questions`: by figure, what to ask and the answer's unit.

    The first round compiles and warms up, and is not counted.
    """
    samples: dict[str, dict[str, list[float]]] = {name: {which: [] for which in trees} for name in questions}
    for number in range(1 + bench.repeats):
        for name, (question, _) in questions.items():
            for which, tree in list(trees.items())[:: 1 if number % 2 else -1]:
                samples[name][which].append(float(tree.ask(question)))
    for name, by_tree in samples.items():
        for which, values in by_tree.items():
            bench.note(f"{prefix}{name}, {which}", values[1:], questions[name][1])
    for name, by_tree in samples.items():
        pairs = zip(by_tree["this"][1:], by_tree["other"][1:], strict=True)
        unit = ratio_unit(questions[name][1])
        bench.note(f"{prefix}{name}, this / other", [this / that for this, that in pairs], unit)
