"""The cost of the screen while the engine runs: flushes, bytes, key echo, and the speed of the engine.

The flushes are measured by `transcript`. Everything else runs the real program on a pseudo terminal, 300
columns wide so that four chats and the monitor fit side by side, with the first layer of the built-in model:
steps of one to two milliseconds, and replies that never end. Linux only.
"""

import json
import os
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import quantiles
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file

from benchmarks.screen import transcript
from benchmarks.screen.screen_program import PROMPT
from benchmarks.screen.terminal import Terminal
from engine.models.find import find_model
from minichat.bench.harness import FASTER, Bench

PARTS = ("flush", "stream", "echo", "speed")
_ENGINES = ("thread", "process")
_SIZE = (300, 70)
_CONTEXT = 16_384
_KEYS = [chr(code) for code in range(0x100, 0x1A0)]  # letters that the model does not write
_APART = 0.043  # seconds between two keys, a multiple of no interval of the program
_NEW, _ENTER, _ESCAPE, _NEXT = "\x0e", "\r", "\x1b", "\x1bl"
_AFTER_A_KEY = 0.1  # seconds
_AGAIN = 5.0  # seconds after which the keys are typed again: a busy machine may have lost them
_SETTLED = 1.5  # seconds
_FIRST, _LAST = 5000, 11_000  # total tokens between which the speed of the engine is measured


@dataclass(frozen=True, slots=True)
class Place:
    """Folders of one run of the benchmark."""

    root: Path

    @property
    def model(self) -> Path:
        return self.root / "quick"

    @property
    def diary(self) -> Path:
        return self.root / "diary"

    def environment(self) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("SSH", "TMUX", "XDG"))}
        for name in ("COLUMNS", "LINES", "NO_COLOR"):
            kept.pop(name, None)
        home = tempfile.mkdtemp(dir=self.root)
        config = Path(home, ".config", "minichat", "config.toml")
        config.parent.mkdir(parents=True)
        config.write_text("[sampling]\nignore_eos = true\n", encoding="utf-8")
        return {**kept, "HOME": home, "TERM": "xterm-256color", "COLORTERM": "truecolor", "LC_ALL": "C.UTF-8"}


def cut_model(folder: Path) -> None:
    """Write the built-in model with only its first layer, and with a long context."""
    folder.mkdir()
    whole = find_model("pocket").folder
    config = json.loads((whole / "config.json").read_text(encoding="utf-8"))
    config |= {"num_hidden_layers": 1, "max_position_embeddings": _CONTEXT}
    config.pop("early_exit_layers", None)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    for name in ("generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((whole / name).read_bytes())
    with safe_open(whole / "model.safetensors", "pt") as weights:
        kept = {
            name: weights.get_tensor(name)
            for name in weights.keys()
            if not re.match(r"model\.layers\.[1-9]", name)
        }
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})


