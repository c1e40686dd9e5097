"""Small models on disk for the command line, and a fixture that runs a command."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from minichat.__main__ import main
from tests.models.tiny import checkpoint
from tests.runner.letters import VOCAB, byte_tokenizer

TEMPLATE = "<s>{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"


class Ran(NamedTuple):
    """A command's exit code, standard output and standard error."""

    code: int
    out: str
    err: str


Run = Callable[..., Ran]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command in this process; none may end in a traceback."""

    def command(*words: object) -> Ran:
        capsys.readouterr()
        try:
            code = main([str(word) for word in words])
        except SystemExit as end:
            code = int(end.code or 0)
        return Ran(code, *capsys.readouterr())

    return command


def write_model(folder: Path, template: str | None = None, start: bool = True, **changes: Any) -> Path:
    folder.mkdir(exist_ok=True)
    # No end token: a reply ends only at its maximum length.
    checkpoint(folder, vocab_size=VOCAB, bos_token_id=1 if start else None, eos_token_id=None, **changes)
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    settings = {"chat_template": template} | ({"bos_token": "<s>"} if start else {})
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model without a template."""
    return write_model(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="session")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("chatty"), TEMPLATE)


@pytest.fixture(scope="session")
def long_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that generates for minutes unless stopped."""
    return write_model(tmp_path_factory.mktemp("long"), TEMPLATE, max_position_embeddings=100_000)
