"""The inputs of the screen's benchmark: the log of a program, and the terminal around it."""

import json
import os
from pathlib import Path

from benchmarks.screen.screen import Diary
from benchmarks.screen.terminal import Terminal


def diary(folder: Path, *moments: tuple[float, dict[str, int]]) -> Diary:
    lines = [json.dumps({"at": at, "generated": generated}) + "\n" for at, generated in moments]
    file = folder / "diary"
    file.write_text("".join(lines) + '{"at": 9', encoding="utf-8")  # the last line is incomplete
    return Diary(file)


def test_speed_is_computed_between_two_token_counts(tmp_path: Path) -> None:
    kept = diary(tmp_path, (1.0, {"0": 0}), (2.0, {"0": 60, "1": 40}), (3.0, {"0": 200, "1": 100}))
    assert kept.when(100) == 2.0
    assert kept.when(200) == 2.5
    assert kept.speed(100, 200) == 200
    assert kept.when(301) == 0.0


def test_replies_are_running_once_each_has_a_token(tmp_path: Path) -> None:
    kept = diary(tmp_path, (1.0, {"0": 5, "1": 0}))
    assert kept.running(1)
    assert not kept.running(2)
    assert not Diary(tmp_path / "none").running(1)


def test_a_terminal_types_and_records_output() -> None:
    program = "import os; print(os.get_terminal_size()); print('said', input())"
    with Terminal(["-c", program], (61, 17), dict(os.environ)) as terminal:
        terminal.until(lambda: terminal.shows("size(columns="), "the size")
        terminal.type("ключ\n")
        terminal.until(lambda: terminal.shows("said ключ"), "what was typed")
        assert terminal.sent == sum(len(data) for _, data in terminal.chunks)
