"""The program, or only its engine, in a separate process, with a log of the engine.

`python -m benchmarks.screen.screen_program DIARY CHATS [minichat's options]` runs the real program. If CHATS
is above 0, it runs only the engine, with that many concurrent replies that are not read.
"""

import argparse
import gc
import json
import sys
import time
from itertools import count
from pathlib import Path
from typing import TextIO

from benchmarks.screen.sink import Stretches
from engine.api.snapshot import Snapshot

PROMPT = "Tell me a story."
_EVERY = 0.25  # seconds between two lines of an engine alone, the interval of the monitor
_BEFORE = 1.0  # seconds that the engine alone may take to start its replies


class Diary:
    """Writes a line of JSON per snapshot: time, tokens of each request, times of the event loop."""

    def __init__(self, file: TextIO, stretches: Stretches) -> None:
        self._file, self._stretches = file, stretches
        self._pause = self._begun = 0.0
        gc.callbacks.append(self._collector)

    def write(self, shot: Snapshot) -> None:
        held = self._stretches.seconds
        line = {
            "at": time.monotonic(),
            "step": shot.step,
            "generated": {each.id: each.generated for each in shot.requests},
            "drawing": time.thread_time(),
            "longest": max(held, default=0.0),
            "collected": self._pause,
        }
        self._stretches.clear()
        self._pause = 0.0
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def _collector(self, phase: str, _info: dict[str, int]) -> None:
        if phase == "start":
            self._begun = time.perf_counter()
        else:
            self._pause = max(self._pause, time.perf_counter() - self._begun)


def screen(diary: Diary, stretches: Stretches, words: list[str]) -> int:
    """Run the real program with a log."""
    from minichat.cli import main
    from minichat.ui.main import MainScreen

    show = MainScreen.show_snapshot

    def watched(self: MainScreen, snapshot: Snapshot) -> None:
        show(self, snapshot)
        diary.write(snapshot)

    MainScreen.show_snapshot = watched  # type: ignore[method-assign]
    with stretches.watched():
        return main(words)


def alone(diary: Diary, chats: int, words: list[str]) -> int:
    """Run only the engine, on its thread, until a reply ends."""
    from engine.api.params import SamplingParams
    from engine.host.thread import EngineThread
    from engine.start import start
    from minichat.cli import parser
    from minichat.commands.options import engine_config

    host = EngineThread(start(engine_config(parser().parse_args(["generate", *words]))))
    gc.freeze()
    params = SamplingParams(temperature=0.7, ignore_eos=True)
    streams = [host.submit([{"role": "user", "content": PROMPT}], params) for _ in range(chats)]
    begun = time.monotonic()
    for number in count(1):
        time.sleep(max(0.0, begun + number * _EVERY - time.monotonic()))
        diary.write(shot := host.snapshot())
        if len(shot.requests) < len(streams):
            return 0
    return 0


def main() -> int:
    reader = argparse.ArgumentParser(prog="python -m benchmarks.screen.screen_program", allow_abbrev=False)
    reader.add_argument("diary", type=Path)
    reader.add_argument("chats", type=int)
    options, words = reader.parse_known_args()
    stretches = Stretches()
    with options.diary.open("w", encoding="utf-8") as file:
        diary = Diary(file, stretches)
        return alone(diary, options.chats, words) if options.chats else screen(diary, stretches, words)


if __name__ == "__main__":
    sys.exit(main())
