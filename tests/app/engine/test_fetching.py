"""A model is downloaded from the hub by a separate process that reports its progress."""

import asyncio
import json
import sys
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any

import pytest

from engine.api.errors import BadInput, ModelNotFound
from engine.api.wire import decode_error, encode_error
from minichat.cli import main
from minichat.clients.protocol import Progress
from minichat.models import lifecycle, progress
from minichat.models.fetching import fetch
from minichat.models.progress import ProgressMeter, duration, size
from tests.app.conftest import run


def script(*lines: str) -> list[str]:
    return [sys.executable, "-c", "import sys, time\n" + "\n".join(lines)]


@run
async def test_a_download_reports_progress() -> None:
    seen: list[tuple[int, int]] = []
    line = """print('{"done": 5, "total": 10}\\n{"done": 10, "total": 10}\\n{"folder": "/x"}')"""
    await fetch("a/b", lambda *progress: seen.append(progress), script(line))
    assert seen == [(5, 10), (10, 10)]


@run
async def test_a_failed_download_reports_why() -> None:
    """The error arrives as a value with its class and field, whatever else the process prints."""
    sent = BadInput("name: a/b is not on this machine, and the hub cannot be reached", field="name")
    lines = (f"print({json.dumps({'error': encode_error(sent)})!r})", "sys.exit('a warning')")
    with pytest.raises(BadInput, match=r"^name: a/b is not on this machine") as raised:
        await fetch("a/b", lambda *_: None, script(*lines))
    assert raised.value.field == "name"
    with pytest.raises(ModelNotFound, match=r"^cannot download a/b: MemoryError$"):
        await fetch("a/b", lambda *_: None, script("sys.exit('Traceback ...\\nMemoryError')"))
    with pytest.raises(ModelNotFound, match=r"^cannot download a/b$"):
        await fetch("a/b", lambda *_: None, script("sys.exit(1)"))


def test_the_command_prints_its_error_as_a_value(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fetch", "--json", "no such name"]) == 1
    printed = capsys.readouterr()
    error = decode_error(json.loads(printed.out)["error"])
    assert isinstance(error, ModelNotFound)
    assert printed.err == f"minichat: {error}\n"


@run
async def test_a_canceled_download_leaves_no_process(tmp_path: Path) -> None:
    started = asyncio.Event()
    lines = ("""print('{"done": 1, "total": 2}', flush=True)""", "time.sleep(60)")
    task = asyncio.create_task(fetch("a/b", lambda *_: started.set(), script(*lines)))
    await asyncio.wait_for(started.wait(), 20)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 5)


def test_progress_has_rate_and_time_left() -> None:
    now = 0.0
    meter = ProgressMeter(lambda: now)
    meter.update(0, 1_200_000_000)
    assert meter.text() == "0.00 of 1.20 GB"
    for second in range(1, 9):
        now = float(second)
        meter.update(second * 100_000_000, 1_200_000_000)
    assert meter.text() == "0.80 of 1.20 GB  100 MB/s  4 s left"
    meter.update(1000, 2_000_000)  # another file: the old rate does not apply to it
    assert meter.text() == "0.0 of 2.0 MB"


def test_the_time_before_the_first_byte_does_not_count_in_a_rate() -> None:
    now = 0.0
    meter = ProgressMeter(lambda: now)
    meter.update(0, 11_000_000)
    now = 4.0
    meter.update(2_000_000, 11_000_000)
    assert meter.text() == "2.0 of 11.0 MB"
    now = 6.0
    meter.update(8_000_000, 11_000_000)
    assert meter.text() == "8.0 of 11.0 MB  3.00 MB/s  1 s left"


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (999_600, "1.00 MB"),
        (12_340_000, "12.3 MB"),
        (5.24e9, "5.24 GB"),
        (16.4e9, "16.4 GB"),
        (4e15, "4000 TB"),
        (inf, "-"),
    ],
)
def test_sizes(count: float, text: str) -> None:
    assert size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "1 s"), (59.6, "1 min"), (125, "2 min 5 s"), (4000, "1 h 06 min"), (9e5, "10 d")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@run
async def test_another_model_is_not_refused_as_a_second_download(bench: Callable[..., Any]) -> None:
    async def fake_fetch(name: str, progress: Progress) -> None:
        await asyncio.Event().wait()

    async with bench((120, 30)) as it:
        it.app.lifecycle.fetch = fake_fetch
        await it.until(lambda: it.app.lifecycle.ready.is_set())
        await it.pilot.press("alt+o", *"org/large")
        await it.until(lambda: "Enter downloads" in it.screen_text())
        await it.pilot.press("enter", "ctrl+u", *"pocket")
        await it.until(lambda: "built in" in it.screen_text())
        await it.pilot.press("enter")
        note = "large is downloading, and will then be loaded  ^X cancels the download"
        await it.until(lambda: note in it.screen_text())
        assert it.backend.switched == []


@run
async def test_a_download_that_stalls_names_no_rate(
    bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_SETTLED", 0.05)
    monkeypatch.setattr(progress, "_SPAN", 0.5)
    monkeypatch.setattr(lifecycle, "_LOOK", 0.05)

    async def fake_fetch(name: str, progress: Progress) -> None:
        for done in (1, 2, 3):
            progress(done * 100_000_000, 1_600_000_000)
            await asyncio.sleep(0.05)
        await asyncio.Event().wait()

    async with bench((120, 30)) as it:
        it.app.lifecycle.fetch = fake_fetch
        await it.until(lambda: it.app.lifecycle.ready.is_set())
        await it.pilot.press("alt+o", *"org/large", "enter")
        await it.until(lambda: "/s  " in it.screen_text())
        await it.until(lambda: "downloading large  0.30 of 1.60 GB  ^X cancels" in it.screen_text())
