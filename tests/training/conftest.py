"""One small tokenizer for all training tests."""

import pytest
from tokenizers import Tokenizer

from training.vocabulary import train_tokenizer


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return train_tokenizer(size=700, chats=60, seed=3)
