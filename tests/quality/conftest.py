"""A model for both our engine and transformers."""

from pathlib import Path
from typing import Any

import pytest

from tests.runner.small import make


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("llama")
    return folder, make("llama", folder)
