"""Startup times with the built-in model: the first frame, the first words, tokens per second.

Runs the real program on a pseudo terminal of 120 columns, with a question on the command line, and as
`minichat generate`. Reports wall time and processor time. Linux only.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import defaultdict

from benchmarks.screen.terminal import ROOT, Terminal
from minichat.bench.harness import Bench

_SIZE = (120, 40)
_WORDS = ["-m", "minichat"]
_QUESTION = "who are you?"
_SEEN = {"first frame": "F1", "engine there": "prefix hits", "first words": "tiny"}  # in order
_STORY = ["--temperature", "0", "--json", "tell me a story about a fox"]


def run(bench: Bench, *, engine: str = "thread") -> None:
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    task = bench.progress.add_task("openings", total=bench.warmup + bench.repeats)
    for turn in range(bench.warmup + bench.repeats):
        once = {**_on_screen(engine), **_generated()}
        for (name, unit), value in once.items():
            if turn >= bench.warmup:
                found[name, unit].append(value)
        bench.progress.update(task, advance=1, refresh=True)
    for (name, unit), values in found.items():
        bench.note(name, values, unit)


def _on_screen(engine: str) -> dict[tuple[str, str], float]:
    """Seconds from the start of the program until each text appears, and the processor time until then."""
    seen = {}
    with tempfile.TemporaryDirectory() as home:
        start = time.monotonic()
        words = [*_WORDS, "chat", "--engine", engine, _QUESTION]
        with Terminal(words, _SIZE, _environment(home)) as terminal:
            for name, text in _SEEN.items():
                terminal.until(lambda text=text: terminal.shows(text), name)  # type: ignore[misc]
                cpu, at = terminal.cpu, terminal.shows(text)
                assert at is not None
                seen[name, "s"] = at - start
                seen[f"{name}, processor", "s"] = cpu
    return seen


def _generated() -> dict[tuple[str, str], float]:
    """The time of a command with a few tokens, and the tokens per second of a longer one."""
    with tempfile.TemporaryDirectory() as home:
        start, before = time.monotonic(), _children()
        _generate(home, ["--max-tokens", "5", "hi"])
        wall, cpu = time.monotonic() - start, _children() - before
        story = json.loads(_generate(home, _STORY))
    speed = (story["tokens"] - 1) / (story["seconds"] - story["first_token_s"])
    return {("generate", "s"): wall, ("generate, processor", "s"): cpu, ("streaming", "tok/s"): speed}


def _generate(home: str, words: list[str]) -> bytes:
    command, none = [sys.executable, *_WORDS, "generate", *words], subprocess.DEVNULL
    return subprocess.check_output(command, cwd=ROOT, env=_environment(home), stdin=none)


def _children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _environment(home: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("SSH", "TMUX", "XDG"))}
    return {**kept, "HOME": home, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
