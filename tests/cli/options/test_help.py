"""What the help of each command lists: options that the command takes, with their defaults."""

import argparse
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Never

import pytest

from engine.api.config import EngineConfig
from engine.api.errors import EngineError
from engine.api.params import SamplingParams
from minichat.cli import COMMANDS, _alone
from minichat.clients.address import PORT
from minichat.commands.arguments import REQUESTS_A_REPLICA
from minichat.commands.bench.arguments import QUESTIONS
from minichat.commands.options import engine_config
from tests.cli.conftest import Run

BEGINNING = {  # of the commands with options of an engine; all of them are checked before it starts
    "chat": [["chat"]],
    "generate": [["generate", "hi"]],
    "serve": [["serve"], ["serve", "--dry-run"]],
    "up": [["up"], ["up", "--no-screen"]],
    "attach": [["attach"], ["attach", "box"]],
    "quality": [["quality"]],
    "bench": [["bench", question] for question in QUESTIONS],
}
WITH = {  # what an option needs beside it
    "--kv-sinks": ["--kv-window=64"],
    "--kv-eviction": ["--kv-budget=128"],
    "--target-ms": ["--policy=latency"],
    "--deadline-ms": ["--policy=latency"],
    "--draft": ["--speculate=draft"],
    "--best-of": ["--n=1"],
    "--length-penalty": ["--beams=2"],
    "--early-stopping": ["--beams=2"],
    "--insecure": ["--no-key"],
    "--tls-cert": ["--tls-key=FILE"],
    "--tls-key": ["--tls-cert=FILE"],
    "--rate": ["--dry-run"],
    "--target-requests": ["--min-replicas=1"],
    "--prefill-gpus": ["--decode-gpus=1"],
    "--decode-gpus": ["--prefill-gpus=1"],
}
ALONE = {("bench", "--draft"), ("serve", "--draft")}  # these commands need nothing beside it
VALUES = {  # of options that do not take the number 1
    "--adapter": "sql=folder",
    "--api-key-file": "FILE",
    "--attention": "torch",
    "--budgets": "128,256",
    "--cors": "http://localhost:3000",
    "--device": "cpu",
    "--json-schema": "FILE",
    "--kv-budget": "128",
    "--kv-disk": "auto",
    "--kv-window": "64",
    "--meet": "localhost:1:FILE",
    "--metrics-prefix": "vllm",
    "--model": "pocket",
    "--peer": "vllm=FILE",
    "--plot": "picture.svg",
    "--policy": "latency",
    "--prompt": "16",
    "--quantization": "int8",
    "--reply": "16",
    "--schemes": "int8",
    "--speculate": "ngram",
    "--text": "FILE",
    "--tokens": "16",
    "--compare": "FILE",
    "--tls-key": "FILE",
    "--tls-cert": "FILE",
    "--trace": "FILE",
}
FILES = {"--plot": "picture.svg", "--trace": "trace.csv"}
TEXTS = {
    "--api-key-file": "a-key-of-a-server",
    "--json-schema": "{}",
    "--trace": "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,10,10\n",
}


def listed(command: str) -> list[argparse.Action]:
    """The options in the help of a command, except for --help."""
    known = _alone(command)._actions
    return [each for each in known if each.option_strings and each.help != argparse.SUPPRESS][1:]


class Reached(EngineError):
    """The engine would start now."""


def reached(*_: object, **__: object) -> Never:
    raise Reached("reached")


SAMPLED, CONFIG = SamplingParams(), EngineConfig(model="pocket")
DEFAULTS: dict[str, object] = {  # of options that are None if they are not given
    "temperature": 0.7,
    "top_k": "all",
    **{
        name: getattr(SAMPLED, name)
        for name in ("top_p", "min_p", "repetition_penalty", "length_penalty", "n")
    },
    "kv_sinks": CONFIG.kv_sinks,
    "kv_eviction": CONFIG.kv_eviction,
    "target_ms": CONFIG.latency_target * 1000,
    "min_replicas": "all",
    "target_requests": REQUESTS_A_REPLICA,
    "rate": 30,
    "port": PORT,
}


@contextmanager
def running(config: object) -> Iterator[None]:
    reached()
    yield


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands check all their options, and end where they would start an engine or a screen."""
    for place in ("chat", "generate"):
        monkeypatch.setattr(f"minichat.commands.{place}.running", running)
    for place in ("attach", "up"):
        monkeypatch.setattr(f"minichat.commands.{place}.check_terminal", lambda command: None)
        monkeypatch.setattr(f"minichat.commands.{place}.attach_to", reached)
    monkeypatch.setattr("minichat.commands.attach._check_server", reached)
    monkeypatch.setattr("minichat.commands.up._wait", reached)
    monkeypatch.setattr("minichat.commands.tui.show", reached)
    monkeypatch.setattr("minichat.commands.serve.password_of", lambda *files: "")
    monkeypatch.setattr(
        "minichat.commands.serve.serve", lambda options, keys: reached(engine_config(options))
    )
    monkeypatch.setattr("minichat.commands.quality._measured", reached)
    monkeypatch.setattr("engine.quality.budget.compare_budgets", reached)
    monkeypatch.setattr("minichat.bench.setup.Setup", reached)


@pytest.mark.usefixtures("no_engine")
@pytest.mark.parametrize("command", BEGINNING)
def test_each_option_in_the_help_is_taken(command: str, run: Run, tmp_path: Path) -> None:
    refused: dict[str, list[str]] = {}
    for action in listed(command):
        name = action.option_strings[0]
        value = VALUES.get(name, [*(action.choices or ["1"])][-1])
        (file := tmp_path / FILES.get(name, "some.txt")).write_text(TEXTS.get(name, "some text" * 9))
        file.chmod(0o600)
        beside = [] if (command, name) in ALONE else WITH.get(name, [])
        words = [name if action.nargs == 0 else f"{name}={value}", *beside]
        typed = [word.replace("FILE", str(file)) for word in words]
        ends = [run(*first, *typed).err for first in BEGINNING[command]]
        if not any(end.endswith("minichat: reached\n") for end in ends):
            refused[name] = ends
    assert refused == {}


def shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


@pytest.mark.parametrize("command", COMMANDS)
def test_each_option_with_a_default_names_it(command: str) -> None:
    for action in listed(command):
        usual, help = DEFAULTS.get(action.dest, action.default), action.help or ""
        if action.nargs == 0 or usual is None or usual == []:
            continue
        named = isinstance(usual, str) and action.dest not in DEFAULTS  # as words, such as "best" for auto
        assert re.search(r"\(?default\b" if named else f"default: {shown(usual)}\\b", help), action
