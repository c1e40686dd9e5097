"""Here models change while engines run: none of them may be another test's, but all may read one folder."""

from pathlib import Path

import pytest

import engine.assembly
from engine.models.registry import load_model
from tests.models.test_families import reference
from tests.runner.letters import VOCAB, byte_tokenizer


@pytest.fixture(autouse=True)
def every_engine_loads_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere engines share them, and the same process may have run tests of there before."""
    monkeypatch.setattr(engine.assembly, "load_model", load_model)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of this folder's own: others share theirs."""
    made = tmp_path_factory.mktemp("llama")
    byte_tokenizer().save(str(made / "tokenizer.json"))
    reference("Llama", {"vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 128}, made)
    return made
