"""A small model, and the toy sizes at which every question is asked."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.api.config import EngineConfig
from minichat.bench.setup import Setup
from tests.models.tiny import checkpoint
from tests.runner.letters import VOCAB, byte_tokenizer


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model without an end token and with room for the longest prompt."""
    folder = tmp_path_factory.mktemp("tiny")
    checkpoint(folder, vocab_size=VOCAB, eos_token_id=None, max_position_embeddings=512)
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="session")
def setup(tiny: Path) -> Iterator[Setup]:
    """All questions share its engines."""
    made = Setup(
        config=EngineConfig(model=str(tiny), device="cpu", seed=0),
        rows=(2,), prompt=8, reply=6, requests=3, price=2.0,
    )  # fmt: skip
    yield made
    made.close()
