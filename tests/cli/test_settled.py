"""Engine settings, and command line options that override them."""

import io
import sys
from pathlib import Path

import pytest

from engine.api.errors import BadInput, EngineError, ModelNotFound
from engine.api.params import SamplingParams
from minichat.cli import parser
from minichat.commands.options import engine_config, sampling
from minichat.commands.tui import blaming, given_of, settle, settle_plain
from minichat.settings import Settings, load
from minichat.settings.schema import EngineSettings
from minichat.start import Blame
from tests.cli.conftest import Run

FROM_SETTINGS = Settings(
    engine=EngineSettings(
        quantization="int8", kv="fp8", kv_window=64, kv_sinks=0, blocks=70, policy="latency"
    )
)


@pytest.mark.parametrize("command", ["chat", "up"])
def test_schemes_of_weights_and_cache(command: str) -> None:
    def asked(*words: str) -> tuple[object, ...]:
        options = parser().parse_args([command, *words])
        settle(options, FROM_SETTINGS)
        config = engine_config(options)
        return config.quantization, config.kv_scheme, config.kv_window, config.kv_sinks, config.blocks

    assert asked() == ("int8", "fp8", 64, 0, 70)
    assert asked("--quantization", "none", "--kv", "none") == ("none", "none", 64, 0, 70)
    assert asked("--kv-window", "32", "--kv-sinks", "8", "--blocks", "9") == ("int8", "fp8", 32, 8, 9)


def test_sampling_without_a_screen(tmp_path: Path) -> None:
    """As on the screen, but one reply: there is no place for others."""
    file = tmp_path / "config.toml"
    file.write_text("[sampling]\ntemperature = 0.1\nmin_tokens = 3\nn = 2\n")

    def asked(*words: str) -> SamplingParams:
        options = parser().parse_args(["chat", *words])
        settle_plain(options, load(file), set())
        return sampling(options)

    assert asked() == SamplingParams(temperature=0.1, min_tokens=3)
    assert asked("--temperature", "0") == SamplingParams(temperature=0, min_tokens=3)


def test_a_slowdown_is_a_factor_of_at_least_one() -> None:
    def asked(factor: str) -> float | None:
        return engine_config(parser().parse_args(["serve", "--max-slowdown", factor])).max_slowdown

    assert asked("1") == 1
    with pytest.raises(BadInput, match=r"--max-slowdown must be at least 1, got 0\.5"):
        asked("0.5")


@pytest.mark.parametrize("command", ["chat", "up", "generate", "serve"])
def test_sinks_need_a_window(command: str) -> None:
    """Sinks in the settings wait for a window; on the command line, they need one."""

    def asked(*words: str) -> int:
        options = parser().parse_args([command, *words])
        if command in ("chat", "up"):
            settle(options, Settings(engine=EngineSettings(kv_sinks=9)))
        return engine_config(options).kv_sinks

    assert asked() == 4
    assert asked("--kv-window", "32", "--kv-sinks", "8") == 8
    assert asked("--kv-window", "32") == (9 if command in ("chat", "up") else 4)
    with pytest.raises(BadInput, match="--kv-sinks requires --kv-window or --kv-budget"):
        asked("--kv-sinks", "8")


@pytest.mark.parametrize("command", ["chat", "up"])
def test_a_budget_replaces_a_window_of_the_settings(command: str) -> None:
    def asked(settings: EngineSettings, *words: str) -> tuple[int | None, int | None, str]:
        options = parser().parse_args([command, *words])
        settle(options, Settings(engine=settings))
        config = engine_config(options)
        return config.kv_window, config.kv_budget, config.kv_eviction

    window, budget = EngineSettings(kv_window=64), EngineSettings(kv_budget=128, kv_eviction="attention")
    assert asked(window, "--kv-budget", "256") == (None, 256, "norms")
    assert asked(budget) == (None, 128, "attention")
    assert asked(budget, "--kv-window", "64") == (64, None, "norms")
    assert asked(budget, "--kv-budget", "256", "--kv-eviction", "norms") == (None, 256, "norms")
    with pytest.raises(BadInput, match="--kv-eviction requires --kv-budget"):
        asked(EngineSettings(), "--kv-eviction", "norms")


@pytest.mark.parametrize("command", ["chat", "up"])
def test_the_scheduling_policy(command: str) -> None:
    def asked(*words: str) -> str:
        options = parser().parse_args([command, *words])
        settle(options, FROM_SETTINGS)
        return engine_config(options).policy

    assert (asked(), asked("--policy", "fcfs")) == ("latency", "fcfs")


@pytest.mark.parametrize("words", [("chat", "--plain"), ("chat", "hello"), ("up", "--no-screen")])
def test_problems_of_the_settings_are_printed_without_a_screen(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: tuple[str, ...]
) -> None:
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    file = tmp_path / "minichat" / "config.toml"
    file.parent.mkdir()
    file.write_text("[engine]\nblocks = 0\n")
    ran = run(*words, "--model", str(tmp_path / "nothing"))
    assert ran.err.startswith(f"minichat: {file}:2: engine.blocks: must be a whole number from 1 ")


@pytest.mark.parametrize("words", [("chat", "--plain"), ("chat", "hello")])
def test_an_error_names_the_line_of_the_settings_that_it_is_about(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: tuple[str, ...]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    file = tmp_path / "minichat" / "config.toml"
    file.parent.mkdir()
    file.write_text("[engine]\npp = 9\ntp = 4\n")
    assert run(*words).err.startswith(f"minichat: {file}:2: engine.pp: the model has 8 layers, so it can ")
    file.write_text('[engine]\nblocks = 40\nmodel = "nobody/nothing"\n')
    assert run(*words).err.startswith(
        f"minichat: {file}:3: engine.model: nobody/nothing is not on this machine"
    )
    file.write_text('[engine]\nblocks = 40\nmodel = "/no/such"\n')
    place, says = f"{file}:3: engine.model: ", "there is no folder or GGUF file '/no/such'"
    assert run(*words).err.startswith(f"minichat: {place}{says}")
    assert run(*words, "--model", "/no/such").err.startswith(f"minichat: {says}"), "this one is no setting"


def test_the_screen_learns_which_line_an_error_is_about(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[engine]\npp = 9\nquantization = "int3"\npolicy = "fast"\n')

    def blamed(says: str, *words: str, kind: type[EngineError] = BadInput) -> Blame:
        options, loaded = parser().parse_args(["chat", *words]), load(file)
        given = given_of(options)
        settle(options, loaded.settings)
        return blaming(options, loaded, given)(kind(says))

    assert blamed("quantization 'int3': no scheme has that name").place == "config.toml:3"
    assert blamed("pp: the model has 8 layers").place == "config.toml:2"
    assert blamed("policy 'fast' is unknown") == Blame("policy", "config.toml:4")
    typed = blamed("quantization 'int3': no scheme", "--quantization=int3")
    assert typed == Blame("quantization", option="--quantization int3")
    assert blamed("draft: there is no folder", "--draft=/x") == Blame("draft", option="--draft /x")
    assert blamed("/x is not there", "--model=/x", kind=ModelNotFound) == Blame()
    assert blamed("not enough memory") == Blame()
