"""What a restarted screen gets: the typed options and what was changed since. The rest is in the settings."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.api.config import EngineConfig
from engine.api.events import Quantized, Recached
from minichat.cli import parser
from minichat.clients.local import LocalBackend
from minichat.commands import attach, tui, up
from minichat.commands.options import engine_config
from minichat.commands.tui import restart_words, settle
from minichat.settings import load
from minichat.shell.again import TYPED, typed
from minichat.shell.first import First
from minichat.shell.paths import locate

OLD = (
    '[chat]\nsystem = "Old."\n[engine]\nmodel = "a"\nquantization = "int8"\npolicy = "latency"\nblocks = 64\n'
)


class Started:
    """A screen that was started with these words, beside a file of settings."""

    def __init__(self, file: Path, *words: str) -> None:
        self.file = file
        file.write_text(OLD)
        options = parser().parse_args(["chat", *words])
        self.typed = typed(options)
        settle(options, load(file).settings)
        self.given = engine_config(options)

    def again(self, file: str = OLD, **now: object) -> list[str]:
        """The words of its restart with another file, after the engine was changed."""
        self.file.write_text(file)
        changed: EngineConfig = replace(self.given, **now)  # type: ignore[arg-type]
        return restart_words(self.typed, self.given, changed, load(self.file).settings.engine.model)


def alone(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    """A user without settings, and without what a restart leaves in the environment."""
    for name in ("CONFIG", "STATE", "CACHE"):
        monkeypatch.delenv(f"XDG_{name}_HOME", raising=False)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv(TYPED, "{}")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config.toml"


def test_nothing_of_the_old_file_is_passed_on(file: Path) -> None:
    assert Started(file).again() == ["chat"]


def test_what_was_typed_is_passed_on(file: Path) -> None:
    words = [
        "--quantization=int4",
        "--system=Mine.",
        "--engine=process",
        "--kv-disk=off",
        "--temperature=0.5",
    ]
    assert sorted(Started(file, *words, "a question?").again()[1:]) == sorted(words)


def test_a_conversion_is_passed_on(file: Path) -> None:
    assert Started(file).again(quantization="none") == ["chat", "--quantization=none"]
    started = Started(file, "--kv=fp8")
    assert started.again(kv_scheme="int4") == ["chat", "--kv=int4"]
    assert started.again() == ["chat", "--kv=fp8"]


def test_a_conversion_is_not_for_another_model_of_the_new_file(file: Path) -> None:
    started, other = Started(file), OLD.replace('"a"', '"b"')
    assert started.again(other, quantization="int4") == ["chat"]
    started = Started(file, "--model=a")
    assert started.again(other, quantization="int4") == ["chat", "--model=a", "--quantization=int4"]


def test_a_model_that_was_chosen_is_passed_on_without_the_adapters_of_the_first(file: Path) -> None:
    started = Started(file, "--adapter=sql=somewhere")
    assert started.again() == ["chat", "--adapter=sql=somewhere"]
    assert started.again(model="b", adapters=()) == ["chat", "--model=b"]
    assert started.again(model="b", adapters=(), kv_scheme="fp8") == ["chat", "--model=b", "--kv=fp8"]


def test_random_weights_are_for_the_model_that_was_started_with_them() -> None:
    given = EngineConfig(model="a", dummy_weights=True)
    backend, asked = LocalBackend(given), parser().parse_args(["chat", "--model=a", "--dummy-weights"])
    assert [backend.config_of(each).dummy_weights for each in "aba"] == [True, False, True]
    assert restart_words(asked, given, backend.config_of("b"), "a") == ["chat", "--model=b"]
    assert restart_words(asked, given, backend.config_of("a"), "a") == [
        "chat",
        "--model=a",
        "--dummy-weights",
    ]


@pytest.mark.parametrize("command", ["chat", "up"])
def test_the_screen_restarts_with_the_typed_options_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str
) -> None:
    alone(monkeypatch, tmp_path)
    file, again = locate().settings, list[str]()
    file.parent.mkdir(parents=True)
    file.write_text('[chat]\nsystem = "Old."\n[engine]\nquantization = "int8"\n')

    def show(*given: object, model: str = "", **_: object) -> int:
        again.extend(given[4](model))  # type: ignore[operator]
        return 0

    monkeypatch.setattr(tui, "_first", lambda options: First())
    monkeypatch.setattr(tui, "_on_screen", lambda options: True)
    monkeypatch.setattr(tui, "show", show)
    monkeypatch.setattr(attach, "show", show)
    monkeypatch.setattr(up, "check_terminal", lambda command: None)
    module = {"chat": tui, "up": up}[command]
    assert module.run(parser().parse_args([command, "--blocks=64", "--top-k=3"])) == 0
    usual = ["--name=main"] if command == "up" else []
    assert again == [command, *usual, "--blocks=64", "--top-k=3"]


def test_a_conversion_is_not_for_another_model_after_several_restarts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    alone(monkeypatch, tmp_path)
    shown = list[tuple[LocalBackend, Callable[[str], list[str]]]]()

    def show(_: object, __: object, ___: object, engine: Any, again: Any, **____: object) -> int:
        shown.append((engine(), again))
        return 0

    monkeypatch.setattr(tui, "_first", lambda options: First())
    monkeypatch.setattr(tui, "_on_screen", lambda options: True)
    monkeypatch.setattr(tui, "show", show)
    tui.run(parser().parse_args(["chat", "--kv=fp8"]))
    backend, again = shown.pop()
    backend._hear(backend._converted.setdefault("pocket", {}), Quantized(0, 0.0, "int8", "none", 9, 1.0, ""))
    backend._hear(backend._converted["pocket"], Recached(0, 0.0, "int4", 9))
    for _ in range(2):
        words = again("pocket")
        assert sorted(words) == ["--kv=int4", "--quantization=int8", "chat"]
        tui.run(parser().parse_args(words))
        assert TYPED not in os.environ, "for one start"
        backend, again = shown.pop()
        forms = [(each.quantization, each.kv_scheme) for each in map(backend.config_of, ("pocket", "b"))]
        assert forms == [("int8", "int4"), ("none", "fp8")]
    assert sorted(again("b")) == ["--kv=fp8", "--model=b", "chat"]