class Diary:
    """Reads the log of the program, one line per snapshot."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def lines(self, since: float = 0.0) -> list[dict[str, Any]]:
        if not self._file.exists():
            return []
        whole = self._file.read_text(encoding="utf-8").splitlines(keepends=True)
        lines = [json.loads(line) for line in whole if line.endswith("\n")]
        return [line for line in lines if line["at"] >= since]

    def running(self, requests: int) -> bool:
        """Return whether at least `requests` replies have started."""
        last = self.lines()[-1:]
        return bool(last) and sum(1 for each in last[0]["generated"].values() if each) >= requests

    def when(self, tokens: int) -> float:
        """The time of the n-th token of all requests, interpolated between two lines; 0 if not reached."""
        before = (0.0, 0)
        for line in self.lines():
            now = (line["at"], sum(line["generated"].values()))
            if now[1] >= tokens:
                return before[0] + (now[0] - before[0]) * (tokens - before[1]) / (now[1] - before[1])
            before = now
        return 0.0

    def speed(self, first: int, last: int) -> float:
        """Tokens per second between two token counts, which are the same for all contenders."""
        return (last - first) / (self.when(last) - self.when(first))


@contextmanager
def program(place: Place, engine: str, chats: int) -> Iterator[tuple[Terminal, Diary]]:
    """Run the program with `chats` chats, all of which stream."""
    place.diary.unlink(missing_ok=True)
    words = ["-m", "benchmarks.screen.screen_program", str(place.diary), "0", *_options(place, engine)]
    with Terminal(words, _SIZE, place.environment()) as terminal:
        diary = Diary(place.diary)
        terminal.until(diary.lines, "the engine")
        for key in [_NEW] * (chats - 1):
            terminal.type(key)
            time.sleep(_AFTER_A_KEY)
        terminal.until(terminal.quiet, "the last chat")
        for number in range(1, chats + 1):
            while not diary.running(number):
                for keys in (f"\x1b{number}", PROMPT, _ENTER):
                    terminal.type(keys)
                    time.sleep(_AFTER_A_KEY)
                terminal.wait(lambda requests=number: diary.running(requests), _AGAIN)  # type: ignore[misc]
        yield terminal, diary


def _options(place: Place, engine: str) -> list[str]:
    return ["--model", str(place.model), *([] if engine == "thread" else ["--engine", engine])]


def stream(bench: Bench, place: Place, engine: str, seconds: float) -> None:
    """Four panes and the monitor: bytes, rendering time, longest block of the loop; then the same idle."""
    name = f"4 panes and the monitor, engine in a {engine}"
    with program(place, engine, 4) as (terminal, diary):
        time.sleep(_SETTLED)
        begin, sent = time.monotonic(), []
        for _ in range(round(seconds)):
            before = terminal.sent
            time.sleep(1)
            sent.append((terminal.sent - before) / 1000)
        lines = diary.lines(begin)
        bench.note(f"{name}: to the terminal", sent, "kB/s")
        pairs = list(pairwise(lines))
        bench.note(f"{name}: engine", [_tokens(before, after) for before, after in pairs], "tok/s")
        bench.note(f"{name}: drawing", [_share(before, after) for before, after in pairs], "% of a core")
        bench.note(f"{name}: longest stretch", max(each["longest"] for each in lines) * 1000, "ms")
        bench.note(f"{name}: longest collection", max(each["collected"] for each in lines) * 1000, "ms")
        for _ in range(4):
            terminal.type(_ESCAPE)
            time.sleep(_AFTER_A_KEY)
            terminal.type(_NEXT)
            time.sleep(_AFTER_A_KEY)
        time.sleep(2 * _SETTLED)
        before, cpu, begin = terminal.sent, terminal.cpu, time.monotonic()
        time.sleep(seconds)
        bench.note(f"{name}, idle: to the terminal", terminal.sent - before, "bytes")
        bench.note(f"{name}, idle: processor", 100 * (terminal.cpu - cpu) / (time.monotonic() - begin), "%")


def _tokens(before: dict[str, Any], after: dict[str, Any]) -> float:
    """Tokens per second between two lines of the log."""
    counted = sum(after["generated"].values()) - sum(before["generated"].values())
    return float(counted / (after["at"] - before["at"]))


def _share(before: dict[str, Any], after: dict[str, Any]) -> float:
    return float(100 * (after["drawing"] - before["drawing"]) / (after["at"] - before["at"]))


def echo(bench: Bench, place: Place, engine: str) -> None:
    """The time until a typed letter is on the screen while eight chats stream."""
    taken = []
    with program(place, engine, 8) as (terminal, _):
        time.sleep(_SETTLED)
        for letter in _KEYS:
            begin, seen = time.monotonic(), len(terminal.chunks)
            terminal.type(letter)
            terminal.until(lambda since=seen, key=letter: terminal.shows(key, since), letter)  # type: ignore[misc]
            taken.append((terminal.shows(letter, seen) or 0.0) - begin)
            time.sleep(_APART)
    name = f"8 chats, engine in a {engine}: echo of a key"
    hundredths = quantiles(taken, n=100)
    bench.note(f"{name}, p50", hundredths[49] * 1000, "ms")
    bench.note(f"{name}, p99", hundredths[98] * 1000, "ms")


def speed(bench: Bench, place: Place, engines: Sequence[str], rounds: int) -> None:
    """The speed of the engine alone and with the screen, alternating."""
    found: list[dict[str, float]] = []
    for index in range(rounds):
        turns = ["alone", *engines]
        one = {engine: _speed(place, engine) for engine in (turns if index % 2 == 0 else turns[::-1])}
        found.append(one)
    for engine in ("alone", *engines):
        bench.note(f"engine, {engine}", [one[engine] for one in found], "tok/s")
    for engine in engines:
        bench.note(f"engine, {engine} / alone", [one[engine] / one["alone"] for one in found], FASTER)


def _speed(place: Place, engine: str) -> float:
    if engine != "alone":
        with program(place, engine, 4) as (terminal, diary):
            terminal.until(lambda: diary.when(_LAST), "the last token")
            return diary.speed(_FIRST, _LAST)
    place.diary.unlink(missing_ok=True)
    words = ["-m", "benchmarks.screen.screen_program", str(place.diary), "4", *_options(place, "thread")]
    with Terminal(words, _SIZE, place.environment()) as terminal:
        diary = Diary(place.diary)
        terminal.until(lambda: diary.when(_LAST), "the last token")
        return diary.speed(_FIRST, _LAST)


def run(
    bench: Bench,
    *,
    parts: tuple[str, ...] = PARTS,
    engines: tuple[str, ...] = ("thread",),
    seconds: int = 6,
) -> None:
    if unknown := [name for name in engines if name not in _ENGINES]:
        raise SystemExit(f"an engine runs in no {unknown[0]!r}; choose from {', '.join(_ENGINES)}")
    if "flush" in parts:
        transcript.run(bench)
    with tempfile.TemporaryDirectory() as root:
        place = Place(Path(root))
        cut_model(place.model)
        for engine in engines:
            if "stream" in parts:
                stream(bench, place, engine, seconds)
            if "echo" in parts:
                echo(bench, place, engine)
        if "speed" in parts:
            speed(bench, place, engines, bench.repeats)
