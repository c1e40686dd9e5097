"""README's example of the library."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

import engine.host.thread
import engine.start
from engine.api.snapshot import Throughput

README = Path(__file__).parents[2] / "README.md"


class Stream(list[SimpleNamespace]):
    id = 1


class Host:
    """Gives one reply."""

    def __init__(self, started: object) -> None:
        self.sent: list[object] = []

    def submit(self, chat: object, params: object) -> Stream:
        return Stream([SimpleNamespace(text="It is "), SimpleNamespace(text="a block.")])

    def send(self, command: object) -> None:
        self.sent.append(command)

    def snapshot(self) -> SimpleNamespace:
        return SimpleNamespace(rates=Throughput())

    def close(self) -> None:
        pass


def test_the_figures_start_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(engine.host.thread, "EngineThread", Host)
    monkeypatch.setattr(engine.start, "start", lambda config: config)
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    exec(example, {})
    reply, figures = capsys.readouterr().out.splitlines()
    assert (reply, figures) == ("It is a block.", str(Throughput()))
