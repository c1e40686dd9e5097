"""These tests change models while engines run, so engines share no model, but they may share a folder."""

from pathlib import Path

import pytest

import engine.assembly
from engine.models.registry import load_model
from tests.models.families import reference
from tests.runner.letters import VOCAB, byte_tokenizer


@pytest.fixture(autouse=True)
def load_a_model_for_each_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo the caching of other folders' tests, which may have run in this process."""
    monkeypatch.setattr(engine.assembly, "load_model", load_model)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model used by this folder only; other folders share theirs."""
    made = tmp_path_factory.mktemp("llama")
    byte_tokenizer().save(str(made / "tokenizer.json"))
    reference("Llama", {"vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 128}, made)
    return made
